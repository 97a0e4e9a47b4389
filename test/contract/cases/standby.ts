import assert from "node:assert/strict";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";

import type { SandboxOperations } from "../../../lib/index.ts";
import type { Opened } from "../adapter.ts";
import { nap, processes, sandboxProcesses, until } from "../host.ts";
import { output, type Place } from "../place.ts";
import type { Cases } from "../suite.ts";

const standby = { standby: true } as const;

/** The process ids of the bwraps that run. */
const sandboxes = () =>
  sandboxProcesses()
    .filter(({ argv }) => argv[0] === "bwrap")
    .map(({ pid }) => pid);

/** Runs a first session's first command, and waits for the standby that comes after it. */
async function withStandby({ open }: Place, options: Parameters<Place["open"]>[0] = standby) {
  const first = await open(options, { key: "first" });
  await output(first.session, "true");
  const [own] = sandboxes();
  await until("there is a standby", () => sandboxes().length === 2);
  const ahead = sandboxes().find((pid) => pid !== own);
  return { first, ahead: ahead! };
}

/** Returns the bwrap that a session's commands run in. */
async function sandboxOf({ run }: SandboxOperations): Promise<number> {
  const sleeper = nap();
  await run({ command: `${sleeper.command} &` });
  await sleeper.reached(1);
  const all = processes();
  const { parent: init } = all.find(({ argv }) => argv.join(" ") === sleeper.command)!;
  return all.find(({ pid }) => pid === init)!.parent;
}

let lastKey = 0;

/** Opens new sessions until one has the standby, which may still be on its way at the first. */
async function openOn(ahead: number, open: (key: string) => Promise<Opened>) {
  for (let opened = 1; opened < 20; opened++) {
    const { session } = await open(`next-${++lastKey}`);
    if ((await sandboxOf(session)) === ahead) return { session, opened };
  }
  throw new Error("no new session had the standby");
}

const sessionDirectories = async ({ cacheDir }: Place) => (await readdir(join(cacheDir, "sessions"))).length;

export const standbys: Cases = {
  "a new session gets the sandbox that is ready, with its own files, and another one is made ready": async (place) => {
    const { first, ahead } = await withStandby(place);
    const { session, opened } = await openOn(ahead, async (key) => await place.open(standby, { key }));
    assert.equal(await output(session, "ls -A; echo mine > f; pwd"), "/workspace\n");
    assert.equal(await first.session.readTextFile({ path: "f" }), null);
    assert.equal(await session.readTextFile({ path: "f" }), "mine\n");
    await until("there is one for the session after it", () => sandboxes().length === 1 + opened + 1);
  },

  "the template is in it": async (place) => {
    const adapter = place.adapter(standby);
    await adapter.prewarm({ key: "template", seeds: [{ path: "/workspace/seed", content: "seed" }] });
    const { ahead } = await withStandby(place);
    const { session } = await openOn(ahead, async (key) => await adapter.open({ key, templateKey: "template" }));
    assert.equal(await output(session, "cat seed"), "seed");
  },

  "two sessions that are made at once have a sandbox each": async (place) => {
    await withStandby(place);
    const opened = await Promise.all(["a", "b"].map(async (key) => await place.open(standby, { key })));
    await Promise.all(opened.map(async ({ session }, n) => await output(session, `echo ${n} > f`)));
    const found = await Promise.all(opened.map(async ({ session }) => await output(session, "cat f")));
    assert.deepEqual(found, ["0\n", "1\n"]);
  },

  "it is not for a session that exists, nor for other options": async (place) => {
    const early = await place.open(standby, { key: "early" });
    const { ahead } = await withStandby(place);
    await output(early.session, "true");
    assert.notEqual(await sandboxOf(early.session), ahead);
    const hiding = await place.open({ ...standby, hidePaths: ["/opt"] }, { key: "hiding" });
    await output(hiding.session, "! test -e /opt");
    assert.notEqual(await sandboxOf(hiding.session), ahead);
    const separate = await place.open({ ...standby, home: "separate" }, { key: "separate" });
    assert.equal(await output(separate.session, "pwd; cd; pwd"), "/workspace\n/home/sandbox\n");
    assert.ok(sandboxes().includes(ahead));
  },

  "it ends with the last sandbox, and leaves no directory": async (place) => {
    const { first } = await withStandby(place);
    assert.equal(await sessionDirectories(place), 2);
    await first.stop();
    assert.deepEqual(sandboxes(), []);
    assert.equal(await sessionDirectories(place), 1);
    await output(first.session, "true");
    assert.equal(sandboxes().length, 1);
  },

  "a session that has it and runs nothing lets it go with its end": async (place) => {
    for (const end of ["stop", "shutdown", "delete"] as const) {
      const { first, ahead } = await withStandby(place);
      await until(`a session that had it has let it go by ${end}()`, async () => {
        const next = await place.open(standby, { key: `next-${++lastKey}` });
        await next[end]();
        return !sandboxes().includes(ahead);
      });
      await first.delete();
    }
  },

  "one that was killed is done without": async (place) => {
    const { ahead } = await withStandby(place);
    process.kill(ahead, "SIGKILL");
    await until("it is gone", () => !sandboxes().includes(ahead));
    await setTimeout(100); // and this process knows it
    const { session } = await place.open(standby, { key: "next" });
    assert.equal(await output(session, "echo works"), "works\n");
  },

  "events tell of a sandbox when it has a session": async (place) => {
    const { events, onEvent } = place.watch();
    await withStandby(place, { ...standby, onEvent });
    assert.equal(events.filter(({ type }) => type === "generation.started").length, 1);
    const { session } = await place.open({ ...standby, onEvent }, { key: "next" });
    await output(session, "true");
    const started = events.filter(({ type }) => type === "generation.started");
    assert.equal(new Set(started.map(({ sessionId }) => sessionId)).size, 2);
  },
};
