import assert from "node:assert/strict";
import { test } from "node:test";

import { capturedOutput, SandboxError } from "../../lib/errors.ts";
import { type BwrapSandboxCreateOptions, parseOptions } from "../../lib/options.ts";
import { createOperations, type SandboxOperations } from "../../lib/session.ts";
import { bytes, countedSignal, done, type Fake, fakeNative, ran, readAll } from "./fake.ts";

function sessionOf(fake: Fake, options?: BwrapSandboxCreateOptions): SandboxOperations {
  return createOperations(fake.environment, fake.environment.adopt(7, undefined), parseOptions(options));
}

delete process.env["TZ"];

test("session: every member is its own and needs no this", async () => {
  const fake = fakeNative({
    run: (received) => received.ok(ran),
    fileRead: (received) => received.ok({ missing: true }),
  });
  const session = sessionOf(fake);
  assert.equal(Object.getPrototypeOf(session), Object.prototype);
  assert.deepEqual(Object.keys(session).toSorted(), [
    "readBinaryFile",
    "readFile",
    "readTextFile",
    "removePath",
    "resolvePath",
    "run",
    "setNetworkPolicy",
    "spawn",
    "writeBinaryFile",
    "writeFile",
    "writeTextFile",
  ]);
  const { run, readTextFile, resolvePath } = { ...session };
  assert.equal(resolvePath("a"), "/workspace/a");
  assert.equal((await run({ command: "true" })).exitCode, 0);
  assert.equal(await readTextFile({ path: "a" }), null);
});

test("paths: relative ones begin in the workspace, and the kernel resolves the rest", () => {
  const { resolvePath } = sessionOf(fakeNative());
  for (const [path, expected] of [
    ["a/b", "/workspace/a/b"],
    ["./a", "/workspace/a"],
    [".//./a", "/workspace/a"],
    ["../etc/hostname", "/workspace/../etc/hostname"],
    ["a/../b", "/workspace/a/../b"],
    [".hidden", "/workspace/.hidden"],
    [".", "/workspace"],
    ["./", "/workspace"],
    ["", "/workspace"],
    ["/tmp/x", "/tmp/x"],
    ["/workspace/../etc", "/workspace/../etc"],
    ["-n a\nb ", "/workspace/-n a\nb "],
  ] as const) {
    assert.equal(resolvePath(path), expected);
  }
  assert.throws(() => resolvePath("a\0b"), { code: "ERR_INVALID_ARGUMENT", op: "path" });
  assert.throws(() => resolvePath(undefined as unknown as string), { code: "ERR_INVALID_ARGUMENT", op: "path" });
});

test("run: sends the command, its directory, limits and the variables of options and call", async () => {
  const fake = fakeNative({ run: (received) => received.ok(ran) });
  const session = sessionOf(fake, { env: { A: "option", B: "option", LANG: undefined } });
  await session.run({
    command: "echo",
    env: { B: "call", HOME: undefined, AI_AGENT: "me", __proto__: "x" },
    workingDirectory: "sub",
  });
  assert.deepEqual(fake.received[0]?.request, {
    session: 7,
    command: "echo",
    workingDirectory: "/workspace/sub",
    env: { A: "option", B: "call", LANG: null, HOME: null, AI_AGENT: "me" },
    maxProcesses: 64,
    timeoutMs: 600_000,
    maxOutputBytes: 16_777_216,
  });
});

test("run: without limits sends none, and nothing of this process's environment", async () => {
  const fake = fakeNative({ run: (received) => received.ok(ran) });
  const session = sessionOf(fake, { runTimeoutMs: null, maxConcurrentProcesses: null, maxOutputBytes: null });
  await session.run({ command: "x" });
  assert.deepEqual(fake.received[0]?.request, {
    session: 7,
    command: "x",
    workingDirectory: "/workspace",
    env: {},
  });
});

