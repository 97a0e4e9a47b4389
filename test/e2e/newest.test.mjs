// What only a recent eve has: commands that go on in the background, and
// subagents in their parent's sandbox.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { after, before, suite, test } from "node:test";
import {
  bash,
  cleanUpAtExit,
  namedProcesses,
  openConversation,
  packedTarball,
  prepareProject,
  root,
  scriptOf,
  startServer,
  until,
  write,
} from "./driver.mjs";
import { chosen, record, rows, versionsOf } from "./matrix.mjs";

cleanUpAtExit();

function stdout({ output, isError }) {
  assert.equal(isError, false, JSON.stringify(output));
  assert.equal(output.exitCode, 0, JSON.stringify(output));
  return output.stdout;
}

/** What a login shell says before each command: eve's way to leave one running has to live with it. */
const noise = "hello from the profile\n";

/** A name for processes, and how many on the host bear it. */
function mark() {
  const marker = `newest-${randomUUID()}`;
  return { marker, sleep: `exec -a ${marker} sleep 600`, count: async () => (await namedProcesses(marker)).length };
}

for (const eve of chosen(versionsOf("slow"))) {
  suite(`eve ${eve}`, () => {
    const dir = join(root, "build/eve", eve);
    let server;
    // Both wait for eve's 30 seconds, so they wait together.
    let slow;
    let handedOver;

    before(async () => {
      const tarball = await packedTarball();
      server = await startServer(
        await prepareProject({ dir, eve, tarball, layers: ["base", "full", "provider", "subagent"] }),
      );
      slow = await beginSlow();
      handedOver = await beginHandedOver();
    });
    after(() => server?.stop());

    async function beginSlow() {
      const job = mark();
      const conversation = openConversation(server);
      const turn = await conversation.begin("Take long.", [
        write("/workspace/.bash_profile", `printf '${noise.trim()}\\n'`),
        bash("echo fast"),
        bash(`echo begun; echo warning >&2; (${job.sleep}) & (setsid -w bash -c '${job.sleep}'); echo never`),
      ]);
      return { conversation, job, turn };
    }

    async function beginHandedOver() {
      const [job, running] = [mark(), mark()];
      const conversation = openConversation(server);
      const turn = await conversation.begin("Take long, then wait.", [
        bash(`(exec -a ${job.marker} bash -c 'until [ -e /tmp/go ]; do sleep 0.1; done'); echo finished; exit 7`),
        bash(`(${running.sleep}) & (setsid bash -c '${running.sleep}') & (${running.sleep})`),
      ]);
      return { conversation, job, running, turn };
    }

    test(rows.slow.says, () =>
      record(eve, "slow", async () => {
        const { conversation, job, turn } = slow;
        const [, fast, { output }] = (await turn.end()).results;
        assert.equal(stdout(fast), `${noise}fast\n`);
        assert.equal(output.status, "running", JSON.stringify(output));
        assert.equal(output.stdout, "begun\n");
        assert.equal(output.stderr, "warning\n");
        const { outputDirectory: place, pid } = output;
        assert.equal(await job.count(), 2);

        const [tail, early, status] = await conversation.say("Look, then end it.", [
          bash(`tail ${place}/stdout ${place}/stderr`),
          bash(`ls ${place}/exit || echo none yet`),
          bash(
            `kill -- -${pid}; for _ in $(seq 100); do [ -e ${place}/exit ] && break; sleep 0.1; done; cat ${place}/exit`,
          ),
        ]);
        assert.match(stdout(tail), /begun[^]*warning/);
        assert.equal(stdout(early), `${noise}none yet\n`);
        assert.equal(stdout(status), `${noise}143\n`);
        // What left the group is its own: the sandbox's end is the end of it.
        assert.equal(await job.count(), 1);
        const [ended] = await conversation.say("Stop.", [{ name: "stop_sandbox", input: {} }]);
        assert.deepEqual(ended.output, { stopped: true });
        assert.equal(await job.count(), 0);
      }),
    );

    test(rows.handedOver.says, () =>
      record(eve, "handedOver", async () => {
        const { conversation, job, running, turn } = handedOver;
        await until("the second command runs", async () => (await running.count()) === 3, 60_000);
        assert.equal(await job.count(), 1);
        await conversation.cancel();
        const { cancelled, results } = await turn.end();
        assert.equal(cancelled, true);
        assert.equal(results[0].output.status, "running", JSON.stringify(results));
        await until("the running command's tree is gone", async () => (await running.count()) === 0, 5_000);
        assert.equal(await job.count(), 1);

        const { outputDirectory: place } = results[0].output;
        const [ended] = await conversation.say("Let it end.", [
          bash(
            `touch /tmp/go; for _ in $(seq 100); do [ -e ${place}/exit ] && break; sleep 0.1; done; cat ${place}/stdout ${place}/exit`,
          ),
        ]);
        assert.equal(stdout(ended), "finished\n7\n");
      }),
    );

    test(rows.subagent.says, () =>
      record(eve, "subagent", async () => {
        const [ofParent, ofChild] = [mark(), mark()];
        const conversation = openConversation(server);
        const delegate = async (calls) => {
          const turn = await conversation.begin("Delegate.", [
            { name: "reviewer", input: { message: scriptOf("Review.", calls) } },
          ]);
          const { children } = await turn.end();
          assert.equal(children.length, 1);
          const child = openConversation(server, children[0]);
          return { child, results: (await child.end()).results };
        };

        // The subagent is the first to open the sandbox, which is its parent's.
        const { port } = new URL(server.url);
        const first = await delegate([
          bash(`cat seed.txt; echo child > child.txt; (${ofChild.sleep}) & echo left`),
          bash(`exec 3<>/dev/tcp/127.0.0.1/${port}`),
        ]);
        assert.equal(stdout(first.results[0]), "hello from the seed\nleft\n");
        assert.notEqual(first.results[1].output.exitCode, 0, "the environment's network holds for it too");
        const [seen] = await conversation.say("Look.", [
          bash(
            `cat child.txt session.txt; pgrep -fc '^${ofChild.marker} 600'; echo parent > /tmp/parent.txt; (${ofParent.sleep}) & echo left`,
          ),
        ]);
        assert.equal(stdout(seen), "child\na new session began\n1\nleft\n");

        const second = await delegate([
          bash(`cat /tmp/parent.txt; pgrep -fc '^${ofParent.marker} 600'`),
          { name: "delete_sandbox", input: {} },
        ]);
        assert.equal(stdout(second.results[0]), "parent\n1\n");
        assert.equal(second.results[1].isError, true, JSON.stringify(second.results[1]));

        const before = await readdir(join(dir, ".eve/sandbox-cache/bwrap/sessions"));
        for (const { child } of [first, second]) assert.equal((await child.reset()).status, "reset");
        const [still] = await conversation.say("Look again.", [bash("cat child.txt /tmp/parent.txt")]);
        assert.equal(stdout(still), "child\nparent\n");
        assert.deepEqual([await ofParent.count(), await ofChild.count()], [1, 1]);
        assert.deepEqual(await readdir(join(dir, ".eve/sandbox-cache/bwrap/sessions")), before);

        assert.equal((await conversation.reset()).status, "reset");
        await until(
          "the parent's end is the sandbox's",
          async () => (await ofParent.count()) + (await ofChild.count()) === 0,
        );
      }),
    );
  });
}
