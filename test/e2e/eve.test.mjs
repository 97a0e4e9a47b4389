// A real eve agent, model calls included, on every eve release we promise.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { join } from "node:path";
import { after, before, suite, test } from "node:test";
import {
  cleanUpAtExit,
  descendants,
  eveVersions,
  markedProcesses,
  openConversation,
  packedTarball,
  prepareProject,
  root,
  startServer,
  survivors,
  until,
} from "./driver.mjs";

cleanUpAtExit();
const only = process.env.EVE_VERSION;
const bash = (command) => ({ name: "bash", input: { command } });
const read = (filePath) => ({ name: "read_file", input: { filePath } });
const write = (filePath, content) => ({ name: "write_file", input: { filePath, content } });
const stop = { name: "stop_sandbox", input: {} };

/** A program for Node, which every sandbox sees: the one that runs the tests. */
const greeter = `require("node:http").createServer((_, response) => response.end("hello from a server"))
  .listen(8000, "127.0.0.1")`;

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

for (const eve of eveVersions.filter((version) => !only || version === only)) {
  suite(`eve ${eve}`, () => {
    // In the command line of every process the model leaves in the background.
    const marker = `left-${randomUUID()}`;
    const sleeper = `exec -a ${marker} sleep 600`;
    // Its file tools know no $HOME, and its sandboxes no stop() for authored code.
    const isOldest = eve === "0.27.13";
    const home = isOldest ? "/workspace" : "$HOME";
    let project;
    let server;
    let conversation;
    let builtAt;

    before(async () => {
      project = await prepareProject({
        dir: join(root, "build/eve", eve),
        eve,
        tarball: await packedTarball(),
      });
    });
    after(() => server?.stop());

    test("the first start builds the template, the second reuses it", async () => {
      server = await startServer(project);
      assert.match(server.prepared, /0 reused, 1 built/);
      await server.stop();
      server = await startServer(project);
      assert.match(server.prepared, /1 reused, 0 built/);
      conversation = openConversation(server);
    });

    test("bash sees seeds, bootstrap's output, onSession's file and the skill", async () => {
      const [files, skill, where] = await conversation.say("Look around.", [
        bash("cat seed.txt bootstrap.txt session.txt"),
        bash('cat "$HOME/.agents/skills/greeting/SKILL.md"'),
        bash("pwd; cat built-at.txt"),
      ]);
      assert.equal(
        stdout(files),
        "hello from the seed\nbuilt on a seed that says: hello from the seed\na new session began\n",
      );
      assert.match(stdout(skill), /good morning/);
      const [directory, time] = stdout(where).trim().split("\n");
      assert.equal(directory, "/workspace");
      builtAt = time;
    });

    test("exit code and the two streams arrive as they are", async () => {
      const [result] = await conversation.say("Fail.", [bash("echo out; echo err >&2; exit 3")]);
      assert.equal(result.output.exitCode, 3);
      assert.equal(result.output.stdout, "out\n");
      assert.equal(result.output.stderr, "err\n");
    });

    test("the file tools and bash see the same files", async () => {
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
    });

    test("the file tools never reach the host's files", async () => {
      const [environ, project_, escape] = await conversation.say("Spy.", [
        read("/proc/self/environ"),
        read(join(project.dir, "package.json")),
        bash(`ln -s ${join(project.dir, "package.json")} spy; cat spy`),
      ]);
      assert.doesNotMatch(JSON.stringify(environ.output), /EVE_TELEMETRY_DISABLED/);
      assert.doesNotMatch(JSON.stringify(project_.output), /sandbox-bwrap-e2e/);
      assert.notEqual(escape.output.exitCode, 0);
      const [spied] = await conversation.say("Spy again.", [read("/workspace/spy")]);
      assert.doesNotMatch(JSON.stringify(spied.output), /sandbox-bwrap-e2e/);
    });

    test("the next command reaches what an earlier one left running", async () => {
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
    });

    test("deny-all keeps the host's own servers out of reach", async () => {
      const { port } = new URL(server.url);
      const [result] = await conversation.say("Call eve.", [bash(`exec 3<>/dev/tcp/127.0.0.1/${port}`)]);
      assert.notEqual(result.output.exitCode, 0);
    });

    test("stop() ends the processes, keeps the files, and the next command works", async () => {
      const [stopped, next] = await conversation.say("Stop.", [
        stop,
        bash("cat notes/today.txt; ls /tmp/t || echo gone"),
      ]);
      if (isOldest) {
        assert.deepEqual(stopped.output, { stopped: false });
        return;
      }
      assert.deepEqual(stopped.output, { stopped: true });
      assert.equal(stdout(next), "one\ntwo\nthree\ngone\n");
      assert.deepEqual(await markedProcesses(marker), []);
    });

    test("a second session has its own copy of the template", async () => {
      const other = openConversation(server);
      const [result] = await other.say("Look around.", [bash("ls; cat built-at.txt")]);
      const lines = stdout(result).trim().split("\n");
      assert.equal(lines.at(-1), builtAt);
      assert.ok(!lines.includes("notes"), lines.join(" "));
    });

    test("SIGTERM leaves no process, and a restart finds the files", async () => {
      await conversation.say("Leave something.", [bash(`(${sleeper}) & (setsid bash -c '${sleeper}') & echo left`)]);
      await until("both run", async () => (await markedProcesses(marker)).length >= 2);
      const list = await descendants(server.pid);
      assert.ok(list.length >= 4, "bwrap, init and both sleepers descend from the server");
      await server.stop();
      await assertNothingLeft(list, marker);

      server = await startServer(project);
      assert.match(server.prepared, /1 reused, 0 built/);
      conversation.moveTo(server);
      const [result] = await conversation.say("Still there?", [bash("cat notes/today.txt session.txt")]);
      assert.equal(stdout(result), "one\ntwo\nthree\na new session began\n");
    });

    test("SIGKILL leaves no process either", async () => {
      await conversation.say("Leave something.", [bash(`(setsid bash -c '${sleeper}') & echo left`)]);
      await until("it runs", async () => (await markedProcesses(marker)).length > 0);
      const list = await descendants(server.pid);
      await server.kill();
      server = undefined;
      await assertNothingLeft(list, marker);
    });
  });
}
