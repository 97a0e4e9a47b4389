// Two server processes that open one session at the same time. Not two eve
// servers: a world of eve's on one disk is one server's. What they would call
// is called from two processes, with a real eve's provider where it has one.

import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { cp, mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, suite, test } from "node:test";
import { cleanUpAtExit, generationOf, layOutProject, packedTarball, root } from "./driver.mjs";
import { chosen, record, rows, versionsOf } from "./matrix.mjs";

const rounds = 50;

/** What every session begins with, and its digest in the order of the paths. */
const files = Array.from({ length: 300 }, (_, index) => ({
  path: `seeds/${index % 20}/deeper/${String(index).padStart(4, "0")}.txt`,
  content: `${index}\n`.repeat(1 + (index % 97)),
}));
const inOrder = files.toSorted((left, right) => (left.path < right.path ? -1 : 1));
const digest = createHash("sha256")
  .update(inOrder.map(({ content }) => content).join(""))
  .digest("hex");

const openers = new Set();
cleanUpAtExit(() => {
  for (const opener of openers) opener.kill("SIGKILL");
});

/** Starts a process that opens sessions; ask() is one request, after the one before it. */
function startOpener(dir, cacheDir, generation) {
  const child = fork(join(dir, "opener.mjs"), [generation, cacheDir], { cwd: dir });
  openers.add(child);
  const exited = once(child, "exit").finally(() => openers.delete(child));
  exited.catch(() => {}); // one that could not start: ask() says so
  const ended = new AbortController();
  child.once("exit", (code, signal) => ended.abort(new Error(`the opener ended: ${signal ?? code}`)));
  return {
    async ask(name, request = {}) {
      child.send({ name, ...request });
      const [{ answer, error }] = await once(child, "message", { signal: ended.signal });
      if (error) throw new Error(error);
      return answer;
    },
    async end() {
      if (child.connected) child.disconnect();
      await exited;
    },
  };
}

for (const eve of chosen(versionsOf("race"))) {
  suite(`eve ${eve}`, () => {
    let cacheDir;
    let pair = [];

    before(async () => {
      const project = await layOutProject({ dir: join(root, "build/eve", eve), eve, tarball: await packedTarball() });
      await cp(join(import.meta.dirname, "programs/opener.mjs"), join(project.dir, "opener.mjs"));
      cacheDir = await mkdtemp(join(tmpdir(), "sandbox-bwrap-race-"));
      pair = [1, 2].map(() => startOpener(project.dir, cacheDir, generationOf(eve)));
    });
    after(async () => {
      await Promise.all(pair.map((opener) => opener.end()));
      if (cacheDir) await rm(cacheDir, { recursive: true, force: true });
    });

    test(rows.race.says, () =>
      record(eve, "race", async () => {
        const [one, two] = pair;
        const artifact = await one.ask("prepare", { files });
        for (let round = 0; round < rounds; round++) {
          const id = `session-${round}`;
          const seen = await Promise.all(
            pair.map((opener, index) => opener.ask("open", { id, artifact, own: `own-${index}` })),
          );
          for (const text of seen) assert.equal(text, `${files.length}\n${digest}\n`, `round ${round}`);

          // One workspace: each finds what the other one wrote, in commands and by the file API.
          for (const opener of pair) assert.equal(await opener.ask("run", { command: "cat own-*" }), "own-0own-1");
          await one.ask("run", { command: "echo later > later.txt" });
          assert.equal(await two.ask("read", { path: "later.txt" }), "later\n");
          assert.equal((await readdir(join(cacheDir, "sessions"))).length, round + 1, "nothing half-made is left");
          await Promise.all(pair.map((opener) => opener.ask("close")));
        }
      }),
    );
  });
}
