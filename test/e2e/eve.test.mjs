// A real eve agent, model calls included, on every eve release we promise: the
// same steps for all of them, each on what the one before it left.

import assert from "node:assert/strict";
import { createHash, randomUUID } from "node:crypto";
import { cp, mkdtemp, readFile, readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, suite, test } from "node:test";
import {
  addLayer,
  bash,
  build,
  cleanUpAtExit,
  descendants,
  eveVersions,
  generationOf,
  isSince,
  markedProcesses,
  openConversation,
  packedTarball,
  prepareProject,
  read,
  root,
  startMovedServer,
  startServer,
  survivors,
  until,
  write,
} from "./driver.mjs";
import { chosen, record, rows, versionsOf } from "./matrix.mjs";

cleanUpAtExit();
const call = (name) => ({ name, input: {} });

/** A program for Node, which every sandbox sees: the one that runs the tests. */
const greeter = `require("node:http").createServer((_, response) => response.end("hello from a server"))
  .listen(8000, "127.0.0.1")`;

/** Every byte there is, and none of them text. */
const attached = Buffer.from(Array.from({ length: 4096 }, (_, index) => (index * 7 + (index >> 8)) & 0xff));
const attachedDigest = createHash("sha256").update(attached).digest("hex");

/** What the model is to see of one successful bash call. */
function stdout({ output, isError }) {
  assert.equal(isError, false, JSON.stringify(output));
  assert.equal(output.exitCode, 0, JSON.stringify(output));
  return output.stdout;
}

/** Nothing of these and nothing with the marker may be left 2 s from now. */
async function assertNothingLeft(list, marker) {
  await until(
    "no sandbox process is left",
    async () => (await survivors(list)).length + (await markedProcesses(marker)).length === 0,
    2_000,
  );
}

/** What one release's steps have in common. */
function openAgent(eve) {
  const dir = join(root, "build/eve", eve);
  // In the command line of every process the model leaves in the background.
  const marker = `left-${randomUUID()}`;
  const cache = join(dir, ".eve/sandbox-cache/bwrap");
  return {
    eve,
    dir,
    cache,
    marker,
    sleeper: `exec -a ${marker} sleep 600`,
    /** A background process each that ends with its group, and one that left it. */
    leaving(text) {
      return bash(`(${this.sleeper}) & (setsid bash -c '${this.sleeper}') & echo ${text}`);
    },
    /** The workspaces on the host. */
    sessions: () => readdir(join(cache, "sessions")),
    /** Where eve puts attachments: its second place came with 0.70.2. */
    attachments: isSince(eve, "0.70.2") ? ".eve/attachments" : "attachments",
    async stopServer() {
      const { server } = this;
      this.server = undefined;
      await server?.stop();
    },
    async restart() {
      await this.stopServer();
      this.server = await startServer(this.project);
    },
  };
}

/** The template's identity on the host, which another build of it would change. */
async function templateOf({ cache }) {
  const names = await readdir(join(cache, "templates"));
  assert.equal(names.length, 1, names.join(" "));
  const path = join(cache, "templates", names[0]);
  return { name: names[0], inode: (await stat(path)).ino };
}

/**
 * The steps, in their order, under the names of the table's rows. Where `since`
 * is newer than the release, `absent` shows that there is no such thing in it.
 */