test("commands: what run() has no use for is refused, undefined is let through", async () => {
  const fake = fakeNative({ run: (received) => received.ok(ran) });
  const { run } = sessionOf(fake);
  for (const [name, value] of [
    ["stdin", "pipe"],
    ["pty", true],
    ["timeoutMs", 5],
  ] as const) {
    await assert.rejects(run({ command: "x", [name]: value } as { command: string }), {
      code: "ERR_INVALID_ARGUMENT",
      op: name,
    });
    assert.equal((await run({ command: "x", [name]: undefined } as { command: string })).exitCode, 0);
  }
});

test("commands: queue false is told with each of them", async () => {
  const fake = fakeNative({ run: (received) => received.ok(ran) });
  for (const [queue, noQueue] of [
    [false, true],
    [true, undefined],
    [undefined, undefined],
  ] as const) {
    await sessionOf(fake, { queue }).run({ command: "x" });
    assert.equal((fake.received.at(-1)!.request as { noQueue?: true }).noQueue, noQueue);
  }
});

test("commands: bring the time zone that this process has at that moment", async (t) => {
  t.after(() => delete process.env["TZ"]);
  const fake = fakeNative({ run: (received) => received.ok(ran) });
  const session = sessionOf(fake);
  for (const zone of ["Asia/Tokyo", "", undefined]) {
    if (zone === undefined) delete process.env["TZ"];
    else process.env["TZ"] = zone;
    await session.run({ command: "x" });
    assert.equal((fake.received.at(-1)!.request as { timeZone?: string }).timeZone, zone);
  }
});

test("run: output is split, and what is not UTF-8 is replaced", async () => {
  const output = Buffer.concat([bytes("€"), Uint8Array.of(0xff), bytes("oops")]);
  const fake = fakeNative({
    run: (received) => received.ok({ ...ran, exitCode: 3, stdoutLength: 4, stdoutBytes: 4, stderrBytes: 4 }, output),
  });
  assert.deepEqual(await sessionOf(fake).run({ command: "x" }), { exitCode: 3, stdout: "€\ufffd", stderr: "oops" });
});

test("run: a limit rejects with what was captured", async () => {
  const fake = fakeNative({
    run: (received) =>
      received.fail(
        { code: "ERR_TIMEOUT" },
        { ...ran, stdoutLength: 7, stdoutBytes: 7, durationMs: 700 },
        bytes("partial"),
      ),
  });
  await assert.rejects(sessionOf(fake).run({ command: "x" }), (error: unknown) => {
    assert.ok(error instanceof SandboxError);
    assert.deepEqual([error.code, error.stdout, error.stderr, error.durationMs], ["ERR_TIMEOUT", "partial", "", 700]);
    assert.equal("error" in error || "stdoutLength" in error, false);
    return true;
  });
});

test("run: what an aborted command had written is found by the signal's reason", async () => {
  for (const reason of [new Error("enough"), { any: "value" }, () => {}, "a text", undefined, null]) {
    const controller = new AbortController();
    const fake = fakeNative({
      run: () => setImmediate(() => controller.abort(reason)),
      cancel: (received) => {
        received.ok({});
        const { target } = received.request;
        const run = fake.received.find(({ call }) => call === target)!;
        const facts = {
          ...ran,
          stdoutLength: 3,
          stdoutBytes: 900,
          stdoutTruncated: true,
          stderrBytes: 2,
          durationMs: 70,
        };
        run.fail({ code: "ERR_ABORTED" }, facts, bytes("out!!"));
      },
    });
    const running = sessionOf(fake).run({ command: "x", abortSignal: controller.signal });
    const error = await running.then(
      () => assert.fail("it did not reject"),
      (error: unknown) => error,
    );
    assert.equal(error, controller.signal.reason);
    const captured = capturedOutput(error);
    if (typeof error === "string" || error === null) {
      assert.equal(captured, undefined);
      continue;
    }
    const { code, stdout, stderr, stdoutBytes, stderrBytes, stdoutTruncated, stderrTruncated, durationMs } =
      captured as SandboxError;
    assert.deepEqual([code, stdout, stderr, durationMs], ["ERR_ABORTED", "out", "!!", 70]);
    assert.deepEqual([stdoutBytes, stderrBytes, stdoutTruncated, stderrTruncated], [900, 2, true, false]);
    assert.equal(capturedOutput(captured), captured);
  }
  assert.equal(capturedOutput(new Error("another")), undefined);
});

