// Environments come and go; neither descriptors nor threads are left. With the
// argument "workers" the main thread never loads the addon, which then has no
// user between two rounds.
import assert from "node:assert/strict";
import fs from "node:fs";
import { once } from "node:events";
import { isMainThread, Worker } from "node:worker_threads";
import { openAddon } from "../native.mjs";

if (!isMainThread || process.argv[2] === "all") {
  const { request } = openAddon();
  await request("testSpawn", { argv: ["/bin/true"], wait: true });
}
if (isMainThread) {
  const round = async () => {
    const workers = Array.from({ length: 5 }, () => new Worker(new URL(import.meta.url)));
    await Promise.all(workers.map((worker) => once(worker, "exit")));
  };
  const open = () => fs.readdirSync("/proc/self/fd").length;
  const threads = () => fs.readdirSync("/proc/self/task").length;
  await round();
  const before = { open: open(), threads: threads() };
  for (let i = 0; i < 20; i++) {
    await round();
  }
  assert.ok(open() <= before.open, `${before.open} descriptors became ${open()}`);
  // Go keeps threads for reuse; they must not grow with the environments.
  assert.ok(threads() <= before.threads + 10, `${before.threads} threads became ${threads()}`);
  process.disconnect();
}
