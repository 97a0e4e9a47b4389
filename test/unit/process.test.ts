import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import { parseOptions } from "../../lib/options.ts";
import { createOperations, type SandboxOperations } from "../../lib/session.ts";
import { bytes, countedSignal, done, type Fake, fakeNative, readAll } from "./fake.ts";

function sessionOf(fake: Fake): SandboxOperations {
  return createOperations(fake.environment, fake.environment.adopt(7, undefined), parseOptions());
}

const turn = () => new Promise(setImmediate);

/** A core whose processes start, and end when the test answers their wait. */
const starting = {
  spawn: (received: { ok(reply: { process: number; pid: number }): void }) => received.ok({ process: 3, pid: 42 }),
  processKill: done,
  processRelease: done,
  processDiscard: done,
  processKeep: done,
  processEnd: done,
  cancel: done,
};

test("spawn: sends the command without run's limits, and returns an object of its own", async () => {
  const fake = fakeNative(starting);
  const process = await sessionOf(fake).spawn({ command: "x", workingDirectory: "/tmp" });
  const { env: _, ...request } = (fake.received[0]?.request ?? {}) as { env?: object };
  assert.deepEqual(request, { session: 7, command: "x", workingDirectory: "/tmp", maxProcesses: 64 });
  assert.equal(process.pid, 42);
  assert.deepEqual(Object.keys(process).toSorted(), ["kill", "pid", "stderr", "stdout", "wait"]);
});

test("wait: asks the core once, however often it is called, and later too", async () => {
  const fake = fakeNative(starting);
  const process = await sessionOf(fake).spawn({ command: "x" });
  const waits = [process.wait(), process.wait()];
  (await fake.next("processWait")).ok({ exitCode: 137 });
  for (const wait of [...waits, process.wait()]) assert.deepEqual(await wait, { exitCode: 137 });
  assert.equal(fake.names().filter((name) => name === "processWait").length, 1);
});

test("wait: a failure that nobody waits for is not an unhandled rejection", async (context) => {
  const unhandled = context.mock.fn();
  process.on("unhandledRejection", unhandled);
  context.after(() => process.off("unhandledRejection", unhandled));
  const fake = fakeNative(starting);
  const { wait } = await sessionOf(fake).spawn({ command: "x" });
  (await fake.next("processWait")).fail({ code: "ERR_CLOSED" });
  await turn();
  await turn();
  assert.equal(unhandled.mock.callCount(), 0);
  await assert.rejects(wait(), { code: "ERR_CLOSED" });
});

test("kill: may be called again, and does nothing after the exit", async () => {
  const fake = fakeNative(starting);
  const process = await sessionOf(fake).spawn({ command: "x" });
  await Promise.all([process.kill(), process.kill()]);
  const kills = () => fake.received.filter(({ name }) => name === "processKill");
  assert.deepEqual(kills()[0]?.request, { process: 3, aborted: false });
  (await fake.next("processWait")).ok({ exitCode: 137 });
  assert.deepEqual(await process.wait(), { exitCode: 137 });
  const before = kills().length;
  await process.kill();
  assert.equal(kills().length, before);
});

test("abort: ends the tree, and wait() rejects with the reason once it is gone", async () => {
  const { processKill: _, ...withoutKill } = starting;
  const fake = fakeNative(withoutKill);
  const { controller, signal, listeners } = countedSignal();
  const process = await sessionOf(fake).spawn({ command: "x", abortSignal: signal });
  assert.equal(listeners(), 1);
  let settled = false;
  const waited = process.wait();
  waited.catch(() => {}).finally(() => (settled = true));

  controller.abort("no more");
  const kill = await fake.next("processKill");
  assert.deepEqual(kill.request, { process: 3, aborted: true });
  (await fake.next("processWait")).ok({ exitCode: 137 });
  await turn();
  await turn();
  assert.equal(settled, false); // the main process is gone, its children are not yet
  kill.ok({});
  await assert.rejects(waited, (error) => error === "no more");
  await assert.rejects(process.wait(), (error) => error === "no more");
  assert.equal(listeners(), 0);
});

test("abort: after the exit it kills nothing, although nobody has waited", async () => {
  const fake = fakeNative(starting);
  const { controller, signal, listeners } = countedSignal();
  const process = await sessionOf(fake).spawn({ command: "x", abortSignal: signal });
  (await fake.next("processWait")).ok({ exitCode: 0 });
  await turn();
  await turn();
  assert.equal(listeners(), 0);
  controller.abort();
  await turn();
  assert.deepEqual(await process.wait(), { exitCode: 0 });
  assert.equal(fake.names().includes("processKill"), false);
});

