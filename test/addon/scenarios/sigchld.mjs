// Children of Node and of Go end by the hundred while Go's stacks are in use.
// The argument says who loads the library first: "main", or "worker", which is
// gone again before the storm.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { isMainThread, Worker } from "node:worker_threads";
import assert from "node:assert/strict";
import { openAddon } from "../native.mjs";

const children = 300;

if (!isMainThread) {
  const { request } = openAddon();
  await request("testSpawn", { argv: ["/bin/true"], wait: true });
} else {
  if (process.argv[2] === "worker") {
    const worker = new Worker(new URL(import.meta.url));
    const [code] = await once(worker, "exit");
    assert.equal(code, 0);
  }
  const { addon, request } = openAddon();
  const load = request("testLoad", { milliseconds: 3000, goroutines: 8 });
  const ofNode = async (i) => {
    const [code] = await once(spawn("/bin/sh", ["-c", `exit ${i % 200}`]), "exit");
    assert.equal(code, i % 200);
  };
  const ofGo = async (i) => {
    const argv = ["/bin/sh", "-c", `exit ${i % 200}`];
    const reply = await request("testSpawn", { argv, wait: true });
    assert.equal(reply.ok?.exitCode, i % 200);
  };
  // A call into Go blocks SIGCHLD on this thread for its time, so that the kernel
  // hands the signal to a thread of Go.
  let storm = true;
  const calls = (async () => {
    while (storm) {
      for (let i = 0; i < 2000; i++) {
        addon.version();
      }
      await new Promise(setImmediate);
    }
  })();
  for (let i = 0; i < children; i += 10) {
    const batch = [];
    for (let j = i; j < i + 10; j++) {
      batch.push(ofNode(j), ofGo(j), ofGo(j));
    }
    await Promise.all(batch);
  }
  storm = false;
  await Promise.all([load, calls]);
  process.disconnect();
}
