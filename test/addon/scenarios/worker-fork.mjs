// A Worker starts a process that asks to die with the thread that forked it, and
// is terminated. The process must live on.
import fs from "node:fs";
import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import { isMainThread, parentPort, Worker } from "node:worker_threads";
import assert from "node:assert/strict";
import { openAddon } from "../native.mjs";

if (!isMainThread) {
  const { request } = openAddon();
  const argv = ["/usr/bin/setpriv", "--pdeathsig", "KILL", "/bin/sleep", "300"];
  const reply = await request("testSpawn", { argv });
  parentPort.postMessage(reply.ok.pid);
  setInterval(() => {}, 1000);
} else {
  const running = (pid) => {
    try {
      return fs.readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1][0] !== "Z";
    } catch {
      return false;
    }
  };
  const { request } = openAddon(); // keeps the library's environment count above 0
  const worker = new Worker(new URL(import.meta.url));
  const [pid] = await once(worker, "message");
  // The request is sent once setpriv has become sleep.
  while (!fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").startsWith("/bin/sleep")) {
    await delay(5);
  }
  await worker.terminate();
  await request("testSpawn", { argv: ["/bin/true"], wait: true });
  await delay(200);
  const survived = running(pid);
  if (survived) {
    process.kill(pid, "SIGKILL");
  }
  assert.ok(survived, "the process died with the Worker");
  process.disconnect();
}
