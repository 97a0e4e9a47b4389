import assert from "node:assert/strict";
import { test } from "node:test";

import { createBackend } from "../../lib/eve/backend.ts";
import type { BwrapSandboxEvent } from "../../lib/events.ts";
import type { BwrapSandboxCreateOptions } from "../../lib/options.ts";
import type { SandboxSession } from "../../lib/session.ts";
import { done, type Fake, fakeNative, ran, sandbox } from "./fake.ts";

const runtimeContext = { appRoot: "/srv/app" };
const createInput = { templateKey: "tpl", sessionKey: "ses", runtimeContext };
const prewarmInput = { templateKey: "tpl", seedFiles: [], runtimeContext };
const created = (received: { ok(reply: { session: number; sessionId: string; strategy: string }): void }) =>
  received.ok({ session: 7, sessionId: "id", strategy: "existing" });
const begun = (received: { ok(reply: { reused: false; session: number }): void }) =>
  received.ok({ reused: false, session: 7 });
const lifecycle = {
  create: created,
  prewarmBegin: begun,
  prewarmCommit: done,
  prewarmAbort: done,
  sessionPolicy: done,
  sessionStop: done,
  sessionClose: done,
  sessionDelete: done,
  fileWrite: done,
};

const backendOf = (fake: Fake, options?: BwrapSandboxCreateOptions) => createBackend(options, () => fake.environment);

test("backend: is made without touching the core", () => {
  const backend = createBackend(undefined, () => assert.fail("connected"));
  assert.equal(backend.name, "bwrap");
});

test("backend: a core that cannot be loaded rejects, it does not throw", async () => {
  const backend = createBackend(undefined, () => {
    throw new Error("no addon");
  });
  await assert.rejects(backend.create(createInput), { message: "no addon" });
  await assert.rejects(backend.prewarm(prewarmInput), { message: "no addon" });
});

test("create: asks with the sandbox's shape, and no event unless somebody listens", async () => {
  const fake = fakeNative(lifecycle);
  await backendOf(fake).create({ ...createInput, templateKey: null, existingMetadata: {}, tags: { agent: "a" } });
  assert.deepEqual(fake.received[0]?.request, {
    sandbox,
    sessionKey: "ses",
    templateKey: null,
    networkPolicy: "allow-all",
    idleTimeoutMs: 900_000,
    maxLiveGenerations: 256,
    standby: true,
    tags: { agent: "a" },
  });
  const options: BwrapSandboxCreateOptions = {
    cacheDir: "/var/cache/x",
    bwrapPath: "/opt/bwrap",
    hidePaths: ["/srv/secret"],
    networkPolicy: "deny-all",
    templateRevision: "r1",
    onEvent: () => {},
  };
  await backendOf(fake, options).create(createInput);
  assert.deepEqual(fake.received[1]?.request, {
    sandbox: { ...sandbox, cacheDir: "/var/cache/x", bwrapPath: "/opt/bwrap", hidePaths: ["/srv/secret"] },
    sessionKey: "ses",
    templateKey: "tpl",
    templateRevision: "r1",
    networkPolicy: "deny-all",
    idleTimeoutMs: 900_000,
    maxLiveGenerations: 256,
    standby: true,
    events: true,
  });
});

test("create: a missing template is an error that eve knows by its members", async () => {
  const fake = fakeNative({ create: (received) => received.fail({ code: "ERR_TEMPLATE_NOT_FOUND" }) });
  await assert.rejects(backendOf(fake).create(createInput), (error: unknown) => {
    assert.ok(error instanceof Error);
    const { name, backendName, templateKey, cause } = error as Error & Record<string, unknown>;
    assert.deepEqual([name, backendName, templateKey], ["SandboxTemplateNotProvisionedError", "bwrap", "tpl"]);
    assert.equal((cause as { code: string }).code, "ERR_TEMPLATE_NOT_FOUND");
    return true;
  });
});

test("create: every other failure is told as it is", async () => {
  const fake = fakeNative({ create: (received) => received.fail({ code: "ERR_UNAVAILABLE", remedy: "apt install" }) });
  await assert.rejects(backendOf(fake).create(createInput), {
    name: "SandboxError",
    code: "ERR_UNAVAILABLE",
    remedy: "apt install",
  });
});

test("handle: its state is plain JSON", async () => {
  const handle = await backendOf(fakeNative(lifecycle)).create(createInput);
  const state = await handle.captureState();
  assert.deepEqual(state, { backendName: "bwrap", metadata: {}, sessionKey: "ses" });
  assert.deepEqual(JSON.parse(JSON.stringify(state)), state);
  assert.equal(handle.session.id, "ses");
});

