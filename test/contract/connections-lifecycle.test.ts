// What eve from 0.81 does with a provider around its sessions, as documented.

import assert from "node:assert/strict";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";

import { defineBwrapSandbox } from "../../lib/eve/provider/provider.ts";
import { connect } from "../../lib/native.ts";
import type { SandboxOperations } from "../../lib/session.ts";
import factory, { provider } from "./connections.ts";
import * as eve from "./harness.ts";
import { nap, sandboxProcesses } from "./host.ts";
import { code, inPlace, output as outputOf, type Place } from "./place.ts";

const output = (session: eve.Session, command: string) => outputOf(session as unknown as SandboxOperations, command);

const workspace = { "deep/seed": "seed\n", bytes: Uint8Array.of(0, 255) };
const skills = { "greet/SKILL.md": "Say hello.\n" };

/** An agent of a place: its servers and what is written down outlive each other. */
function agentIn(place: Place, options: Record<string, unknown> & { readonly prepare?: eve.Prepare } = {}) {
  const records: eve.Records = new Map();
  const environment = provider.environment({ standby: false, cacheDir: place.cacheDir, ...options });
  const appRoot = place.directory;
  return {
    environment,
    records,
    build: (agent: Partial<eve.Agent> = {}) => eve.build(environment, { appRoot, source: "r1", ...agent }),
    serve(artifact: string, deployment: Partial<eve.Deployment> = {}) {
      const server = eve.serve({ environment, artifact, appRoot, records, ...deployment });
      place.defer(() => server.shutdown());
      return server;
    },
  };
}

const empty = JSON.stringify({ version: 1, template: null, revision: null });
const sessionsIn = (place: Place) => readdirSync(join(place.cacheDir, "sessions"));
const isAlone = async (session: eve.Session) =>
  (await session.run({ command: "test $(tail -n +3 /proc/net/dev | wc -l) = 1" })).exitCode === 0;

