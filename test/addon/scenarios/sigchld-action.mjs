// SIGCHLD has SA_ONSTACK from the load on, whichever watchers come and go.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { isMainThread, Worker } from "node:worker_threads";
import assert from "node:assert/strict";
import { openAddon } from "../native.mjs";

const { request } = openAddon();
const check = async (when) => {
  const { ok } = await request("testAction", { signal: 17 });
  assert.deepEqual(ok, { handled: true, onStack: true }, when);
};
await check("loaded");
await once(spawn("/bin/true"), "exit");
await check("a child of Node's");
spawnSync("/bin/true");
await check("a child waited for");
if (isMainThread) {
  for (const how of ["end", "terminate"]) {
    const worker = new Worker(new URL(import.meta.url));
    await once(worker, how === "end" ? "exit" : "online");
    await worker.terminate();
    await check(`a Worker's ${how}`);
  }
  const handler = () => {};
  process.on("SIGCHLD", handler);
  await check("a handler of the application's");
  process.off("SIGCHLD", handler);
  await check("that handler gone");
  process.disconnect();
}
