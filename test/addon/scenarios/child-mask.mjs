// Prints what a child of the library sees of its own signals and descriptors.
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { openAddon } from "../native.mjs";

process.on("SIGUSR1", () => {});
const { request } = openAddon();
const directory = fs.mkdtempSync(path.join(os.tmpdir(), "child-mask-"));
const stdout = path.join(directory, "out");
const script = "sed -n '/^Sig[BIC]/p' /proc/self/status; ls /proc/$$/fd";
await request("testSpawn", { argv: ["/bin/sh", "-c", script], stdout, wait: true });
console.log(fs.readFileSync(stdout, "utf8"));
fs.rmSync(directory, { recursive: true });
process.disconnect();