test("abort: while starting, what was started is ended and released before the rejection", async () => {
  const { spawn: _, ...rest } = starting;
  const fake = fakeNative(rest);
  const { controller, signal, listeners } = countedSignal();
  const spawning = sessionOf(fake).spawn({ command: "x", abortSignal: signal });
  const spawn = await fake.next("spawn");
  controller.abort("stop");
  spawn.ok({ process: 3, pid: 42 });
  await assert.rejects(spawning, (error) => error === "stop");
  assert.deepEqual(fake.names(), ["spawn", "processKill", "processRelease"]);
  assert.equal(listeners(), 0);
});

test("abort: between the start's answer and the caller's next turn is not lost", async () => {
  const { spawn: _, ...rest } = starting;
  const { controller, signal, listeners } = countedSignal();
  const fake = fakeNative(rest);
  const session = sessionOf(fake);
  const spawning = session.spawn({ command: "x", abortSignal: signal });
  const spawn = await fake.next("spawn");
  // Removing the call's own listener is the last thing before the hand-over.
  const { removeEventListener } = signal;
  signal.removeEventListener = (...args: Parameters<typeof removeEventListener>) => {
    removeEventListener.apply(signal, args);
    controller.abort("stop");
  };
  spawn.ok({ process: 3, pid: 42 });
  const outcome = spawning.then((process) => process.wait());
  outcome.catch(() => {});
  (await fake.next("processWait")).ok({ exitCode: 137 });
  await assert.rejects(outcome, (error) => error === "stop");
  assert.ok(fake.names().includes("processKill"));
  assert.equal(listeners(), 0);
});

test("abort: no listener is left over 1,000 processes", async () => {
  const fake = fakeNative({ ...starting, processWait: (received) => received.ok({ exitCode: 0 }) });
  const { signal, listeners } = countedSignal();
  const session = sessionOf(fake);
  await Promise.all(
    Array.from({ length: 1000 }, async () => (await session.spawn({ command: "x", abortSignal: signal })).wait()),
  );
  assert.equal(listeners(), 0);
});

test("output: read on demand, one read at a time, each stream for itself", async () => {
  const fake = fakeNative(starting);
  const process = await sessionOf(fake).spawn({ command: "x" });
  await turn();
  assert.equal(fake.names().includes("processRead"), false);

  const [out, err] = [process.stdout.getReader(), process.stderr.getReader()];
  const reads = [out.read(), out.read()];
  const first = await fake.next("processRead");
  assert.deepEqual(first.request, { process: 3, stream: 1, maxBytes: 1 << 20 });
  await turn();
  assert.equal(fake.names().filter((name) => name === "processRead").length, 1);
  first.ok({ end: false }, bytes("a"));
  (await fake.next("processRead")).ok({ end: false }, Uint8Array.of(0xff));
  assert.deepEqual(await Promise.all(reads), [
    { done: false, value: bytes("a") },
    { done: false, value: Uint8Array.of(0xff) },
  ]);

  const error = err.read();
  const other = await fake.next("processRead");
  assert.deepEqual(other.request, { process: 3, stream: 2, maxBytes: 1 << 20 });
  other.ok({ end: true });
  assert.equal((await error).done, true);
});

test("output: cancelling one stream leaves the other", async () => {
  const parts = ["rest", ""];
  const fake = fakeNative({
    ...starting,
    processRead: (received) => {
      const part = parts.shift() ?? "";
      received.ok({ end: part === "" }, bytes(part));
    },
  });
  const process = await sessionOf(fake).spawn({ command: "x" });
  await process.stdout.cancel();
  assert.deepEqual(fake.received.at(-1)?.request, { process: 3, stream: 1 });
  assert.equal(await readAll(process.stderr), "rest");
});

test("output: cancelling while a read is under way drops what it brings", async () => {
  const fake = fakeNative(starting);
  const process = await sessionOf(fake).spawn({ command: "x" });
  const reader = process.stdout.getReader();
  const reading = reader.read();
  const read = await fake.next("processRead");
  await reader.cancel();
  read.ok({ end: false }, bytes("late"));
  assert.equal((await reading).done, true);
  await turn();
});

test("output: an empty answer that is not the end is asked again", async () => {
  let count = 0;
  const fake = fakeNative({
    ...starting,
    processRead: (received) => (++count < 3 ? received.ok({ end: false }) : received.ok({ end: true }, bytes("z"))),
  });
  const process = await sessionOf(fake).spawn({ command: "x" });
  assert.equal(await readAll(process.stdout), "z");
});

