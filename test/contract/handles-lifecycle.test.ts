// What eve 0.64 to 0.80 do with a provider around its sessions.

import assert from "node:assert/strict";
import { readdirSync, rmSync, watch } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import type { Artifact, Handle } from "../../lib/eve/provider/eve.ts";
import type { SandboxOperations } from "../../lib/session.ts";
import factory, { handles } from "./handles.ts";
import { descriptors, nap, program, sandboxProcesses } from "./host.ts";
import { code, inPlace, output, type Place } from "./place.ts";

const empty: Artifact = { version: 1, template: null, revision: null };
const seeds = [
  { path: "/workspace/deep/seed", content: "seed\n" },
  { path: "/workspace/bytes", content: Uint8Array.of(0, 255) },
  { path: "$HOME/.agents/skills/greet/SKILL.md", content: "Say hello.\n" },
];

/** The provider of a place, its handles ended with it. */
function providerIn(place: Place) {
  const eve = handles({ standby: false, cacheDir: place.cacheDir });
  const adopt = (handle: Handle<SandboxOperations>) => {
    place.defer(() => handle.onRuntimeShutdown());
    return handle;
  };
  return {
    ...eve,
    async start(id: string, open?: object, artifact = empty, options = {}) {
      const { handle, state } = await eve.implementation(options).start(eve.context(id), open, artifact);
      assert.deepEqual(JSON.parse(JSON.stringify(state)), state);
      return { ...adopt(handle), state };
    },
    async resume(id: string, state: unknown, artifact = empty) {
      return adopt(await eve.implementation().resume(eve.context(id), artifact, state));
    },
  };
}

const isAlone = async (sandbox: SandboxOperations) =>
  (await sandbox.run({ command: "test $(tail -n +3 /proc/net/dev | wc -l) = 1" })).exitCode === 0;

