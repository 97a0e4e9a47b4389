// More SIGCHLDs than any pipe holds; afterwards children are still waited for.
import { spawn } from "node:child_process";
import { once } from "node:events";
import assert from "node:assert/strict";
import { openAddon } from "../native.mjs";

const { request } = openAddon();
for (let i = 0; i < 120_000; i++) {
  process.kill(process.pid, "SIGCHLD");
}
const [code] = await once(spawn("/bin/sh", ["-c", "exit 9"]), "exit");
assert.equal(code, 9);
const argv = ["/bin/sh", "-c", "exit 8"];
assert.equal((await request("testSpawn", { argv, wait: true })).ok.exitCode, 8);
process.disconnect();
