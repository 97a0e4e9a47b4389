import assert from "node:assert/strict";
import { test } from "node:test";

import type { ConnectionProvider, HandleProvider } from "../../lib/eve/provider/eve.ts";
import { defineBwrapSandbox } from "../../lib/eve/provider/provider.ts";
import { stateProtocolVersion } from "../../lib/eve/provider/records.ts";
import type { SandboxOperations } from "../../lib/session.ts";
import { done, type Fake, fakeNative, type Received, sandbox } from "./fake.ts";

/** A module of eve 0.64 to 0.80: what it defines is the definition itself. */
const older = { defineSandboxProvider: (definition: object) => definition };

class SandboxSessionGoneError extends Error {}
class SandboxTemplateNotProvisionedError extends Error {
  readonly facts: object;

  constructor(facts: object) {
    super("not provisioned");
    this.facts = facts;
  }
}

/** A module of eve from 0.81. */
const newer = { ...older, SandboxSessionGoneError, SandboxTemplateNotProvisionedError };

const define = <Provider>(module: object, connect: Parameters<typeof defineBwrapSandbox>[1]) =>
  defineBwrapSandbox(module as typeof older, connect) as unknown as {
    readonly name: string;
    readonly stateProtocolVersion: number;
    environment(options?: unknown): Provider;
  };
const handles = (fake: Fake, options?: object) =>
  define<HandleProvider<SandboxOperations>>(older, () => fake.environment).environment(options);
const connections = (fake: Fake, options: object = {}) =>
  define<ConnectionProvider>(newer, () => fake.environment).environment(options);

const appRoot = "/srv/app";
const handleContext = {
  host: { resolveProjectPath: (path: string) => `${appRoot}/${path}` },
  storagePath: `${appRoot}/.eve/sandbox-cache`,
  session: { id: "wrun_1" },
};
const connectionContext = {
  kind: "session",
  session: { id: "wrun_1" },
  resolveProjectPath: (path: string) => `${appRoot}/${path}`,
} as const;
const artifact = { version: 1, template: "tpl", revision: null };
const state = { version: 1, name: "eve-sbx-ses-bwrap-wrun_1" };

const created = (strategy: string) => (received: Received<"create">) =>
  received.ok({ session: 7, sessionId: "id", strategy });
const answering = (strategy = "copy") =>
  fakeNative({
    create: created(strategy),
    sessionPolicy: done,
    sessionStop: done,
    sessionClose: done,
    sessionDelete: done,
    cachePrune: (received) => received.ok({ removed: 0, inUse: 0, failed: 0 }),
  });

test("provider: is defined under its name, and made without touching the core", () => {
  for (const module of [older, newer]) {
    const provider = define(module, () => assert.fail("connected"));
    assert.equal(provider.name, "bwrap");
    assert.equal(provider.stateProtocolVersion, stateProtocolVersion);
    provider.environment(undefined);
    provider.environment({});
  }
});

test("provider: the options are bwrap()'s and two more, and anything else is refused", () => {
  const { environment } = define(older, () => assert.fail("connected"));
  const all = { env: {}, networkPolicy: "deny-all", hidePaths: [], cacheDir: "/c", templateRevision: "1" };
  environment({ ...all, runTimeoutMs: null, onEvent: () => {}, prepare: () => {}, toolSessionMaxAgeMs: null });
  for (const [options, field] of [
    [{ network: "deny-all" }, "network"],
    [{ prepare: "npm ci" }, "prepare"],
    [{ toolSessionMaxAgeMs: 0 }, "toolSessionMaxAgeMs"],
    [{ toolSessionMaxAgeMs: "7d" }, "toolSessionMaxAgeMs"],
    [{ cacheDir: "relative" }, "cacheDir"],
    [null, "options"],
  ] as const) {
    assert.throws(() => environment(options), { code: "ERR_INVALID_ARGUMENT", op: field });
  }
});

test("start: asks by the session's id, for the artifact's template and revision", async () => {
  const fake = answering();
  const started = await handles(fake).start(handleContext, undefined, artifact);
  await handles(fake, { templateRevision: "now", env: { A: "1" } }).start(handleContext, undefined, {
    ...artifact,
    revision: "then",
  });
  assert.deepEqual(started.state, state);
  const request = {
    sandbox,
    networkPolicy: "allow-all",
    idleTimeoutMs: 900_000,
    maxLiveGenerations: 256,
    standby: true,
    sessionKey: state.name,
    tags: { sessionId: "wrun_1" },
  };
  assert.deepEqual(fake.received[0]?.request, { ...request, templateKey: "tpl" });
  assert.deepEqual(fake.received[1]?.request, { ...request, templateKey: "tpl", templateRevision: "then" });
  assert.deepEqual(fake.names(), ["create", "create"]);
});

