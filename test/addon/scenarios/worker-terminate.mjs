// Workers are terminated: while replies are on their way to them ("late"), or
// while they load the addon ("early").
import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import { isMainThread, parentPort, Worker } from "node:worker_threads";
import { openAddon } from "../native.mjs";

const rounds = 30;

if (!isMainThread) {
  const { request } = openAddon();
  parentPort.postMessage("open");
  const flood = async () => {
    for (;;) {
      await request("testReplies", { count: 50, bytes: 8192 });
    }
  };
  await Promise.all(Array.from({ length: 8 }, flood));
} else {
  for (let round = 0; round < rounds; round++) {
    const workers = [0, 1].map(() => new Worker(new URL(import.meta.url)));
    const event = process.argv[2] === "early" ? "online" : "message";
    await Promise.all(workers.map((worker) => once(worker, event)));
    await delay(round);
    await Promise.all(workers.map((worker) => worker.terminate()));
  }
  process.disconnect();
}