test("handle: use() applies the policy before it resolves, and then gives the session", async () => {
  const { sessionPolicy: _, ...rest } = lifecycle;
  const fake = fakeNative(rest);
  const handle = await backendOf(fake).create(createInput);
  assert.equal(await handle.useSessionFn(), handle.session);
  assert.equal(await handle.useSessionFn({}), handle.session);
  assert.deepEqual(fake.names(), ["create"]);

  let resolved = false;
  const using = handle.useSessionFn({ networkPolicy: "deny-all" }).finally(() => (resolved = true));
  const policy = await fake.next("sessionPolicy");
  assert.deepEqual(policy.request, { session: 7, networkPolicy: "deny-all" });
  await new Promise(setImmediate);
  assert.equal(resolved, false);
  policy.ok({});
  assert.equal(await using, handle.session);

  await assert.rejects(handle.useSessionFn({ network: "x" } as object), {
    code: "ERR_INVALID_ARGUMENT",
    op: "network",
  });
  await assert.rejects(handle.useSessionFn({ networkPolicy: {} } as object), { code: "ERR_UNSUPPORTED" });
});

test("handle: after stop() the same session goes on", async () => {
  const fake = fakeNative({
    ...lifecycle,
    run: (received) => received.ok(ran),
  });
  const { session, stop } = await backendOf(fake).create(createInput);
  await stop();
  await stop();
  assert.equal((await session.run({ command: "true" })).exitCode, 0);
  assert.deepEqual(fake.names(), ["create", "sessionStop", "sessionStop", "run"]);
});

test("handle: shutdown() ends the session object, once, and create() opens it again", async () => {
  const fake = fakeNative(lifecycle);
  const backend = backendOf(fake);
  const handle = await backend.create(createInput);
  const earlier = await backend.create(createInput);
  await Promise.all([handle.shutdown(), handle.shutdown()]);
  await earlier.shutdown();
  await handle.stop();
  assert.deepEqual(fake.names(), ["create", "create", "sessionClose"]);
  await assert.rejects(handle.session.run({ command: "x" }), { code: "ERR_CLOSED" });
  await assert.rejects(earlier.session.run({ command: "x" }), { code: "ERR_CLOSED" });
  await assert.rejects(handle.delete(), { code: "ERR_CLOSED" });

  const again = await backend.create(createInput);
  await again.session.setNetworkPolicy("deny-all");
  assert.equal(fake.names().at(-1), "sessionPolicy");
});

test("handle: what stop, shutdown and delete fail with is told", async () => {
  const fake = fakeNative({
    create: created,
    sessionStop: (received) => received.fail({ code: "ERR_INTERNAL" }),
    sessionClose: (received) => received.fail({ code: "ERR_INTERNAL" }),
    sessionDelete: (received) => received.fail({ code: "ERR_IN_USE" }),
  });
  const handle = await backendOf(fake).create(createInput);
  await assert.rejects(handle.stop(), { code: "ERR_INTERNAL" });
  await assert.rejects(handle.delete(), { code: "ERR_IN_USE" });
  await assert.rejects(handle.shutdown(), { code: "ERR_INTERNAL" });
});

test("handle: delete() may be aborted beforehand, and twice is once more", async () => {
  const fake = fakeNative(lifecycle);
  const handle = await backendOf(fake).create(createInput);
  await assert.rejects(handle.delete({ abortSignal: AbortSignal.abort("no") }), (error) => error === "no");
  await handle.delete();
  await handle.delete();
  assert.deepEqual(fake.names(), ["create", "sessionDelete", "sessionDelete"]);
});

test("events: reach the sink until the session is shut down, the clean-up's included", async () => {
  const seen: string[] = [];
  const onEvent = (event: BwrapSandboxEvent) => void seen.push(event.type);
  const { sessionClose: _, ...rest } = lifecycle;
  const fake = fakeNative(rest);
  const handle = await backendOf(fake, { onEvent }).create(createInput);
  fake.event(7, { type: "generation.started" });
  const closing = handle.shutdown();
  const close = await fake.next("sessionClose");
  fake.event(7, { type: "cleanup.completed" });
  close.ok({});
  await closing;
  fake.event(7, { type: "generation.started" });
  assert.deepEqual(seen, ["generation.started", "cleanup.completed"]);
});

test("prewarm: a template that exists is not built again", async () => {
  const fake = fakeNative({ prewarmBegin: (received) => received.ok({ reused: true }) });
  const result = await backendOf(fake).prewarm({
    ...prewarmInput,
    seedFiles: [{ path: "a", content: "x" }],
    bootstrap: () => assert.fail("bootstrap ran"),
  });
  assert.deepEqual(result, { reused: true });
  assert.deepEqual(fake.received[0]?.request, {
    sandbox,
    templateKey: "tpl",
    networkPolicy: "allow-all",
    idleTimeoutMs: 900_000,
    maxLiveGenerations: 256,
    standby: true,
  });
});

