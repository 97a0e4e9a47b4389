// The application has a signal handler of its own, as any may. The parent sends
// the signal without pause while Go's stacks are in use, on Go's own threads and
// on this one.
import assert from "node:assert/strict";
import { openAddon } from "../native.mjs";

const { addon, request } = openAddon();
let handled = 0;
process.on("SIGUSR2", () => handled++);
process.send("ready");
let busy = true;
const load = request("testLoad", { milliseconds: 2500, goroutines: 8 }).then(() => (busy = false));
while (busy) {
  for (let i = 0; i < 2000; i++) {
    addon.version();
  }
  await Promise.all([request("cancel", { target: 1e9 }), new Promise(setImmediate)]);
}
await load;
assert.ok(handled > 100, `only ${handled} signals`);
process.exit(0);