const cases: Readonly<Record<string, (place: Place) => Promise<void>>> = {
  "files are in place before prepare, which runs once": async (place) => {
    const seen: string[] = [];
    const { build, serve } = agentIn(place, {
      async prepare(sandbox) {
        seen.push(await output(sandbox, "cat deep/seed $HOME/.agents/skills/greet/SKILL.md; od -An -tx1 bytes"));
        await sandbox.setNetworkPolicy("deny-all");
        await sandbox.writeTextFile({ path: "made", content: "made" });
      },
    });
    const artifact = await build({ workspace, skills });
    assert.equal(await build({ workspace, skills }), artifact);
    assert.deepEqual(seen, ["seed\nSay hello.\n 00 ff\n"]);
    assert.notEqual(await build({ workspace }), artifact);
    assert.notEqual(await build({ workspace, skills, source: "r2" }), artifact);
    const sandbox = await serve(artifact).access("s");
    assert.equal(await output(sandbox, "cat made deep/seed"), "madeseed\n");
    assert.equal(await sandbox.readTextFile({ path: "/workspace/.agents/skills/greet/SKILL.md" }), "Say hello.\n");
    // The network of the build is no property of the template.
    assert.equal(await isAlone(sandbox), false);
  },

  "without anything to bake in there is no template": async (place) => {
    const { build, serve } = agentIn(place);
    assert.equal(await build(), empty);
    assert.deepEqual(readdirSync(place.directory), []);
    assert.equal(await output(await serve(empty).access("s"), "ls -A"), "");
  },

  "the cache is where the backend object has it": async (place) => {
    const { build, serve } = agentIn(place, { cacheDir: undefined });
    const artifact = await build({ workspace });
    assert.equal(await output(await serve(artifact).access("s"), "cat deep/seed"), "seed\n");
    assert.equal(readdirSync(join(place.directory, ".eve/sandbox-cache/bwrap/sessions")).length, 1);
  },

  "a template that is gone is missed, by eve's own class": async (place) => {
    const { build, serve } = agentIn(place);
    const artifact = await build({ workspace });
    rmSync(join(place.cacheDir, "templates"), { recursive: true });
    await assert.rejects(serve(artifact).access("s"), (error: unknown) => {
      assert.ok(error instanceof eve.SandboxTemplateNotProvisionedError);
      assert.equal(error.providerName, "bwrap");
      assert.equal(error.templateKey, JSON.parse(artifact).template);
      return true;
    });
  },

  "stop() keeps the files, and the next access resumes, in this server or another": async (place) => {
    const { serve } = agentIn(place);
    const server = serve(empty);
    const sandbox = await server.access("s");
    const job = nap();
    await output(sandbox, `echo kept > file; echo gone > /tmp/file; ${job.command} & true`);
    await sandbox.stop();
    await sandbox.stop();
    assert.equal(job.alive(), 0);
    assert.deepEqual(sandboxProcesses(), []);
    for (const later of [server, serve(empty)]) {
      assert.equal(await output(await later.access("s"), "cat file; ls /tmp/file 2>/dev/null; true"), "kept\n");
    }
  },

  "every step resumes into the same sandbox, by the current artifact": async (place) => {
    const { build, serve } = agentIn(place);
    const server = serve(await build({ workspace }));
    const job = nap();
    await output(await server.access("s"), `echo own > deep/seed; ${job.command} & true`);
    const redeployed = serve(await build({ workspace, source: "r2" }));
    for (const each of [server, server, redeployed]) {
      each.endStep("s");
      assert.equal(await output(await each.access("s"), "cat deep/seed"), "own\n");
    }
    assert.equal(job.alive(), 1);
  },

  "delete() removes the files; the same id begins afresh": async (place) => {
    const { build, serve } = agentIn(place);
    const server = serve(await build({ workspace }));
    const sandbox = await server.access("s");
    await output(sandbox, "echo own > own");
    await sandbox.delete({ abortSignal: new AbortController().signal });
    assert.deepEqual(sessionsIn(place), []);
    assert.equal(await output(await server.access("s"), "ls -A"), "bytes\ndeep\n");
    assert.deepEqual(server.logged, []);
  },

  "a delete() that was aborted beforehand rejects with its reason and removes nothing": async (place) => {
    const { serve } = agentIn(place);
    const server = serve(empty);
    const sandbox = await server.access("s");
    const reason = new Error("changed my mind");
    await assert.rejects(sandbox.delete({ abortSignal: AbortSignal.abort(reason) }), reason);
    assert.equal(sessionsIn(place).length, 1);
  },

  "a sandbox that is gone is made anew by the selector; other failures surface": async (place) => {
    const { serve, records } = agentIn(place);
    const server = serve(empty);
    await (await server.access("s")).writeTextFile({ path: "lost", content: "" });
    server.endStep("s");
    rmSync(join(place.cacheDir, "sessions"), { recursive: true });
    assert.equal(await output(await server.access("s"), "ls -A"), "");
    const record = records.get("s")!;
    records.set("other", { ...record, state: JSON.stringify({ version: 9 }) });
    await assert.rejects(serve(empty).access("other"), code("ERR_INVALID_ARGUMENT"));
    // A state of another protocol never reaches resume.
    records.set("other", { ...record, protocol: record.protocol + 1, state: '{"version":9}' });
    assert.equal(await output(await serve(empty).access("other"), "echo here"), "here\n");
  },

  "every end of a session removes its sandbox, with a state or without, once and again": async (place) => {
    const { environment, serve } = agentIn(place);
    for (const reason of ["completed", "expired", "failed"] as const) {
      const server = serve(empty);
      const job = nap();
      await output(await server.access(reason), `${job.command} & true`);
      await server.end(reason, reason);
      assert.equal(job.alive(), 0);
      assert.deepEqual(sessionsIn(place), []);
      await serve(empty).end(reason, reason);
      assert.deepEqual(server.logged, []);
    }
    // Nothing was written down, and another process than the one that made it ends it.
    const context = { kind: "session", session: { id: "s" }, resolveProjectPath: () => place.directory } as const;
    await environment.implementation.start(context, undefined, JSON.parse(empty));
    await environment.implementation.onSessionEnd(context, null, { reason: "deleted" });
    await environment.implementation.onSessionEnd(context, null, { reason: "deleted" });
    assert.deepEqual(sessionsIn(place), []);
  },

  "a subagent shares files and processes, opens first or later, and never ends the sandbox": async (place) => {
    const { environment, serve } = agentIn(place);
    const server = serve(empty, { selector: () => environment.open({ networkPolicy: "deny-all" }) });
    const child = await server.accessAsChild("parent");
    const job = nap();
    await output(child, `echo child > file; ${job.command} & echo $! > /tmp/job`);
    const parent = await server.access("parent");
    assert.equal(await output(parent, "cat file; kill -0 $(cat /tmp/job) && echo alive"), "child\nalive\n");
    await assert.rejects(child.delete(), /owning session/);
    assert.equal(await output(parent, "cat file"), "child\n");
    // It was there already: what the parent opens it with comes too late.
    assert.equal(await isAlone(parent), false);
    await server.end("parent", "completed");
    assert.equal(job.alive(), 0);
    assert.deepEqual(sessionsIn(place), []);
  },

  "open's network counts when the sandbox is made, and is remembered": async (place) => {
    const { environment, serve } = agentIn(place);
    const open = (networkPolicy: string) => ({ selector: () => environment.open({ networkPolicy }) });
    assert.equal(await isAlone(await serve(empty, open("deny-all")).access("s")), true);
    assert.equal(await isAlone(await serve(empty, { ...open("allow-all"), records: new Map() }).access("s")), true);
    const resumed = await serve(empty, open("allow-all")).access("s");
    assert.equal(await isAlone(resumed), true);
    await resumed.setNetworkPolicy("allow-all");
    assert.equal(await isAlone(resumed), false);
    await assert.rejects(resumed.setNetworkPolicy("none"), code("ERR_UNSUPPORTED"));
  },

  "an option of open() that is unknown, or cannot be enforced, is refused and makes nothing": async (place) => {
    const { environment, serve } = agentIn(place);
    const opening = (options: object) => serve(empty, { selector: () => environment.open(options) }).access("s");
    await assert.rejects(opening({ network: "deny-all" }), code("ERR_INVALID_ARGUMENT"));
    await assert.rejects(opening({ networkPolicy: { allow: [] } }), code("ERR_UNSUPPORTED"));
    assert.deepEqual(readdirSync(place.directory), []);
  },

  "a batch of files is written in its order, as text, bytes and streams": async (place) => {
    const { serve } = agentIn(place);
    const sandbox = await serve(empty).access("s");
    await sandbox.writeFiles({
      files: [
        { path: "a/b/text", content: "first" },
        { path: "bytes", content: Uint8Array.of(0, 255) },
        { path: "/tmp/stream", content: new Blob(["streamed"]).stream() },
        { path: "a/b/text", content: "last" },
      ],
    });
    assert.equal(await output(sandbox, "cat a/b/text /tmp/stream; od -An -tx1 bytes"), "laststreamed 00 ff\n");
    await assert.rejects(
      sandbox.writeFiles({ files: [{ path: "/etc/passwd", content: "" }] }),
      (error: Error & { code?: unknown }) => error.code === "EROFS" || error.code === "EACCES",
    );
  },

  "a keyed tool call keeps files between calls, and no process once nobody is in it": async (place) => {
    const { serve } = agentIn(place);
    const server = serve(empty);
    const job = nap();
    await server.invokeTool("k", async (sandbox) => {
      await output(sandbox, `echo kept > file; ${job.command} & true`);
      // A second call to the same sandbox ends first.
      await serve(empty).invokeTool("k", async (other) => {
        assert.equal(await output(other, "cat file"), "kept\n");
      });
      assert.equal(job.alive(), 1);
    });
    assert.equal(job.alive(), 0);
    assert.deepEqual(sandboxProcesses(), []);
    await server.invokeTool("k", async (sandbox) => assert.equal(await output(sandbox, "cat file"), "kept\n"));
    await server.invokeTool("other", async (sandbox) => assert.equal(await output(sandbox, "ls -A"), ""));
    assert.equal(sessionsIn(place).length, 2);
    assert.deepEqual(server.logged, []);
  },

  "a tool call without a key leaves nothing": async (place) => {
    const { serve } = agentIn(place);
    await serve(empty).invokeTool(undefined, async (sandbox) => void (await output(sandbox, "echo x > file")));
    assert.deepEqual(sessionsIn(place), []);
    assert.deepEqual(sandboxProcesses(), []);
  },

  "sandboxes of keyed calls go when nobody has used them for long enough, others stay": async (place) => {
    const aged = agentIn(place, { toolSessionMaxAgeMs: 3_600_000 });
    const server = aged.serve(empty);
    const write = (content: string) => async (sandbox: eve.Session) =>
      await sandbox.writeTextFile({ path: "f", content });
    await server.invokeTool("old", write("old"));
    await server.invokeTool("young", write("young"));
    await (await server.access("session")).writeTextFile({ path: "f", content: "session" });
    setLastUse(place, "old", -7_200_000);
    setLastUse(place, "session", -7_200_000);

    await agentIn(place, { toolSessionMaxAgeMs: null }).serve(empty).invokeTool("new", write("new"));
    assert.equal(sessionsIn(place).length, 4);
    await server.invokeTool("new", async (sandbox) => {
      assert.equal(await sandbox.readTextFile({ path: "f" }), "new");
    });
    assert.equal(sessionsIn(place).length, 3);
    await server.invokeTool("old", async (sandbox) => assert.equal(await output(sandbox, "ls -A"), ""));
    await server.invokeTool("young", async (sandbox) => assert.equal(await output(sandbox, "cat f"), "young"));
    assert.equal(await (await server.access("session")).readTextFile({ path: "f" }), "session");
  },

  "a keyed call's own sandbox that has become too old begins anew": async (place) => {
    const server = agentIn(place, { toolSessionMaxAgeMs: 1 }).serve(empty);
    await server.invokeTool("k", async (sandbox) => void (await output(sandbox, "echo x > file")));
    await setTimeout(20);
    await server.invokeTool("k", async (sandbox) => assert.equal(await output(sandbox, "ls -A"), ""));
  },

  "the end of the server leaves no process and logs nothing": async (place) => {
    const { serve } = agentIn(place);
    const server = serve(empty);
    const job = nap();
    await output(await server.access("a"), `${job.command} & true`);
    await output(await server.access("b"), `setsid ${job.command} & true`);
    await server.shutdown();
    assert.deepEqual(sandboxProcesses(), []);
    assert.deepEqual(server.logged, []);
    assert.equal(await output(await serve(empty).access("a"), "echo on"), "on\n");
  },

  "the generation is told apart by what the module exports": async () => {
    const environmentOf = (module: object) =>
      (
        defineBwrapSandbox(module as never, connect) as unknown as ReturnType<typeof eve.defineSandboxProvider>
      ).environment({}).implementation;
    const { defineSandboxProvider } = eve;
    assert.equal("toolSessions" in environmentOf(eve), true);
    assert.equal("toolSessions" in environmentOf({ defineSandboxProvider }), false);
  },
};

/** Moves a session's last use, as the passing of time would. */
function setLastUse({ cacheDir }: Place, sessionKeyEnd: string, byMs: number): void {
  const directory = join(cacheDir, "metadata/sessions");
  mkdirSync(directory, { recursive: true });
  const found = readdirSync(directory).filter((name) => {
    const path = join(directory, name);
    const metadata = JSON.parse(readFileSync(path, "utf8")) as { tags?: { sessionId?: string }; lastUsedAt: string };
    if (!metadata.tags?.sessionId?.endsWith(sessionKeyEnd)) return false;
    metadata.lastUsedAt = new Date(Date.now() + byMs).toISOString();
    writeFileSync(path, JSON.stringify(metadata));
    return true;
  });
  assert.equal(found.length, 1);
}

for (const [name, play] of Object.entries(cases)) {
  test(`connections: ${name}`, { timeout: 120_000 }, () => inPlace(factory, play));
}