test("start: open's policy goes with the request that makes the sandbox, and no other request follows", async () => {
  for (const strategy of ["empty", "reflink", "existing"]) {
    for (const start of [
      (fake: Fake, open?: object) => handles(fake).start(handleContext, open, artifact),
      (fake: Fake, open?: object) => connections(fake).start(connectionContext, open, artifact),
    ]) {
      const fake = answering(strategy);
      await start(fake, { networkPolicy: "deny-all" });
      await start(fake, {});
      assert.deepEqual(fake.names(), ["create", "create"]);
      const [first, second] = fake.received.map(({ request }) => request as Received<"create">["request"]);
      assert.equal(first?.networkPolicy, "allow-all");
      assert.equal(first?.initialNetworkPolicy, "deny-all");
      assert.equal("initialNetworkPolicy" in second!, false);
    }
  }
});

test("start: what eve kept for another provider is refused before the core is asked", async () => {
  const fake = fakeNative();
  for (const other of [null, "tpl", {}, { version: 2, template: "t", revision: null }, { version: 1, template: "" }]) {
    await assert.rejects(handles(fake).start(handleContext, undefined, other), { op: "artifact" });
    await assert.rejects(connections(fake).start(connectionContext, undefined, other), { op: "artifact" });
  }
  for (const other of [null, {}, { version: 2, name: "s" }, { version: 1, name: "" }]) {
    await assert.rejects(handles(fake).resume(handleContext, artifact, other), { op: "state" });
    await assert.rejects(connections(fake).resume(connectionContext, artifact, other), { op: "state" });
  }
  assert.deepEqual(fake.names(), []);
});

test("a missing template: eve's class where it exports one, else the members that it looks at", async () => {
  const missing = () => fakeNative({ create: (received) => received.fail({ code: "ERR_TEMPLATE_NOT_FOUND" }) });
  await assert.rejects(handles(missing()).start(handleContext, undefined, artifact), {
    name: "SandboxTemplateNotProvisionedError",
    code: "ERR_TEMPLATE_NOT_FOUND",
    providerName: "bwrap",
    templateKey: "tpl",
  });
  await assert.rejects(connections(missing()).start(connectionContext, undefined, artifact), (error: unknown) => {
    assert.ok(error instanceof SandboxTemplateNotProvisionedError);
    const reason = "It is not in this server's cacheDir.";
    assert.deepEqual(error.facts, { providerName: "bwrap", reason, templateKey: "tpl" });
    assert.equal((error.cause as { code: string }).code, "ERR_TEMPLATE_NOT_FOUND");
    return true;
  });
});

test("resume: opens what is there and nothing else", async () => {
  for (const resume of [
    (fake: Fake) => handles(fake).resume(handleContext, artifact, state),
    (fake: Fake) => connections(fake).resume(connectionContext, artifact, state),
  ]) {
    const fake = answering("existing");
    await resume(fake);
    assert.deepEqual(fake.received[0]?.request, {
      sandbox,
      networkPolicy: "allow-all",
      idleTimeoutMs: 900_000,
      maxLiveGenerations: 256,
      standby: true,
      sessionKey: state.name,
      templateKey: null,
      existingOnly: true,
    });
    assert.deepEqual(fake.names(), ["create"]);
  }
});

test("resume: a sandbox that is gone is told by eve's class where there is one; an outage as it is", async () => {
  const failing = (code: string) => fakeNative({ create: (received) => received.fail({ code }) });
  await assert.rejects(handles(failing("ERR_SESSION_GONE")).resume(handleContext, artifact, state), {
    name: "SandboxError",
    code: "ERR_SESSION_GONE",
  });
  const gone = connections(failing("ERR_SESSION_GONE")).resume(connectionContext, artifact, state);
  await assert.rejects(gone, SandboxSessionGoneError);
  const outage = { name: "SandboxError", code: "ERR_UNAVAILABLE" };
  await assert.rejects(handles(failing("ERR_UNAVAILABLE")).resume(handleContext, artifact, state), outage);
  await assert.rejects(connections(failing("ERR_UNAVAILABLE")).resume(connectionContext, artifact, state), outage);
});

test("handle: its session has own members only, and both names of each hook lead to one thing", async () => {
  const fake = answering();
  const { handle } = await handles(fake).start(handleContext, undefined, artifact);
  assert.equal(Object.getPrototypeOf(handle.sandbox), Object.prototype);
  assert.ok(Object.keys(handle.sandbox).includes("setNetworkPolicy"));
  await handle.onSessionStop();
  await handle.onSandboxStop();
  await handle.onSessionDelete();
  await handle.onSandboxDelete({ abortSignal: new AbortController().signal });
  await handle.onRuntimeShutdown();
  await handle.onRuntimeShutdown();
  assert.deepEqual(fake.names().slice(1), [
    "sessionStop",
    "sessionStop",
    "sessionDelete",
    "sessionDelete",
    "sessionClose",
  ]);
});

