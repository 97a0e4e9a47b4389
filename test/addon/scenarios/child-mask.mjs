// Prints what a child of the library sees of its own signals and descriptors.
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { openAddon } from "../native.mjs";

process.on("SIGUSR1", () => {});
const { request } = openAddon();
const directory = fs.mkdtempSync(path.join(os.tmpdir(), "child-mask-"));
const stdout = path.join(directory, "out");
// No shell for the first: dash empties its signal mask.
for (const argv of [
  ["/bin/sed", "-n", "/^Sig[BIC]/p", "/proc/self/status"],
  ["/bin/sh", "-c", "ls /proc/$$/fd"],
]) {
  await request("testSpawn", { argv, stdout, wait: true });
  process.stdout.write(fs.readFileSync(stdout));
}
fs.rmSync(directory, { recursive: true });
process.disconnect();
