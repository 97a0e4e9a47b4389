// A process with a session in a STATE ends in a WAY. Commands bear MARKER in
// their command line, and PROCESSES share a sandbox. With "terminate" the session is a Worker's, which its
// parent terminates.
import fs from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";
import { bwrap } from "../../../dist/index.js";

const [state, way, marker, appRoot, processes] = isMainThread ? process.argv.slice(2) : workerData;

/** Brings a session into the state and resolves to what goes on then. */
async function enter() {
  const backend = bwrap({ networkPolicy: "deny-all", processes });
  const handle = await backend.create({
    templateKey: null,
    sessionKey: marker,
    runtimeContext: { appRoot },
  });
  const { session } = handle;
  // What must end by itself for a natural end of the process.
  const seconds = way === "natural" ? "0.3" : "3000";
  const sleep = `exec -a ${marker} sleep ${seconds}`;
  switch (state) {
    case "open":
      return [];
    case "live": {
      // A background process lives on; nothing is under way.
      await session.run({ command: `(exec -a ${marker} sleep 3000) >/dev/null 2>&1 &` });
      return [];
    }
    case "running": {
      const run = session.run({ command: `touch started; ${sleep}` });
      while (!fs.readdirSync(appRoot, { recursive: true }).some((name) => name.endsWith("/started"))) {
        await delay(5);
      }
      return [run];
    }
    case "starting":
      // The end comes while sandboxes, or commands, are on their way.
      return Array.from({ length: 10 }, () => session.run({ command: `touch started; ${sleep}` }));
    case "streaming": {
      const limit = way === "natural" ? "| head -c 10000000" : "";
      const child = await session.spawn({ command: `exec -a ${marker} yes ${limit}` });
      const reader = child.stdout.getReader();
      await reader.read();
      const all = (async () => {
        while (!(await reader.read()).done);
      })();
      return [all, child.wait()];
    }
    case "stopped": {
      const run = session.run({ command: `exec -a ${marker} sleep 3000` }).catch(() => {});
      await session.run({ command: "true" });
      await handle.stop();
      await run;
      return [];
    }
  }
  throw new Error(`no state ${state}`);
}

const settled = (promises) => Promise.allSettled(promises);
if (way === "terminate" && isMainThread) {
  const worker = new Worker(new URL(import.meta.url), { workerData: process.argv.slice(2) });
  worker.once("message", () => {
    process.once("message", async () => {
      await worker.terminate();
      process.disconnect();
    });
    process.send("ready");
  });
} else {
  const going = await enter();
  if (!isMainThread) {
    parentPort.postMessage("ready");
    await delay(60_000);
  }
  process.once("message", () => {
    if (way === "exit") {
      process.exit(7);
    } else if (way === "throw") {
      setImmediate(() => {
        throw new Error("on purpose");
      });
    } else if (way === "natural") {
      process.disconnect();
    }
  });
  process.send("ready");
  await settled(going);
}
