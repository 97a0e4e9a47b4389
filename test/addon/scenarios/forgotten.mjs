// Processes that nobody holds any more give their pipes back when they are
// collected, and live on.
import assert from "node:assert/strict";
import fs from "node:fs";
import { bwrap } from "../../../dist/index.js";

const [appRoot] = process.argv.slice(2);
// Without a standby: that has a pipe, too.
const backend = bwrap({ networkPolicy: "deny-all", standby: false });
const handle = await backend.create({
  templateKey: null,
  sessionKey: "forgotten",
  runtimeContext: { appRoot },
});
const { session } = handle;
const pipes = () =>
  fs.readdirSync("/proc/self/fd").filter((fd) => {
    try {
      return fs.readlinkSync(`/proc/self/fd/${fd}`).startsWith("pipe:");
    } catch {
      return false;
    }
  }).length;

await session.run({ command: "true" });
const before = pipes();
for (let i = 0; i < 20; i++) {
  await session.spawn({ command: "exec sleep 3000" });
}
assert.ok(pipes() > before);
for (const end = Date.now() + 20_000; pipes() > before && Date.now() < end;) {
  globalThis.gc();
  await new Promise(setImmediate);
}
assert.equal(pipes(), before);
// On a loaded machine some are still reading their login files.
let alive;
for (const end = Date.now() + 20_000; alive !== "20" && Date.now() < end;) {
  alive = (await session.run({ command: "pgrep -c sleep || true" })).stdout.trim();
}
assert.equal(alive, "20");
await handle.shutdown();
process.disconnect();
