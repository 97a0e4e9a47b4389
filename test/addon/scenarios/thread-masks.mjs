// Prints the signals that each thread made by loading the library blocks.
import fs from "node:fs";
import { openAddon } from "../native.mjs";

const threads = () => new Set(fs.readdirSync("/proc/self/task"));
const before = threads();
const { request } = openAddon();
await request("testLoad", { milliseconds: 50, goroutines: 8 });
const masks = [];
for (const thread of threads()) {
  if (before.has(thread)) {
    continue;
  }
  const status = fs.readFileSync(`/proc/self/task/${thread}/status`, "utf8");
  masks.push(/^SigBlk:\s+(.*)$/m.exec(status)[1]);
}
console.log(JSON.stringify(masks));
process.disconnect();