test("the end of a session: removes what is there; what is gone is success, another failure is not", async () => {
  for (const end of [
    (fake: Fake) => handles(fake).onSessionEnd(handleContext, artifact, state, { reason: "completed" }),
    (fake: Fake) => connections(fake).onSessionEnd(connectionContext, state, { reason: "expired" }),
    (fake: Fake) => connections(fake).onSessionEnd(connectionContext, null, { reason: "deleted" }),
  ]) {
    const fake = answering("existing");
    await end(fake);
    assert.deepEqual(fake.names(), ["create", "sessionDelete"]);
    const { sessionKey, existingOnly } = fake.received[0]!.request as Received<"create">["request"];
    assert.deepEqual({ sessionKey, existingOnly }, { sessionKey: state.name, existingOnly: true });
    await end(fakeNative({ create: (received) => received.fail({ code: "ERR_SESSION_GONE" }) }));
    const busy = fakeNative({
      create: created("existing"),
      sessionDelete: (received) => received.fail({ code: "ERR_IN_USE" }),
    });
    await assert.rejects(end(busy), { code: "ERR_IN_USE" });
  }
});

test("connection: the members that are documented, with our one extension", async () => {
  const { connection } = await connections(answering()).start(connectionContext, undefined, artifact);
  assert.deepEqual(Object.keys(connection).toSorted(), [
    "close",
    "extensions",
    "readFile",
    "removePath",
    "spawn",
    "stop",
    "writeFiles",
  ]);
  assert.deepEqual(Object.keys(connection.extensions), ["setNetworkPolicy"]);
  assert.equal(Object.getPrototypeOf(connection.extensions), Object.prototype);
});

test("connection: closing one leaves the sandbox to those that lead to it as well", async () => {
  const fake = answering("existing");
  const { start, resume } = connections(fake);
  const { connection } = await start(connectionContext, undefined, artifact);
  await connection.close();
  await (await resume(connectionContext, artifact, state)).close();
  assert.deepEqual(fake.names(), ["create", "create"]);
});

test("keyed calls: old sandboxes go first, this one bears the tag, and its last link ends its commands", async () => {
  const fake = answering("existing");
  const { start } = connections(fake, { cacheDir: "/c", toolSessionMaxAgeMs: 1000 });
  const context = { ...connectionContext, kind: "tool-session" } as const;
  const [one, two] = [await start(context, undefined, artifact), await start(context, undefined, artifact)];
  assert.deepEqual(fake.names(), ["cachePrune", "create", "cachePrune", "create"]);
  const tag = { name: "kind", value: "tool-session" };
  assert.deepEqual(fake.received[0]?.request, { cacheDir: "/c", tag, maxAgeMs: 1000 });
  const { tags } = fake.received[1]!.request as Received<"create">["request"];
  assert.deepEqual(tags, { sessionId: "wrun_1", kind: "tool-session" });
  await one.connection.close();
  await one.connection.close();
  assert.equal(fake.names().includes("sessionStop"), false);
  await two.connection.close();
  assert.deepEqual(fake.names().slice(4), ["sessionStop"]);
});

test("keyed calls: null keeps for ever, seven days are the default, and a failed clean-up costs no call", async () => {
  const context = { ...connectionContext, kind: "tool-session" } as const;
  const kept = answering();
  await connections(kept, { toolSessionMaxAgeMs: null }).start(context, undefined, artifact);
  assert.deepEqual(kept.names(), ["create"]);
  const failing = fakeNative({
    create: created("copy"),
    cachePrune: (received) => received.fail({ code: "EACCES" }),
  });
  await connections(failing).start(context, undefined, artifact);
  assert.equal((failing.received[0]!.request as Received<"cachePrune">["request"]).maxAgeMs, 604_800_000);
  assert.deepEqual(failing.names(), ["cachePrune", "create"]);
});

test("prepare: a populate that fails leaves no template and throws what it threw", async () => {
  const fake = fakeNative({
    prewarmBegin: (received) => received.ok({ reused: false, session: 7 }),
    prewarmAbort: done,
  });
  const failure = new Error("apt is down");
  const identities: object[] = [];
  const context = {
    isEmpty: false,
    resolveProjectPath: connectionContext.resolveProjectPath,
    templateKey: (identity: object) => `${identities.push(identity)}`,
    populate: async () => {
      throw failure;
    },
  };
  await assert.rejects(connections(fake, { env: { B: undefined, A: "1" } }).prepare(context), failure);
  assert.deepEqual(fake.names(), ["prewarmBegin", "prewarmAbort"]);
  assert.deepEqual(identities, [
    {
      version: 1,
      env: [
        ["A", "1"],
        ["B", null],
      ],
    },
  ]);
});