const badCommands: Readonly<Record<string, { call: unknown; op: string }>> = {
  nothing: { call: undefined, op: "options" },
  "a text": { call: "echo", op: "options" },
  "a misspelt option": { call: { command: "a", cwd: "/tmp" }, op: "cwd" },
  "a signal that is none": { call: { command: "a", abortSignal: true }, op: "abortSignal" },
  "a directory that is no text": { call: { command: "a", workingDirectory: 7 }, op: "workingDirectory" },
  "a value that is no text": { call: { command: "a", env: { X: null } }, op: "env.X" },
  "a name with an equals sign": { call: { command: "a", env: { "X=Y": "" } }, op: "env" },
  "variables that are a list": { call: { command: "a", env: ["X"] }, op: "env" },
  "no command": { call: {}, op: "command" },
  "a NUL in the command": { call: { command: "a\0" }, op: "command" },
  "a NUL in the directory": { call: { command: "a", workingDirectory: "\0" }, op: "workingDirectory" },
  "a variable without a name": { call: { command: "a", env: { "": "" } }, op: "env" },
  "a NUL in a value": { call: { command: "a", env: { X: "\0" } }, op: "env.X" },
};

for (const [name, { call, op }] of Object.entries(badCommands)) {
  test(`commands: ${name} is rejected before anything starts`, async () => {
    const fake = fakeNative();
    const session = sessionOf(fake);
    await assert.rejects(session.run(call as { command: string }), { code: "ERR_INVALID_ARGUMENT", op });
    await assert.rejects(session.spawn(call as { command: string }), { code: "ERR_INVALID_ARGUMENT", op });
    assert.deepEqual(fake.received, []);
  });
}

test("read: what is missing is null for all three readers", async () => {
  const fake = fakeNative({
    fileRead: (received) => received.ok({ missing: true }),
    fileOpen: (received) => received.ok({ missing: true }),
  });
  const session = sessionOf(fake);
  assert.equal(await session.readTextFile({ path: "a" }), null);
  assert.equal(await session.readTextFile({ path: "a", startLine: 2 }), null);
  assert.equal(await session.readBinaryFile({ path: "a" }), null);
  assert.equal(await session.readFile({ path: "a" }), null);
});

test("read: what is unreadable rejects before a stream is handed out", async () => {
  const fake = fakeNative({
    fileRead: (received) => received.fail({ code: "EISDIR", path: "/workspace/d" }),
    fileOpen: (received) => received.fail({ code: "EISDIR", path: "/workspace/d" }),
  });
  const session = sessionOf(fake);
  for (const read of [session.readTextFile, session.readBinaryFile, session.readFile]) {
    await assert.rejects(read({ path: "d" }), { code: "EISDIR", path: "/workspace/d" });
  }
});

test("read: text is decoded, and cut to lines", async () => {
  const fake = fakeNative({ fileRead: (received) => received.ok({ missing: false }, bytes("a\r\nb\nc\n")) });
  const { readTextFile, readBinaryFile } = sessionOf(fake);
  assert.equal(await readTextFile({ path: "f" }), "a\r\nb\nc\n");
  assert.equal(await readTextFile({ path: "f", startLine: 1, endLine: 1 }), "a\r\n");
  assert.equal(await readTextFile({ path: "f", encoding: "hex" }), "610d0a620a630a");
  assert.deepEqual(await readBinaryFile({ path: "f" }), bytes("a\r\nb\nc\n"));
  const before = fake.received.length;
  await assert.rejects(readTextFile({ path: "f", startLine: 0 }), RangeError);
  await assert.rejects(readTextFile({ path: "f", encoding: "utf-9" }), { code: "ERR_INVALID_ARGUMENT" });
  assert.equal(fake.received.length, before);
});