test("prewarm: writes the seeds, home included, then bootstraps, then publishes", async () => {
  const fake = fakeNative({
    ...lifecycle,
    run: (received) => received.ok(ran),
  });
  const log: string[] = [];
  const result = await backendOf(fake, { networkPolicy: "deny-all" }).prewarm({
    ...prewarmInput,
    log: (line) => void log.push(line),
    seedFiles: [
      { path: "/workspace/seed.txt", content: Buffer.from([0, 255]) },
      { path: "$HOME/.agents/skills/demo/SKILL.md", content: "# demo" },
      { path: "$HOMES/x", content: "" },
    ],
    async bootstrap({ use }) {
      const session = await use({ networkPolicy: "allow-all" });
      assert.equal(session.id, "tpl");
      await session.run({ command: "make\nmore" });
    },
  });
  assert.deepEqual(result, { reused: false });
  assert.deepEqual(fake.names(), [
    "prewarmBegin",
    "fileWrite",
    "fileWrite",
    "fileWrite",
    "sessionPolicy",
    "run",
    "prewarmCommit",
  ]);
  assert.deepEqual(
    fake.received.slice(1, 4).map(({ request }) => (request as { path: string }).path),
    ["/workspace/seed.txt", "/workspace/.agents/skills/demo/SKILL.md", "/workspace/$HOMES/x"],
  );
  assert.deepEqual([...(fake.received[1]?.data ?? [])], [0, 255]);
  assert.deepEqual(log, ["write 3 seed files", "bootstrap run: make …"]);
});

const failures: Readonly<
  Record<string, { fake: Parameters<typeof fakeNative>[0]; bootstrap?: () => void; error: object }>
> = {
  "a seed that cannot be written": {
    fake: { ...lifecycle, fileWrite: (received) => received.fail({ code: "ENOSPC" }) },
    error: { code: "ENOSPC" },
  },
  "a bootstrap that throws": {
    fake: lifecycle,
    bootstrap: () => {
      throw new Error("author's");
    },
    error: { message: "author's" },
  },
  "a template that cannot be published": {
    fake: { ...lifecycle, prewarmCommit: (received) => received.fail({ code: "EXDEV" }) },
    error: { code: "EXDEV" },
  },
  "a staging that cannot even be thrown away": {
    fake: {
      ...lifecycle,
      prewarmCommit: (received) => received.fail({ code: "EIO" }),
      prewarmAbort: (received) => received.fail({ code: "ERR_BAD_HANDLE" }),
    },
    error: { code: "EIO" },
  },
};

for (const [name, { fake: handlers, bootstrap, error }] of Object.entries(failures)) {
  test(`prewarm: ${name} throws the staging away and tells the first failure`, async () => {
    const fake = fakeNative(handlers);
    const prewarming = backendOf(fake).prewarm({
      ...prewarmInput,
      seedFiles: [{ path: "a", content: "x" }],
      ...(bootstrap && { bootstrap }),
    });
    await assert.rejects(prewarming, error);
    assert.equal(fake.names().at(-1), "prewarmAbort");
  });
}

test("prewarm: a core that cannot begin has nothing to throw away", async () => {
  const fake = fakeNative({ prewarmBegin: (received) => received.fail({ code: "ERR_UNAVAILABLE" }) });
  await assert.rejects(backendOf(fake).prewarm(prewarmInput), { code: "ERR_UNAVAILABLE" });
  assert.deepEqual(fake.names(), ["prewarmBegin"]);
});

for (const [exitCode, fails] of [
  [0, false],
  [1, true],
  [2, false],
  [127, false],
] as const) {
  test(`prewarm: a bootstrap command that exits with ${exitCode} ${fails ? "fails it" : "is an answer"}`, async () => {
    const fake = fakeNative({
      ...lifecycle,
      run: (received) =>
        received.ok({ ...ran, exitCode, stdoutLength: 3, stdoutBytes: 3, stderrBytes: 4 }, Buffer.from("outoops")),
    });
    const prewarming = backendOf(fake).prewarm({
      ...prewarmInput,
      async bootstrap({ use }) {
        await (await use()).run({ command: "npm ci" });
      },
    });
    if (fails) await assert.rejects(prewarming, { message: "a command of bootstrap exited with 1: npm ci\noops" });
    else assert.deepEqual(await prewarming, { reused: false });
    assert.equal(fake.names().at(-1), fails ? "prewarmAbort" : "prewarmCommit");
  });
}

test("prewarm: the bootstrap's session is closed before the template is published", async () => {
  const { prewarmCommit: _, ...rest } = lifecycle;
  const fake = fakeNative(rest);
  const sessions: SandboxSession[] = [];
  const prewarming = backendOf(fake).prewarm({
    ...prewarmInput,
    async bootstrap({ use }) {
      sessions.push(await use());
    },
  });
  const commit = await fake.next("prewarmCommit");
  assert.ok(sessions[0]);
  await assert.rejects(sessions[0].run({ command: "x" }), { code: "ERR_CLOSED" });
  commit.ok({});
  await prewarming;
});
