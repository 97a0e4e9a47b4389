// A sandbox that a Worker started, and the main thread uses too, survives the
// Worker. Once the last who uses it is gone it is ended.
import assert from "node:assert/strict";
import { once } from "node:events";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";
import { bwrap } from "../../../dist/index.js";

const appRoot = isMainThread ? process.argv[2] : workerData;
const open = () =>
  bwrap({ networkPolicy: "deny-all" }).create({
    templateKey: null,
    sessionKey: "shared",
    runtimeContext: { appRoot },
  });

const start = "sleep 3000 >/dev/null 2>&1 & echo $! >/tmp/pid";
const alive = 'kill -0 "$(cat /tmp/pid 2>/dev/null)" 2>/dev/null && echo alive || echo gone';

if (!isMainThread) {
  const { session } = await open();
  await session.run({ command: start });
  parentPort.postMessage("started");
  setInterval(() => {}, 1000);
} else {
  const worker = async () => {
    const worker = new Worker(new URL(import.meta.url), { workerData: appRoot });
    await once(worker, "message");
    return worker;
  };
  // Used by both: it survives.
  const first = await worker();
  const handle = await open();
  const run = async (command) => (await handle.session.run({ command })).stdout.trim();
  assert.equal(await run(alive), "alive");
  await first.terminate();
  for (let i = 0; i < 20; i++) {
    assert.equal(await run(alive), "alive");
  }
  await handle.stop();
  assert.equal(await run(alive), "gone");
  await handle.shutdown();
  // Used by the Worker alone: it ends with it.
  const second = await worker();
  await second.terminate();
  const again = await open();
  assert.equal((await again.session.run({ command: alive })).stdout.trim(), "gone");
  await again.shutdown();
  process.disconnect();
}
