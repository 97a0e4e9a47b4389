// `eve dev`, whose agent runs in a Worker and is bundled anew after an edit.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { cp, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { suite, test } from "node:test";
import {
  bash,
  cleanUpAtExit,
  descendants,
  generationOf,
  layOutProject,
  markedProcesses,
  namedProcesses,
  openConversation,
  packedTarball,
  root,
  startDevServer,
  survivors,
  until,
} from "./driver.mjs";
import { chosen, record, rows, versionsOf } from "./matrix.mjs";

cleanUpAtExit();

/** Edits a source file of the agent and waits until eve has taken it up. */
async function edit({ project, server }, path, change) {
  const count = () => server.output().split("authored artifacts updated").length;
  const before = count();
  const file = join(project.dir, "agent", path);
  await writeFile(file, change(await readFile(file, "utf8")));
  await until(`eve takes up ${path}`, () => count() > before, 60_000);
}

/** A project in a place of its own: eve watches nothing below a directory called build. */
async function layOutElsewhere(eve, use) {
  const { dir } = await layOutProject({ dir: join(root, "build/eve", eve), eve, tarball: await packedTarball() });
  const elsewhere = await mkdtemp(join(tmpdir(), "sandbox-bwrap-dev-"));
  try {
    await cp(dir, elsewhere, { recursive: true, verbatimSymlinks: true });
    await use({ dir: elsewhere, eve });
  } finally {
    await rm(elsewhere, { recursive: true, force: true });
  }
}

async function develop(project) {
  const marker = `dev-${randomUUID()}`;
  let server = await startDevServer(project);
  try {
    const conversation = openConversation(server);
    const ask = async (command) => {
      const turn = await conversation.begin("Work.", [bash(command)]);
      const { results, text } = await turn.end();
      assert.equal(results[0].isError, false, JSON.stringify(results));
      assert.equal(results[0].output.exitCode, 0, JSON.stringify(results));
      return { stdout: results[0].output.stdout, text };
    };

    await ask(`echo before > file.txt; mkfifo /tmp/pipe; (exec -a ${marker} sleep 600) & echo left`);
    const [left] = await namedProcesses(marker);
    await edit({ project, server }, "lib/model.ts", (text) => text.replaceAll('"Done."', '"Done anew."'));
    const after = await ask("cat file.txt; ls -d /tmp/pipe");
    assert.deepEqual(after, { stdout: "before\n/tmp/pipe\n", text: "Done anew." });
    // A backend's session has its key from the sandbox's own file, and another sandbox after an edit of it.
    if (generationOf(project.eve) === "provider") {
      await edit({ project, server }, "sandbox/sandbox.ts", (text) => `${text}\n// edited\n`);
      assert.equal((await ask("cat file.txt; ls -d /tmp/pipe")).stdout, "before\n/tmp/pipe\n");
    }
    assert.deepEqual(await survivors([left]), [left], "what was left running before the edits still runs");

    const list = await descendants(server.pid);
    assert.deepEqual(await server.stop(), [0, null], server.output());
    await until(
      "no process is left",
      async () => (await survivors(list)).length + (await markedProcesses(marker)).length === 0,
      2_000,
    );

    server = await startDevServer(project);
    conversation.moveTo(server);
    assert.equal((await ask("cat file.txt; ls -d /tmp/pipe || echo gone")).stdout, "before\ngone\n");
  } finally {
    await server.stop();
  }
}

for (const eve of chosen(versionsOf("dev"))) {
  suite(`eve ${eve}`, () => {
    test(rows.dev.says, () => record(eve, "dev", () => layOutElsewhere(eve, develop)));
  });
}
