// Go panics, where the argument says; Node gets an error and goes on.
import assert from "node:assert/strict";
import { openAddon } from "../native.mjs";

const { request } = openAddon();
for (let i = 0; i < 100; i++) {
  const { error } = await request("testPanic", { where: process.argv[2] });
  assert.equal(error.code, "ERR_INTERNAL");
  assert.match(error.message, /^panic: /);
  assert.match(error.detail, /\.go:\d+/);
}
assert.deepEqual((await request("cancel", { target: 1 })).ok, {});
process.disconnect();
