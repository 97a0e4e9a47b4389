// What the reply callback throws is an uncaught exception as from any callback.
import assert from "node:assert/strict";
import { requireAddon } from "../native.mjs";

const addon = requireAddon();
addon.load();
let replies = 0;
addon.open((call) => {
  replies++;
  if (call === 1) {
    throw new Error("on purpose");
  }
});
const thrown = new Promise((resolve) => process.once("uncaughtException", resolve));
addon.cancel(1, '{"target":9}');
assert.equal((await thrown).message, "on purpose");
addon.cancel(2, '{"target":9}');
while (replies < 2) {
  await new Promise(setImmediate);
}
process.disconnect();