test("output: a failing read errors its stream only", async () => {
  const fake = fakeNative({
    ...starting,
    processRead: (received) =>
      received.request.stream === 1 ? received.fail({ code: "ERR_CLOSED" }) : received.ok({ end: true }),
  });
  const process = await sessionOf(fake).spawn({ command: "x" });
  await assert.rejects(readAll(process.stdout), { code: "ERR_CLOSED" });
  assert.equal(await readAll(process.stderr), "");
});

for (const stdin of [true, "pipe"] as const) {
  test(`stdin: ${JSON.stringify(stdin)} gives one that writes and ends`, async () => {
    const fake = fakeNative({ ...starting, processWrite: done });
    const process = await sessionOf(fake).spawn({ command: "cat", stdin });
    assert.deepEqual(Object.entries(fake.received[0]?.request ?? {}).at(-1), ["stdin", true]);
    const writer = process.stdin.getWriter();
    await writer.write(bytes("hello"));
    await writer.write(new Uint8Array());
    await writer.close();
    const sent = fake.received.filter(({ name }) => name === "processWrite" || name === "processEnd");
    assert.deepEqual(
      sent.map(({ name, data }) => [name, data]),
      [
        ["processWrite", bytes("hello")],
        ["processEnd", undefined],
      ],
    );
  });
}

test("stdin: not asked for there is none, and nonsense is refused", async () => {
  const fake = fakeNative(starting);
  assert.equal("stdin" in (await sessionOf(fake).spawn({ command: "x", stdin: false })), false);
  assert.equal("stdin" in (fake.received[0]?.request ?? {}), false);
  await assert.rejects(sessionOf(fake).spawn({ command: "x", stdin: "inherit" as "pipe" }), { op: "stdin" });
});

test("stdin: a reader that is gone and a wrong chunk error the stream and end it", async () => {
  const fake = fakeNative({ ...starting, processWrite: (received) => received.fail({ code: "EPIPE" }) });
  for (const [chunk, expected] of [
    [bytes("x"), { code: "EPIPE" }],
    ["x" as unknown as Uint8Array<ArrayBuffer>, { op: "stdin" }],
  ] as const) {
    const { stdin } = await sessionOf(fake).spawn({ command: "x", stdin: true });
    const writer = stdin.getWriter();
    writer.closed.catch(() => {});
    await assert.rejects(writer.write(chunk), expected);
    assert.equal(fake.names().at(-1), "processEnd");
  }
});

test("release: at once when the process is over and its output read", async () => {
  const fake = fakeNative({ ...starting, processRead: (received) => received.ok({ end: true }) });
  const process = await sessionOf(fake).spawn({ command: "x" });
  await Promise.all([readAll(process.stdout), readAll(process.stderr)]);
  assert.equal(fake.names().includes("processRelease"), false);
  (await fake.next("processWait")).ok({ exitCode: 0 });
  await process.wait();
  await process.wait();
  assert.equal(fake.names().filter((name) => name === "processRelease").length, 1);
});

// The collector may take a few rounds; a turn between them lets registries run.
async function collected(condition: () => boolean): Promise<boolean> {
  setFlagsFromString("--expose-gc");
  const gc = runInNewContext("gc") as () => void;
  for (let round = 0; round < 50 && !condition(); round++) {
    gc();
    await turn();
  }
  return condition();
}

test("release: a process that was dropped is given back although it runs and a signal lives", async () => {
  const fake = fakeNative(starting);
  const { signal } = countedSignal();
  const session = sessionOf(fake);
  await (async () => void (await session.spawn({ command: "x", abortSignal: signal })))();
  assert.ok(await collected(() => fake.names().includes("processRelease")));
  assert.equal(signal.aborted, false);
});

test("release: a stream alone keeps its process", async () => {
  const fake = fakeNative({ ...starting, processRead: (received) => received.ok({ end: true }, bytes("x")) });
  const session = sessionOf(fake);
  const stdout = await (async () => (await session.spawn({ command: "x" })).stdout)();
  assert.equal(await collected(() => fake.names().includes("processRelease")), false);
  assert.equal(await readAll(stdout), "x");
});

test("release: a file stream that was dropped is closed", async () => {
  const fake = fakeNative({
    fileOpen: (received) => received.ok({ missing: false, file: 5, size: 6 }),
    fileClose: done,
  });
  const session = sessionOf(fake);
  await (async () => void (await session.readFile({ path: "f" })))();
  assert.ok(await collected(() => fake.names().includes("fileClose")));
});
