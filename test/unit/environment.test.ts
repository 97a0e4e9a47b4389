import assert from "node:assert/strict";
import { test } from "node:test";

import { SandboxError } from "../../lib/errors.ts";
import { bytes, countedSignal, fakeNative } from "./fake.ts";

const request = { session: 7, path: "/workspace/a" };

test("calls: replies find their calls, whatever their order", async () => {
  const fake = fakeNative();
  const first = fake.environment.call("fileRead", { ...request, path: "/1" });
  const second = fake.environment.call("fileRead", { ...request, path: "/2" });
  const received = [await fake.next("fileRead"), await fake.next("fileRead")];
  received[1]?.ok({ missing: false }, bytes("two"));
  received[0]?.ok({ missing: true });
  assert.deepEqual(await second, { ok: { missing: false }, data: bytes("two") });
  assert.deepEqual(await first, { ok: { missing: true }, data: new Uint8Array() });
  assert.equal(new Set(fake.received.map(({ call }) => call)).size, 2);
  assert.ok(fake.received.every(({ call }) => call > 0));
});

test("calls: a signal aborted beforehand rejects with its reason, and the core hears nothing", async () => {
  const fake = fakeNative();
  const reason = new Error("enough");
  const call = fake.environment.call("fileRead", request, { signal: AbortSignal.abort(reason) });
  await assert.rejects(call, (error) => error === reason);
  assert.deepEqual(fake.received, []);
});

test("calls: an abort cancels, and rejects only once the core has answered", async () => {
  const fake = fakeNative({ cancel: (received) => received.ok({}) });
  const { controller, signal, listeners } = countedSignal();
  let settled = false;
  const call = fake.environment.call("run", { session: 7, command: "x", workingDirectory: "/", env: {} }, { signal });
  call.catch(() => {}).finally(() => (settled = true));
  const run = await fake.next("run");
  assert.equal(listeners(), 1);

  controller.abort("no more");
  const cancel = fake.received.find(({ name }) => name === "cancel");
  assert.deepEqual(cancel?.request, { target: run.call });
  await new Promise(setImmediate);
  await new Promise(setImmediate);
  assert.equal(settled, false);

  run.fail({ code: "ERR_ABORTED" });
  await assert.rejects(call, (error) => error === "no more");
  assert.equal(listeners(), 0);
});

test("calls: an abort that came too late is told as an abort, and what was made is undone first", async () => {
  const fake = fakeNative({ cancel: (received) => received.fail({ code: "ERR_INTERNAL" }) });
  const { controller, signal, listeners } = countedSignal();
  const undone: unknown[] = [];
  const call = fake.environment.call("fileCreate", request, {
    signal,
    undo: async (ok) => {
      await new Promise(setImmediate);
      undone.push(ok);
      throw new Error("must not be seen");
    },
  });
  const received = await fake.next("fileCreate");
  controller.abort();
  received.ok({ file: 9 });
  await assert.rejects(call, { name: "AbortError" });
  assert.deepEqual(undone, [{ file: 9 }]);
  assert.equal(listeners(), 0);
});

test("calls: after the answer a signal means nothing", async () => {
  const fake = fakeNative({ fileRead: (received) => received.ok({ missing: true }) });
  const { controller, signal, listeners } = countedSignal();
  await fake.environment.call("fileRead", request, { signal });
  assert.equal(listeners(), 0);
  controller.abort();
  assert.equal(fake.received.length, 1);
});

test("calls: no listener is left over 1,000 calls, whether they succeed or fail", async () => {
  let count = 0;
  const fake = fakeNative({
    fileRead: (received) => (++count % 2 ? received.ok({ missing: true }) : received.fail({ code: "EACCES" })),
  });
  const { signal, listeners } = countedSignal();
  const calls = Array.from({ length: 1000 }, () => fake.environment.call("fileRead", request, { signal }));
  assert.equal(listeners(), 1000);
  const results = await Promise.allSettled(calls);
  assert.equal(results.filter(({ status }) => status === "rejected").length, 500);
  assert.equal(listeners(), 0);
});

test("calls: an addon that refuses a call is a bug of ours, told as one", async () => {
  const fake = fakeNative({
    fileRead: () => {
      throw new TypeError("wrong type");
    },
  });
  const { signal, listeners } = countedSignal();
  await assert.rejects(fake.environment.call("fileRead", request, { signal }), (error: unknown) => {
    assert.ok(error instanceof SandboxError);
    assert.equal(error.code, "ERR_INTERNAL");
    assert.ok(error.cause instanceof TypeError);
    return true;
  });
  assert.equal(listeners(), 0);
});

test("events: each goes to its session's sink, with tags even when there are none", () => {
  const fake = fakeNative();
  const seen: string[] = [];
  const one = fake.environment.adopt(1, (event) => void seen.push(`one ${event.type} ${JSON.stringify(event.tags)}`));
  fake.environment.adopt(2, (event) => void seen.push(`two ${event.type}`));
  fake.environment.adopt(3, undefined);
  fake.event(1, { type: "generation.started" });
  fake.event(2, { type: "command.started" });
  fake.event(3, { type: "command.started" });
  fake.event(4, { type: "command.started" });
  fake.environment.forget(one);
  fake.event(1, { type: "cleanup.started" });
  assert.deepEqual(seen, ["one generation.started {}", "two command.started"]);
});

test("events: a sink that throws, rejects or returns nonsense changes nothing", async (context) => {
  const fake = fakeNative();
  const unhandled = context.mock.fn();
  process.on("unhandledRejection", unhandled);
  context.after(() => process.off("unhandledRejection", unhandled));
  const sinks = [
    () => {
      throw new Error("thrown");
    },
    () => Promise.reject(new Error("rejected")),
    () => ({
      // oxlint-disable-next-line unicorn/no-thenable -- that is the case
      then() {
        throw new Error("thenable");
      },
    }),
  ];
  for (const [index, sink] of sinks.entries()) {
    fake.environment.adopt(index + 1, sink as () => void);
    fake.event(index + 1, { type: "generation.started" });
  }
  await new Promise(setImmediate);
  await new Promise(setImmediate);
  assert.equal(unhandled.mock.callCount(), 0);
});

test("sessions: the same handle is the same session, with the newest sink", () => {
  const { environment, event } = fakeNative();
  const seen: string[] = [];
  const first = environment.adopt(1, () => void seen.push("old"));
  assert.equal(
    environment.adopt(1, () => void seen.push("new")),
    first,
  );
  event(1, { type: "generation.started" });
  assert.deepEqual(seen, ["new"]);
  environment.forget(first);
  assert.equal(first.closed, true);
  assert.notEqual(environment.adopt(1, undefined), first);
});