const cases: Readonly<Record<string, (place: Place) => Promise<void>>> = {
  "without files and without prepare there is no template": async (place) => {
    const { implementation, prepareContext, start } = providerIn(place);
    const artifact = await implementation().prepare(prepareContext("r1"));
    assert.deepEqual(artifact, empty);
    assert.deepEqual(readdirSync(place.directory), []);
    assert.equal(await output((await start("s", undefined, artifact)).sandbox, "ls -A"), "");
  },

  "files are in place before prepare, which runs once; the artifact is JSON": async (place) => {
    const { implementation, prepareContext, start } = providerIn(place);
    const seen: string[] = [];
    const prepare = async (sandbox: SandboxOperations) => {
      seen.push(await output(sandbox, "cat deep/seed $HOME/.agents/skills/greet/SKILL.md; od -An -tx1 bytes"));
      await output(sandbox, "cp deep/seed made");
    };
    const told: string[] = [];
    const context = { ...prepareContext("r1", seeds), log: (line: string) => told.push(line) };
    const artifact = await implementation({ prepare }).prepare(context);
    assert.deepEqual(JSON.parse(JSON.stringify(artifact)), artifact);
    assert.deepEqual(await implementation({ prepare }).prepare(context), artifact);
    assert.deepEqual(seen, ["seed\nSay hello.\n 00 ff\n"]);
    assert.match(told.join("\n"), /^writing 3 [^]*\nprepare run: [^]*\nreusing template "[^"]+"$/);
    const { sandbox } = await start("s", undefined, artifact);
    assert.equal(await output(sandbox, "cat made"), "seed\n");
    assert.equal(await sandbox.readTextFile({ path: "/workspace/.agents/skills/greet/SKILL.md" }), "Say hello.\n");
  },

  "another sandbox file, another variable, another prepare: another template; a limit is none": async (place) => {
    const { implementation, prepareContext } = providerIn(place);
    const key = async (revision: string, options = {}) =>
      (await implementation(options).prepare(prepareContext(revision, seeds))).template;
    const keys = await Promise.all([
      key("r1"),
      key("r2"),
      key("r1", { env: { A: "1" } }),
      key("r1", { env: { A: undefined } }),
      key("r1", { prepare: () => {} }),
    ]);
    assert.equal(new Set(keys).size, 5);
    assert.equal(await key("r1", { maxOutputBytes: null, networkPolicy: "deny-all" }), keys[0]);
  },

  "a template that is gone is built again by prepare, and missed by start": async (place) => {
    const { implementation, prepareContext, start } = providerIn(place);
    const context = prepareContext("r1", seeds);
    const artifact = await implementation().prepare(context);
    rmSync(join(place.cacheDir, "templates"), { recursive: true });
    await assert.rejects(start("s", undefined, artifact), {
      name: "SandboxTemplateNotProvisionedError",
      providerName: "bwrap",
      templateKey: artifact.template!,
    });
    assert.deepEqual(await implementation().prepare(context), artifact);
    assert.equal(await output((await start("s", undefined, artifact)).sandbox, "cat deep/seed"), "seed\n");
  },

  "a prepare that fails leaves no template and throws what it threw": async (place) => {
    const { implementation, prepareContext } = providerIn(place);
    const failing = (command: string) => async (sandbox: SandboxOperations) => void (await sandbox.run({ command }));
    await assert.rejects(
      implementation({ prepare: failing("echo the reason >&2; exit 1") }).prepare(prepareContext("r")),
      /a command of prepare exited with 1[^]*the reason/,
    );
    assert.deepEqual(
      readdirSync(join(place.cacheDir, "templates")).filter((name) => !name.endsWith(".lock")),
      [],
    );
  },

  "the session's id alone decides which sandbox it is": async (place) => {
    const { implementation, prepareContext, start } = providerIn(place);
    const artifact = await implementation().prepare(prepareContext("r1", seeds));
    const first = await start("s", { networkPolicy: "deny-all" }, artifact);
    await output(first.sandbox, "echo own > deep/seed");
    const again = await start(
      "s",
      { networkPolicy: "allow-all" },
      { ...empty, template: "never built" },
      { env: { A: "1" } },
    );
    assert.deepEqual(again.state, first.state);
    assert.equal(await output(again.sandbox, "cat deep/seed; echo $A"), "own\n1\n");
    const other = await start("t", undefined, artifact);
    assert.equal(await output(other.sandbox, "cat deep/seed"), "seed\n");
  },

  "open's network counts when the sandbox is made, and is remembered": async (place) => {
    const { start, resume } = providerIn(place);
    const { state } = await start("s", { networkPolicy: "deny-all" });
    assert.equal(await isAlone((await start("s", { networkPolicy: "allow-all" })).sandbox), true);
    assert.equal(await isAlone((await start("s")).sandbox), true);
    const { sandbox } = await resume("s", state);
    assert.equal(await isAlone(sandbox), true);
  },

  "a sandbox whose maker is killed as soon as it is there has the network that open() named": async (place) => {
    const { start } = providerIn(place);
    await start("of this process");
    for (const id of ["one", "two", "three", "four", "five"]) {
      await killMaker(place, id, { networkPolicy: "deny-all" });
      assert.equal(await isAlone((await start(id)).sandbox), true);
    }
  },

  "an option of open() that is unknown, or cannot be enforced, is refused and makes nothing": async (place) => {
    const { start } = providerIn(place);
    await assert.rejects(start("s", { network: "deny-all" }), code("ERR_INVALID_ARGUMENT"));
    await assert.rejects(start("s", { networkPolicy: { allow: [] } }), code("ERR_UNSUPPORTED"));
    assert.deepEqual(readdirSync(place.directory), []);
  },

  "resume starts no process, holds nothing, and leads to the same sandbox": async (place) => {
    const { start, resume } = providerIn(place);
    const { sandbox, state } = await start("s");
    const job = nap();
    await output(sandbox, `echo kept > file; ${job.command} & echo $! > /tmp/job`);
    const before = [sandboxProcesses().length, descriptors()];
    let last = sandbox;
    for (let i = 0; i < 200; i++) last = (await resume("s", state)).sandbox;
    assert.deepEqual([sandboxProcesses().length, descriptors()], before);
    assert.equal(await output(last, "cat file; kill -0 $(cat /tmp/job) && echo alive"), "kept\nalive\n");
    assert.equal(job.alive(), 1);
  },

  "resume never makes a sandbox": async (place) => {
    const { start, resume } = providerIn(place);
    const { state, onSandboxDelete } = await start("s");
    await onSandboxDelete();
    await assert.rejects(resume("s", state), code("ERR_SESSION_GONE"));
    await assert.rejects(resume("s", { version: 2, name: "s" }), code("ERR_INVALID_ARGUMENT"));
    await assert.rejects(resume("s", null), code("ERR_INVALID_ARGUMENT"));
    assert.deepEqual(readdirSync(join(place.cacheDir, "sessions")), []);
  },

  "the hooks for stop and delete have both their names": async (place) => {
    const { start, resume } = providerIn(place);
    for (const name of ["Session", "Sandbox"] as const) {
      const handle = await start("s");
      const job = nap();
      await output(handle.sandbox, `echo kept > file; echo gone > /tmp/file; ${job.command} & true`);
      await handle[`on${name}Stop`]();
      await handle[`on${name}Stop`]();
      assert.equal(job.alive(), 0);
      const again = await resume("s", handle.state);
      assert.equal(await output(again.sandbox, "cat file; ls /tmp/file 2>&1 | wc -l"), "kept\n1\n");
      await again[`on${name}Delete`]({ abortSignal: new AbortController().signal });
      await assert.rejects(again.sandbox.run({ command: "true" }), code("ERR_SESSION_GONE"));
      assert.equal(await output((await start("s")).sandbox, "ls -A"), "");
      await (await start("s"))[`on${name}Delete`]();
    }
  },

  "the end of a session removes it without a handle, in another process and more than once": async (place) => {
    const { implementation, prepareContext, start, resume, context } = providerIn(place);
    const artifact = await implementation().prepare(prepareContext("r1", seeds));
    const ends = (name: string) =>
      program("end", { factory: factory.module, options: { cacheDir: place.cacheDir }, id: name, artifact }).done;
    const one = await start("one", undefined, artifact);
    const two = await start("two", undefined, artifact);
    await output(one.sandbox, "true");
    await output(two.sandbox, "echo own > own");
    await one.onRuntimeShutdown();
    assert.deepEqual(await ends("one"), ["ended twice"]);
    await assert.rejects(resume("one", one.state), code("ERR_SESSION_GONE"));
    assert.equal(await output(two.sandbox, "cat own"), "own\n");
    // And where it is open: its commands end first.
    const job = nap();
    await output(two.sandbox, `${job.command} & true`);
    await implementation().onSessionEnd(context("two"), artifact, two.state, { reason: "failed" });
    assert.equal(job.alive(), 0);
    assert.deepEqual(readdirSync(join(place.cacheDir, "sessions")), []);
    const again = await start("two", undefined, artifact);
    assert.equal(await output(again.sandbox, "cat deep/seed"), "seed\n");
    // And after it was deleted.
    await again.onSandboxDelete();
    await implementation().onSessionEnd(context("two"), artifact, again.state, { reason: "completed" });
    assert.deepEqual(readdirSync(join(place.cacheDir, "sessions")), []);
  },

  "the end of the server leaves no process": async (place) => {
    const { start } = providerIn(place);
    const { sandbox, onRuntimeShutdown } = await start("s");
    const job = nap();
    await output(sandbox, `${job.command} & setsid ${job.command} & true`);
    await onRuntimeShutdown();
    assert.deepEqual(sandboxProcesses(), []);
    await onRuntimeShutdown();
    await assert.rejects(sandbox.run({ command: "true" }), code("ERR_CLOSED"));
  },
};

/** Has another process make a sandbox, and kills it in the moment in which the sandbox has its name. */
async function killMaker(place: Place, id: string, open: object): Promise<void> {
  const options = { cacheDir: place.cacheDir };
  const maker = program("start", { factory: factory.module, options, id, open, artifact: empty });
  const watcher = watch(join(place.cacheDir, "sessions"), (_, name) => {
    if (!name!.startsWith(".")) maker.kill();
  });
  await assert.rejects(maker.done, /SIGKILL/).finally(() => watcher.close());
}

for (const [name, play] of Object.entries(cases)) {
  test(`handles: ${name}`, { timeout: 120_000 }, () => inPlace(factory, play));
}
