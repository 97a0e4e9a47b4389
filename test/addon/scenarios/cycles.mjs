// Sessions are opened and closed a thousand times; no descriptor is left.
import assert from "node:assert/strict";
import fs from "node:fs";
import { bwrap } from "../../../dist/index.js";

const [appRoot] = process.argv.slice(2);
const backend = bwrap({ networkPolicy: "deny-all" });
const open = (key) => backend.create({ templateKey: null, sessionKey: key, runtimeContext: { appRoot } });
const descriptors = () => fs.readdirSync("/proc/self/fd").length;

/** One life of a session; every fiftieth has a sandbox. */
async function cycle(i) {
  const parts = [];
  const handle = await open(`session ${i % 3}`);
  await handle.session.writeTextFile({ path: "a", content: String(i) });
  assert.equal(await handle.session.readTextFile({ path: "a" }), String(i));
  if (i % 50 === 0) {
    const { stdout } = await handle.session.run({ command: "cat a" });
    assert.equal(stdout, String(i));
    const child = await handle.session.spawn({ command: "cat a; cat a >&2; sleep 3000" });
    for (const stream of [child.stdout, child.stderr]) {
      const reader = stream.getReader();
      assert.equal(Buffer.from((await reader.read()).value).toString(), String(i));
      parts.push(reader);
    }
  }
  await handle.shutdown();
  // A stream can be read to its end after that; the pipe goes with the end.
  for (const reader of parts) {
    assert.ok((await reader.read()).done);
  }
}

await cycle(0);
const before = descriptors();
for (let i = 1; i <= 1000; i++) {
  await cycle(i);
}
// What is still being closed behind an answer is closed soon.
for (const end = Date.now() + 5000; descriptors() > before && Date.now() < end;) {
  await new Promise(setImmediate);
}
assert.ok(descriptors() <= before, `${before} descriptors became ${descriptors()}`);
process.disconnect();
