// A process that has opened the addon, in a STATE, ends in a WAY.
import { setTimeout as delay } from "node:timers/promises";
import { openAddon } from "../native.mjs";

const [state, way] = process.argv.slice(2);
const { request } = openAddon();
if (state === "busy") {
  void request("testLoad", { milliseconds: 1000, goroutines: 4 });
  void request("testReplies", { count: 1e9, bytes: 100 });
} else if (state === "closed") {
  await request("testLoad", { milliseconds: 1, goroutines: 1 });
}
process.send("ready");
if (way === "SIGTERM" || way === "SIGKILL") {
  await delay(30_000);
}
await delay(20);
switch (way) {
  case "exit":
    process.exit(7);
  case "throw":
    setImmediate(() => {
      throw new Error("on purpose");
    });
    break;
  case "natural":
    process.disconnect();
}