test("read: an empty file is an empty text, not a missing one", async () => {
  const fake = fakeNative({ fileRead: (received) => received.ok({ missing: false }) });
  assert.equal(await sessionOf(fake).readTextFile({ path: "f" }), "");
  assert.deepEqual(await sessionOf(fake).readBinaryFile({ path: "f" }), new Uint8Array());
});

test("write: text and bytes go out at once", async () => {
  const fake = fakeNative({ fileWrite: done });
  const session = sessionOf(fake);
  await session.writeTextFile({ path: "a/b", content: "€" });
  await session.writeTextFile({ path: "a/b", content: "€", encoding: "utf16le" });
  await session.writeBinaryFile({ path: "/tmp/x", content: Uint8Array.of(0, 1, 2).subarray(1) });
  assert.deepEqual(
    fake.received.map(({ request, data }) => [request, [...(data ?? [])]]),
    [
      [{ session: 7, path: "/workspace/a/b" }, [0xe2, 0x82, 0xac]],
      [{ session: 7, path: "/workspace/a/b" }, [0xac, 0x20]],
      [{ session: 7, path: "/tmp/x" }, [1, 2]],
    ],
  );
  await assert.rejects(session.writeBinaryFile({ path: "a", content: "x" as unknown as Uint8Array }), {
    op: "content",
  });
  await assert.rejects(session.writeTextFile({ path: "a", content: 1 as unknown as string }), { op: "content" });
  assert.equal(fake.received.length, 3);
});

test("remove: says what may be removed", async () => {
  const fake = fakeNative({ fileRemove: done });
  const session = sessionOf(fake);
  await session.removePath({ path: "a" });
  await session.removePath({ path: "b", recursive: true, force: true });
  assert.deepEqual(
    fake.received.map(({ request }) => request),
    [
      { session: 7, path: "/workspace/a", recursive: false, force: false },
      { session: 7, path: "/workspace/b", recursive: true, force: true },
    ],
  );
});

test("policy: only what can be enforced goes out", async () => {
  const fake = fakeNative({ sessionPolicy: done });
  const { setNetworkPolicy } = sessionOf(fake);
  await setNetworkPolicy("deny-all");
  assert.deepEqual(fake.received[0]?.request, { session: 7, networkPolicy: "deny-all" });
  const granular = { allow: { "example.com": [] } } as unknown as "deny-all";
  await assert.rejects(setNetworkPolicy(granular), { code: "ERR_UNSUPPORTED", op: "networkPolicy" });
  assert.equal(fake.received.length, 1);
});

test("abort: every method refuses a signal that is aborted beforehand", async () => {
  const fake = fakeNative();
  const session = sessionOf(fake);
  const reason = new Error("before");
  const abortSignal = AbortSignal.abort(reason);
  const sent: unknown[] = [];
  const content = new ReadableStream<Uint8Array>({ cancel: (why) => void sent.push(why) });
  for (const call of [
    session.run({ command: "x", abortSignal }),
    session.spawn({ command: "x", abortSignal }),
    session.readFile({ path: "x", abortSignal }),
    session.readBinaryFile({ path: "x", abortSignal }),
    session.readTextFile({ path: "x", abortSignal }),
    session.writeFile({ path: "x", content, abortSignal }),
    session.writeBinaryFile({ path: "x", content: new Uint8Array(), abortSignal }),
    session.writeTextFile({ path: "x", content: "", abortSignal }),
    session.removePath({ path: "x", abortSignal }),
  ]) {
    await assert.rejects(call, (error) => error === reason);
  }
  assert.deepEqual(fake.received, []);
  assert.deepEqual(sent, [reason]);
});