const steps = {
  start: {
    async run(agent) {
      agent.project = await prepareProject({ dir: agent.dir, eve: agent.eve, tarball: await packedTarball() });
      agent.server = await startServer(agent.project);
      agent.conversation = openConversation(agent.server);
    },
  },

  template: {
    async run(agent) {
      const { eve, project } = agent;
      const isBackend = generationOf(eve) === "backend";
      const first = await templateOf(agent);
      // A backend's template is built at the start, a provider's by the build.
      if (isBackend) assert.match(agent.server.prepared, /0 reused, 1 built/);
      else await build(project);
      await agent.restart();
      if (isBackend) assert.match(agent.server.prepared, /1 reused, 0 built/);
      agent.conversation.moveTo(agent.server);
      assert.deepEqual(await templateOf(agent), first);
    },
  },

  seeds: {
    async run(agent) {
      const [files, skill, where] = await agent.conversation.say("Look around.", [
        bash("cat seed.txt bootstrap.txt session.txt"),
        bash('cat "$HOME/.agents/skills/greeting/SKILL.md"'),
        bash("echo $PWD $AI_AGENT; cat built-at.txt"),
      ]);
      assert.equal(
        stdout(files),
        "hello from the seed\nbuilt on a seed that says: hello from the seed\na new session began\n",
      );
      assert.match(stdout(skill), /good morning/);
      const [place, time] = stdout(where).trim().split("\n");
      assert.equal(place, "/workspace eve");
      agent.builtAt = time;
    },
  },

  output: {
    async run({ conversation }) {
      const [result] = await conversation.say("Fail.", [bash("echo out; echo err >&2; exit 3")]);
      assert.equal(result.output.exitCode, 3);
      assert.equal(result.output.stdout, "out\n");
      assert.equal(result.output.stderr, "err\n");
    },
  },

  files: {
    async run({ conversation, eve }) {
      // The oldest eve's file tools know no $HOME.
      const home = isSince(eve, "0.29.5") ? "$HOME" : "/workspace";
      const results = await conversation.say("Write and read.", [
        write("/workspace/notes/today.txt", "one\ntwo\n"),
        bash("cat notes/today.txt; echo three >> notes/today.txt; ln -s notes/today.txt link; echo tmp > /tmp/t"),
        read("/workspace/notes/today.txt"),
        read("/workspace/link"),
        read("/tmp/t"),
        read(`${home}/.agents/skills/greeting/SKILL.md`),
        read("/workspace/missing.txt"),
      ]);
      const [written, shown, whole, linked, temporary, skill, missing] = results;
      assert.equal(written.isError, false, JSON.stringify(written.output));
      assert.equal(stdout(shown), "one\ntwo\n");
      assert.match(whole.output.content, /one[^]*two[^]*three/);
      assert.match(linked.output.content, /three/);
      assert.match(temporary.output.content, /tmp/);
      assert.match(skill.output.content, /good morning/);
      assert.match(JSON.stringify(missing.output), /not found|no such|does not exist/i);
    },
  },

  host: {
    async run({ conversation, dir }) {
      const [environ, manifest, escape] = await conversation.say("Spy.", [
        read("/proc/self/environ"),
        read(join(dir, "package.json")),
        bash(`ln -s ${join(dir, "package.json")} spy; cat spy`),
      ]);
      assert.doesNotMatch(JSON.stringify(environ.output), /EVE_TELEMETRY_DISABLED/);
      assert.doesNotMatch(JSON.stringify(manifest.output), /sandbox-bwrap-e2e/);
      assert.notEqual(escape.output.exitCode, 0);
      const [spied] = await conversation.say("Spy again.", [read("/workspace/spy")]);
      assert.doesNotMatch(JSON.stringify(spied.output), /sandbox-bwrap-e2e/);
    },
  },

  background: {
    async run({ conversation, marker, sleeper }) {
      const begun = performance.now();
      const [left, fetched] = await conversation.say("Serve.", [
        // The second child holds the command's own stdout: the answer must not wait for it.
        bash(
          `(exec -a ${marker} ${process.execPath} -e '${greeter}' >/tmp/server.log 2>&1) &
           (${sleeper}) & echo left`,
        ),
        bash(
          `for _ in $(seq 100); do
             if exec 3<>/dev/tcp/127.0.0.1/8000; then
               printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3; exit 0
             fi 2>/dev/null
             sleep 0.1
           done; cat /tmp/server.log; exit 1`,
        ),
      ]);
      assert.equal(stdout(left), "left\n");
      assert.match(stdout(fetched), /hello from a server/);
      assert.ok(performance.now() - begun < 30_000);
      assert.equal((await markedProcesses(marker)).length, 2);
    },
  },

  network: {
    async run({ conversation, server }) {
      const { port } = new URL(server.url);
      const [result] = await conversation.say("Call eve.", [bash(`exec 3<>/dev/tcp/127.0.0.1/${port}`)]);
      assert.notEqual(result.output.exitCode, 0);
    },
  },

  attachment: {
    async run({ conversation, attachments }) {
      const file = {
        type: "file",
        mediaType: "application/octet-stream",
        filename: "every-byte.bin",
        data: `data:application/octet-stream;base64,${attached.toString("base64")}`,
      };
      const turn = await conversation.begin("Take this.", [bash(`sha256sum ${attachments}/*/every-byte.bin`)], [file]);
      const { results, text } = await turn.end();
      assert.equal(stdout(results[0]).split(" ")[0], attachedDigest);
      // eve reads it back before each call of the model.
      assert.equal(text, "Done.");
    },
  },

  cancel: {
    async run({ conversation, marker }) {
      const mark = `cancelled-${randomUUID()}`;
      const sleep = `exec -a ${mark} sleep 600`;
      const turn = await conversation.begin("Wait.", [
        // In the command's own group, in a job's, in a session of its own, and in the foreground.
        bash(`(${sleep}) & set -m; (${sleep}) & (setsid bash -c '${sleep}') & (${sleep}); wait`),
        bash("echo never > never.txt"),
      ]);
      await until("the command runs", async () => (await markedProcesses(mark)).length >= 4);
      await conversation.cancel();
      const { cancelled } = await turn.end();
      assert.equal(cancelled, true);
      await until("its tree is gone", async () => (await markedProcesses(mark)).length === 0, 5_000);
      assert.equal((await markedProcesses(marker)).length, 2, "what an earlier turn left still runs");
      const [result] = await conversation.say("Go on.", [bash("cat notes/today.txt; ls never.txt || echo not begun")]);
      assert.equal(stdout(result), "one\ntwo\nthree\nnot begun\n");
    },
  },

  stop: {
    since: "0.32.0",
    async absent({ conversation }) {
      const [stopped] = await conversation.say("Stop.", [call("stop_sandbox")]);
      assert.deepEqual(stopped.output, { stopped: false });
    },
    async run({ conversation, marker }) {
      const [stopped, next] = await conversation.say("Stop.", [
        call("stop_sandbox"),
        bash("cat notes/today.txt; ls /tmp/t || echo gone"),
      ]);
      assert.deepEqual(stopped.output, { stopped: true });
      assert.equal(stdout(next), "one\ntwo\nthree\ngone\n");
      assert.deepEqual(await markedProcesses(marker), []);
    },
  },

  second: {
    async run({ server, builtAt }) {
      const other = openConversation(server);
      const [result] = await other.say("Look around.", [bash("ls; cat built-at.txt")]);
      const lines = stdout(result).trim().split("\n");
      assert.equal(lines.at(-1), builtAt);
      assert.ok(!lines.includes("notes"), lines.join(" "));
    },
  },

  delete: {
    since: "0.47.0",
    async absent({ conversation }) {
      const [deleted] = await conversation.say("Delete.", [call("delete_sandbox")]);
      assert.deepEqual(deleted.output, { deleted: false });
    },
    async run({ server, conversation, builtAt }) {
      const mark = `deleted-${randomUUID()}`;
      const other = openConversation(server);
      const [, deleted, next] = await other.say("Delete.", [
        bash(`echo mine > mine.txt; (exec -a ${mark} sleep 600) & echo left`),
        call("delete_sandbox"),
        bash("ls mine.txt || echo gone; cat session.txt built-at.txt"),
      ]);
      assert.deepEqual(deleted.output, { deleted: true });
      assert.equal(stdout(next), `gone\na new session began\n${builtAt}\n`);
      assert.deepEqual(await markedProcesses(mark), []);
      const [result] = await conversation.say("Still there?", [bash("cat notes/today.txt")]);
      assert.equal(stdout(result), "one\ntwo\nthree\n");
    },
  },

  restart: {
    async run(agent) {
      const { attachments, conversation, eve, marker, server } = agent;
      await conversation.say("Leave something.", [agent.leaving("left")]);
      await until("both run", async () => (await markedProcesses(marker)).length >= 2);
      const list = await descendants(server.pid);
      assert.ok(list.length >= 4, "bwrap, init and both sleepers descend from the server");
      await agent.stopServer();
      await assertNothingLeft(list, marker);

      await agent.restart();
      if (generationOf(eve) === "backend") assert.match(agent.server.prepared, /1 reused, 0 built/);
      conversation.moveTo(agent.server);
      const turn = await conversation.begin("Still there?", [
        bash("cat notes/today.txt session.txt"),
        bash(`sha256sum ${attachments}/*/every-byte.bin`),
      ]);
      const { results, text } = await turn.end();
      assert.equal(stdout(results[0]), "one\ntwo\nthree\na new session began\n");
      assert.equal(stdout(results[1]).split(" ")[0], attachedDigest);
      assert.equal(text, "Done.", "eve finds the attachment it wrote before the restart");
    },
  },

  end: {
    since: "0.75.0",
    async absent(agent) {
      const { marker, server } = agent;
      const ended = openConversation(server);
      await ended.say("Leave something.", [agent.leaving("left")]);
      const before = (await agent.sessions()).length;
      const answer = await ended.reset().catch((error) => error);
      // Its HTTP channel has no such request before 0.31, and no hook of a sandbox hears of it.
      if (isSince(agent.eve, "0.31.0")) assert.equal(answer.status, "reset");
      else assert.match(answer.message, /: 404 /);
      assert.equal((await agent.sessions()).length, before);
      await agent.restart();
      assert.deepEqual(await markedProcesses(marker), []);
      agent.conversation.moveTo(agent.server);
    },
    async run(agent) {
      const { conversation, marker } = agent;
      const [closed, open] = [openConversation(agent.server), openConversation(agent.server)];
      await closed.say("Begin.", [bash("echo mine > mine.txt")]);
      await agent.restart();
      for (const moved of [closed, open, conversation]) moved.moveTo(agent.server);
      await open.say("Leave something.", [agent.leaving("left")]);
      const before = (await agent.sessions()).length;

      assert.equal((await closed.reset()).status, "reset");
      await until("the closed one is removed", async () => (await agent.sessions()).length === before - 1);
      assert.notDeepEqual(await markedProcesses(marker), [], "the other one still runs");
      assert.equal((await open.reset()).status, "reset");
      await until("the open one is removed", async () => (await agent.sessions()).length === before - 2);
      assert.deepEqual(await markedProcesses(marker), []);
      const [result] = await conversation.say("Still there?", [bash("cat notes/today.txt")]);
      assert.equal(stdout(result), "one\ntwo\nthree\n");
    },
  },

  kill: {
    async run(agent) {
      const { conversation, marker, server } = agent;
      await conversation.say("Leave something.", [agent.leaving("left")]);
      await until("they run", async () => (await markedProcesses(marker)).length >= 2);
      const list = await descendants(server.pid);
      agent.server = undefined;
      await server.kill();
      await assertNothingLeft(list, marker);
    },
  },

  bundledAndMoved: {
    async run(agent) {
      await withMoved(agent, async (conversation) => {
        const [result] = await conversation.say("Look around.", [bash("cat seed.txt")]);
        assert.equal(result.isError, true);
        assert.match(
          JSON.stringify(result.output),
          /build\.externalDependencies: \[\\*"@evelandhq\/sandbox-bwrap\\*"\]/,
        );
      });
    },
  },

  moved: {
    async run(agent) {
      await addLayer(agent.project, "external");
      await build(agent.project);
      await withMoved(agent, async (conversation, server, dir) => {
        const [result] = await conversation.say("Look around.", [bash("cat seed.txt bootstrap.txt session.txt")]);
        assert.equal(
          stdout(result),
          "hello from the seed\nbuilt on a seed that says: hello from the seed\na new session began\n",
        );
        const mapped = await readFile(`/proc/${server.pid}/maps`, "utf8");
        const libraries = mapped.match(/\S+\/libsandbox\.so/g) ?? [];
        assert.ok(libraries.length > 0 && libraries.every((path) => path.startsWith(dir)), libraries.join(" "));
      });
    },
  },
};

/**
 * Runs a built server where nothing else of its project is but the templates,
 * which an operator takes along: no node_modules in any directory above.
 */
async function withMoved({ dir, eve }, use) {
  const elsewhere = await mkdtemp(join(tmpdir(), "sandbox-bwrap-moved-"));
  let server;
  try {
    for (const part of [".output", ".eve/sandbox-cache"]) {
      await cp(join(dir, part), join(elsewhere, part), { recursive: true });
    }
    server = await startMovedServer({ dir: elsewhere, eve });
    await use(openConversation(server), server, elsewhere);
  } finally {
    await server?.stop();
    await rm(elsewhere, { recursive: true, force: true });
  }
}

for (const eve of chosen(eveVersions)) {
  suite(`eve ${eve}`, () => {
    const agent = openAgent(eve);
    after(() => agent.stopServer());
    for (const [row, { since, run, absent }] of Object.entries(steps)) {
      if (!versionsOf(row).includes(eve)) continue;
      const isAbsent = since !== undefined && !isSince(eve, since);
      const title = isAbsent ? `not in this release: ${rows[row].says}` : rows[row].says;
      test(title, () => record(eve, row, () => (isAbsent ? absent : run)(agent), isAbsent));
    }
  });
}
