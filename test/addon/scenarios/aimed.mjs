// A signal that the application handles is sent to Go's threads while their
// stacks are in use. Argument: the signal's number.
import os from "node:os";
import assert from "node:assert/strict";
import { openAddon } from "../native.mjs";

const signal = Number(process.argv[2]);
const { request } = openAddon();
// After the library: Go mends the handlers that it finds.
process.on(
  Object.keys(os.constants.signals).find((name) => os.constants.signals[name] === signal),
  () => {},
);
const load = request("testLoad", { milliseconds: 2000, goroutines: 8 });
const { ok } = await request("testAim", { signal, milliseconds: 1500 });
assert.ok(ok.sent > 100, `only ${ok.sent} signals`);
await load;
process.exit(0);
