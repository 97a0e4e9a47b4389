// What the addon answers to its caller's mistakes, and how replies arrive.
import assert from "node:assert/strict";
import fs from "node:fs";
import { openAddon, requireAddon } from "../native.mjs";

const loaded = () => fs.readFileSync("/proc/self/maps", "utf8").includes("libsandbox.so");

const bare = requireAddon();
assert.ok(!loaded(), "require loads the library");
assert.throws(() => bare.open(() => {}), { message: "load() comes first" });
assert.throws(() => bare.version(), { message: "load() comes first" });
assert.throws(() => bare.probe("{}"), { message: "load() comes first" });
assert.throws(() => bare.cancel(1, "{}"), { message: "open() comes first" });
assert.throws(() => bare.load(1), { name: "TypeError" });
assert.throws(() => bare.load("/nowhere/libsandbox.so"), { message: /nowhere.*No such file/ });
assert.throws(() => bare.load("/etc/passwd"), { message: /passwd/ });
assert.throws(() => bare.load(process.execPath), Error);
assert.ok(!loaded(), "a failed load loads the library");

const { addon, request } = openAddon();
assert.ok(loaded());
assert.match(addon.version(), /^\d+\.\d+\.\d+/);
addon.load("/nowhere"); // loaded already: nothing to do
assert.throws(() => addon.open(() => {}), { message: "open() was called before" });
assert.throws(() => addon.open(), { name: "TypeError" });
for (const call of [0, -1, 1.5, NaN, Infinity, 2 ** 53, 1n, "1", undefined, {}]) {
  assert.throws(() => addon.cancel(call, "{}"), { code: "ERR_INVALID_ARG_TYPE" }, String(call));
}
for (const json of [undefined, 1, {}, null]) {
  assert.throws(() => addon.cancel(1, json), { code: "ERR_INVALID_ARG_TYPE" });
}
for (const data of [null, "x", [1], new ArrayBuffer(1), new Uint16Array(1), new DataView(new ArrayBuffer(1))]) {
  assert.throws(() => addon.cancel(1, "{}", data), { code: "ERR_INVALID_ARG_TYPE" });
}
assert.throws(() => addon.probe(), { name: "TypeError" });

for (const bytes of [0, 1, 4095, 4096, 1 << 20]) {
  const { data } = await request("testReplies", { count: 0, bytes });
  assert.equal(data?.length, bytes === 0 ? undefined : bytes);
  if (data) {
    assert.ok(data instanceof Uint8Array);
    assert.ok(data.every((byte) => byte === 0));
    data.fill(1); // it is ours
  }
}
// What comes in is copied, views are kept to, and text is UTF-8 both ways.
const view = new Uint8Array(new TextEncoder().encode("..héllo..")).subarray(2, -2);
assert.equal(Buffer.from((await request("testEcho", {}, view)).data).toString(), "héllo");
assert.equal((await request("testEcho", { text: "Grüße 🙂 \u0000 \ud800" })).ok.text, "Grüße 🙂 \u0000 \ufffd");
assert.equal((await request("testEcho", {}, new Uint8Array())).data, undefined);
const { error } = await request("cancel", { target: 1, more: 2 });
assert.deepEqual(error, { code: "ERR_INVALID_ARGUMENT", op: "more", message: "more: unknown member" });

// Garbage is collected, and its memory with it.
for (let i = 0; i < 200; i++) {
  await request("testReplies", { count: 4, bytes: 1 << 20 });
  if (i % 20 === 0) {
    globalThis.gc();
  }
}
globalThis.gc();
assert.ok(process.memoryUsage().rss < 400 << 20, `${process.memoryUsage().rss >> 20} MiB`);
process.disconnect();