test("session: closed, it refuses everything without asking the core", async () => {
  const fake = fakeNative();
  const open = fake.environment.adopt(7, undefined);
  const session = createOperations(fake.environment, open, parseOptions());
  fake.environment.forget(open);
  for (const call of [
    session.run({ command: "x" }),
    session.spawn({ command: "x" }),
    session.readTextFile({ path: "x" }),
    session.writeTextFile({ path: "x", content: "" }),
    session.setNetworkPolicy("deny-all"),
  ]) {
    await assert.rejects(call, { code: "ERR_CLOSED" });
  }
  assert.deepEqual(fake.received, []);
});

// Streams of files.

test("file streams: nothing is read before it is asked for, then part by part to the end", async () => {
  const parts = ["one", "two", ""];
  const fake = fakeNative({
    fileOpen: (received) => received.ok({ missing: false, file: 5, size: 6 }),
    fileNext: (received) => {
      const part = parts.shift() ?? "";
      received.ok({ end: part === "" }, bytes(part));
    },
    fileClose: done,
  });
  const stream = await sessionOf(fake).readFile({ path: "f" });
  assert.ok(stream);
  await new Promise(setImmediate);
  assert.deepEqual(fake.names(), ["fileOpen"]);
  assert.equal(await readAll(stream), "onetwo");
  assert.deepEqual(fake.names(), ["fileOpen", "fileNext", "fileNext", "fileNext", "fileClose"]);
  assert.deepEqual(fake.received[1]?.request, { file: 5, maxBytes: 1 << 20 });
});

test("file streams: cancelling closes the file, a failing read closes it and errors", async () => {
  const fake = fakeNative({
    fileOpen: (received) => received.ok({ missing: false, file: 5, size: 6 }),
    fileNext: (received) => received.fail({ code: "EIO" }),
    fileClose: done,
  });
  const session = sessionOf(fake);
  await (await session.readFile({ path: "f" }))?.cancel();
  assert.deepEqual(fake.names(), ["fileOpen", "fileClose"]);
  const stream = await session.readFile({ path: "f" });
  assert.ok(stream);
  await assert.rejects(readAll(stream), { code: "EIO" });
  assert.deepEqual(fake.names().slice(2), ["fileOpen", "fileNext", "fileClose"]);
});

test("file streams: a signal ends them, and leaves no listener while nothing is read", async () => {
  const { controller, signal, listeners } = countedSignal();
  const fake = fakeNative({
    fileOpen: (received) => received.ok({ missing: false, file: 5, size: 6 }),
    fileNext: (received) => received.ok({ end: false }, bytes("x")),
    fileClose: done,
  });
  const stream = await sessionOf(fake).readFile({ path: "f", abortSignal: signal });
  const reader = stream?.getReader();
  await reader?.read();
  assert.equal(listeners(), 0);
  controller.abort("stop");
  await assert.rejects(reader?.read() ?? Promise.resolve(), (error) => error === "stop");
  assert.equal(fake.names().at(-1), "fileClose");
});

test("file streams: opened although aborted, the file is closed", async () => {
  const { controller, signal } = countedSignal();
  const fake = fakeNative({ cancel: done, fileClose: done });
  const opening = sessionOf(fake).readFile({ path: "f", abortSignal: signal });
  const open = await fake.next("fileOpen");
  controller.abort("stop");
  open.ok({ missing: false, file: 5, size: 6 });
  await assert.rejects(opening, (error) => error === "stop");
  assert.deepEqual(fake.names(), ["fileOpen", "fileClose"]);
});

// Streams to files.

function streamOf(...chunks: unknown[]): ReadableStream<Uint8Array> {
  return ReadableStream.from(chunks) as ReadableStream<Uint8Array>;
}

const writing = {
  fileCreate: (received: { ok(reply: { file: number }): void }) => received.ok({ file: 5 }),
  fileClose: done,
};

test("writeFile: parts are appended in order and committed", async () => {
  const fake = fakeNative({ ...writing, fileAppend: done, fileCommit: done });
  const { signal, listeners } = countedSignal();
  await sessionOf(fake).writeFile({
    path: "f",
    content: streamOf(bytes("a"), new Uint8Array(), bytes("b")),
    abortSignal: signal,
  });
  assert.deepEqual(fake.names(), ["fileCreate", "fileAppend", "fileAppend", "fileCommit"]);
  assert.deepEqual(fake.received[1]?.data, bytes("a"));
  assert.equal(listeners(), 0);
});

test("writeFile: the source is not asked for more than is written", async () => {
  const fake = fakeNative({ ...writing, fileCommit: done });
  let pulled = 0;
  const content = new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        if (++pulled > 3) controller.close();
        else controller.enqueue(bytes("x"));
      },
    },
    { highWaterMark: 0 },
  );
  const writingDone = sessionOf(fake).writeFile({ path: "f", content });
  for (let part = 1; part <= 3; part++) {
    const append = await fake.next("fileAppend");
    await new Promise(setImmediate);
    assert.equal(pulled, part);
    append.ok({});
  }
  await writingDone;
});

test("writeFile: a stream that fails, or gives something else, drops the new content", async () => {
  const fake = fakeNative({ ...writing, fileAppend: done });
  const session = sessionOf(fake);
  const broken = new Error("source broke");
  const content = new ReadableStream<Uint8Array>({
    pull(controller) {
      controller.error(broken);
    },
  });
  await assert.rejects(session.writeFile({ path: "f", content }), (error) => error === broken);
  await assert.rejects(session.writeFile({ path: "f", content: streamOf("text") }), { op: "content" });
  assert.deepEqual(fake.names(), ["fileCreate", "fileClose", "fileCreate", "fileClose"]);
  await assert.rejects(session.writeFile({ path: "f", content: "x" as unknown as ReadableStream }), { op: "content" });
});

test("writeFile: a full disk cancels the source", async () => {
  const fake = fakeNative({ ...writing, fileAppend: (received) => received.fail({ code: "ENOSPC" }) });
  const reasons: unknown[] = [];
  const content = new ReadableStream<Uint8Array>({
    pull: (controller) => controller.enqueue(bytes("x")),
    cancel: (reason) => void reasons.push((reason as { code: string }).code),
  });
  await assert.rejects(sessionOf(fake).writeFile({ path: "f", content }), { code: "ENOSPC" });
  assert.deepEqual(reasons, ["ENOSPC"]);
  assert.equal(fake.names().at(-1), "fileClose");
});

test("writeFile: an abort ends it even while the source gives nothing and does not let go", async () => {
  const fake = fakeNative(writing);
  const { controller, signal, listeners } = countedSignal();
  const content = new ReadableStream<Uint8Array>({
    pull: () => new Promise(() => {}),
    cancel: () => new Promise(() => {}),
  });
  const call = sessionOf(fake).writeFile({ path: "f", content, abortSignal: signal });
  setImmediate(() => setImmediate(() => controller.abort("stop")));
  await assert.rejects(call, (error) => error === "stop");
  assert.deepEqual(fake.names(), ["fileCreate", "fileClose"]);
  assert.equal(listeners(), 0);
});

test("writeFile: what cannot be created cancels the source, and a failing commit is told", async () => {
  const refused = fakeNative({ fileCreate: (received) => received.fail({ code: "EISDIR" }) });
  const reasons: unknown[] = [];
  const content = new ReadableStream<Uint8Array>({ cancel: (reason) => void reasons.push(reason) });
  await assert.rejects(sessionOf(refused).writeFile({ path: "d", content }), { code: "EISDIR" });
  assert.equal(reasons.length, 1);

  const full = fakeNative({ ...writing, fileCommit: (received) => received.fail({ code: "EDQUOT" }) });
  await assert.rejects(sessionOf(full).writeFile({ path: "f", content: streamOf() }), { code: "EDQUOT" });
  // The core has taken the handle back.
  assert.deepEqual(full.names(), ["fileCreate", "fileCommit"]);
});
