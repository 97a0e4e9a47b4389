import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";

import { nap, sandboxProcesses, until, within } from "../host.ts";
import { code, listTmp, output, quote, same, textOf } from "../place.ts";
import type { Cases } from "../suite.ts";
import { checkAddsUp, finishedOf } from "./events.ts";
import { followOddLinks } from "./files.ts";
import { standbys } from "./standby.ts";

/**
 * What holds with `processes: "command"` where cases of other names need a
 * sandbox that several commands share, by area and name of those.
 */
export const alone: Readonly<Record<string, Cases>> = {
  run: {
    "aborted meanwhile: the whole tree dies, other commands and their background jobs live": async ({ session }) => {
      const { run, spawn } = await session();
      const [doomed, other] = [nap(), nap()];
      const bystander = await spawn({ command: `setsid ${other.command} & ${other.command}` });
      const controller = new AbortController();
      const reason = new Error("the user changed her mind");
      const aborted = run({
        abortSignal: controller.signal,
        command: `setsid ${doomed.command} & ( ( ${doomed.command} & ) & ); set -m; ${doomed.command} & set +m; ${doomed.command}`,
      });
      await doomed.reached(4);
      await other.reached(2);
      controller.abort(reason);
      await assert.rejects(within(20_000, "an abort", aborted), same(reason));
      assert.equal(doomed.alive(), 0);
      assert.equal(other.alive(), 2);
      await bystander.kill();
      assert.equal(other.alive(), 0);
    },

    "aborted afterwards: the background job lives, and the signal is let go": async ({ session }) => {
      const { run } = await session();
      const controller = new AbortController();
      const job = nap();
      await run({ command: `${job.command} & true`, abortSignal: controller.signal });
      assert.equal(job.alive(), 0);
      assert.equal(getEventListeners(controller.signal, "abort").length, 0);
      controller.abort();
      assert.equal((await run({ command: "exit 3" })).exitCode, 3);
    },

    "it answers at once although a background child holds the pipe, and the child lives on": async ({ session }) => {
      const { run } = await session();
      const job = nap();
      for (const way of ["", "nohup", "setsid"]) {
        const command = `${way} ${job.command} & until pgrep -x sleep; do :; done >/dev/null; echo started`;
        assert.equal((await within(10_000, way, run({ command }))).stdout, "started\n");
        assert.equal(job.alive(), 0, `${way}: the child outlived its command`);
        assert.deepEqual(sandboxProcesses(), []);
      }
    },

    "a background child can go on writing to the stdout that nobody reads": async ({ session }) => {
      const s = await session();
      const job = nap();
      assert.equal(
        await output(s, `( while :; do head -c 50000 /dev/zero; done | tr '\\0' x; ${job.command} ) >&2 & echo first`),
        "first\n",
      );
      assert.deepEqual(sandboxProcesses(), []);
    },
  },

  spawn: {
    "kill() after the exit leaves the background job alone": async ({ session }) => {
      const { spawn } = await session();
      const job = nap();
      const p = await spawn({ command: `${job.command} & exit 0` });
      assert.deepEqual(await within(10_000, "wait()", p.wait()), { exitCode: 0 });
      assert.deepEqual(sandboxProcesses(), []);
      await p.kill();
      assert.deepEqual(await p.wait(), { exitCode: 0 });
    },

    "aborted afterwards: the background job lives, and the signal is let go": async ({ session }) => {
      const { spawn } = await session();
      const job = nap();
      const controller = new AbortController();
      const p = await spawn({ command: `${job.command} & exit 2`, abortSignal: controller.signal });
      assert.deepEqual(await p.wait(), { exitCode: 2 });
      assert.equal(job.alive(), 0);
      assert.equal(getEventListeners(controller.signal, "abort").length, 0);
      controller.abort();
      assert.deepEqual(await p.wait(), { exitCode: 2 });
    },

    // What is unread when the sandbox ends is not lost.
    "streams end with the main process while a background child holds them": async ({ session }) => {
      const { spawn } = await session();
      const job = nap();
      const p = await spawn({ command: `${job.command} & head -c 50000 /dev/zero; echo last >&2; exit 0` });
      assert.deepEqual(await within(10_000, "wait()", p.wait()), { exitCode: 0 });
      assert.deepEqual(sandboxProcesses(), []);
      assert.equal((await textOf(p.stdout)).length, 50_000);
      assert.equal(await textOf(p.stderr), "last\n");
    },
  },

  session: {
    "/tmp and /dev/shm are shared by commands and with the file API": async ({ open, watch }) => {
      const { events, onEvent } = watch();
      const { session } = await open({ onEvent });
      await output(
        session,
        `echo from-command > /tmp/a; echo shm > /dev/shm/s; cat /var/tmp/a
        ln -s /tmp tmp; ln -s /tmp/file far; ln -s /dev/shm/s shm; ln -s /var/tmp var; ln -s tmp chain`,
      );
      assert.equal(await output(session, `${listTmp}; ls -A /dev/shm`), "");
      const refused = (error: unknown) => {
        const { remedy } = error as { remedy?: string };
        assert.match(remedy ?? "", /processes: "session"/);
        return code("ERR_UNSUPPORTED")(error);
      };
      const named = ["/tmp/a", "/var/tmp/a", "/dev/shm/s", "/tmp/not/there", "/tmp", "//tmp/./a", "/tmp/"];
      const before = events.length;
      const all = async (paths: readonly string[]) => {
        for (const path of paths) {
          await assert.rejects(session.readFile({ path }), refused, `readFile ${path}`);
          await assert.rejects(session.readTextFile({ path }), refused, `readTextFile ${path}`);
          await assert.rejects(session.writeTextFile({ path, content: "x" }), (error) => {
            // A path that ends in a slash is no file's, wherever it leads.
            return path.endsWith("/") ? code("EISDIR")(error) : refused(error);
          });
          await assert.rejects(
            session.writeFile({ path, content: new Blob(["x"]).stream() }),
            path.endsWith("/") ? code("EISDIR") : refused,
          );
        }
      };
      await all(named);
      for (const path of named)
        await assert.rejects(session.removePath({ path, force: true, recursive: true }), refused);
      assert.equal(events.length, before, "a sandbox was started for a path that says itself where it leads");

      const linked = ["tmp/a", "tmp/not/there", "far", "shm", "var/a", "chain/a", "../tmp/a", "/usr/../tmp/a"];
      await all(linked);
      for (const path of ["tmp/a", "tmp/not/there", "var/a", "../tmp/a"]) {
        await assert.rejects(session.removePath({ path, force: true, recursive: true }), refused, path);
      }
      assert.equal(
        await output(session, "readlink tmp far shm var chain"),
        "/tmp\n/tmp/file\n/dev/shm/s\n/var/tmp\ntmp\n",
      );
      assert.equal(await session.readTextFile({ path: "/etc/hostname" }), "sandbox\n");
      await session.writeTextFile({ path: "/tmp/../workspace/back", content: "here\n" });
      assert.equal(await session.readTextFile({ path: "back" }), "here\n");
      assert.deepEqual(sandboxProcesses(), []);
      await until("all is told", () => events.at(-1)?.type === "cleanup.completed");
      checkAddsUp(events);
    },

    "sessions share neither files nor /tmp nor processes": async ({ open }) => {
      const one = (await open({}, { key: "one" })).session;
      const two = (await open({}, { key: "two" })).session;
      const job = nap();
      const p = await one.spawn({ command: `echo secret > mine; echo secret > /tmp/mine; ${job.command}` });
      await job.reached(1);
      for (const s of [one, two]) {
        assert.equal(await output(s, `cat /tmp/mine 2>/dev/null; pgrep sleep; ${listTmp}; true`), "");
      }
      assert.equal(await output(two, "ls -A"), "");
      assert.equal(await output(one, "cat mine"), "secret\n");
      await p.kill();
    },

    "a background server is reached by the next command, with and without a network": async ({ open }) => {
      const { session } = await open({ networkPolicy: "deny-all" });
      const server = await session.spawn({
        command: `exec ${quote(process.execPath)} -e 'require("node:net").createServer().listen(18080, () => console.log("up"))'`,
      });
      await server.stdout.getReader().read();
      const { exitCode } = await session.run({ command: "exec 3<>/dev/tcp/127.0.0.1/18080" });
      assert.equal(exitCode, 1, "two commands share a loopback");
      await server.kill();
    },

    "all handles of a key lead to one sandbox, and a stop of one ends it": async ({ open }) => {
      const [a, b, c] = await Promise.all([open(), open(), open()]);
      const job = nap();
      const running = await Promise.all([a, b].map(({ session }) => session.spawn({ command: job.command })));
      await job.reached(2);
      await c.stop();
      assert.equal(job.alive(), 0);
      assert.deepEqual(sandboxProcesses(), []);
      for (const p of running) assert.deepEqual(await p.wait(), { exitCode: 137 });
    },

    "after stop() the session works on: files stay, /tmp and background jobs are gone": async ({ open }) => {
      const { session, stop } = await open();
      const job = nap();
      const running = session.run({ command: `echo kept > file; setsid ${job.command} & ${job.command}` });
      await job.reached(2);
      await stop();
      assert.equal(job.alive(), 0);
      assert.deepEqual(sandboxProcesses(), []);
      assert.equal((await running).exitCode, 137);
      await Promise.all([stop(), stop()]);
      assert.equal(await output(session, "cat file"), "kept\n");
    },

    "a sandbox in which nothing runs is ended, a background job keeps it, and the next command works": async (
      place,
    ) => {
      const { session } = await place.open({ idleTimeoutMs: 100 });
      const job = nap();
      const p = await session.spawn({ command: job.command });
      await job.reached(1);
      await setTimeout(500);
      assert.equal(job.alive(), 1, "what runs is not idle");
      await p.kill();
      await p.wait();
      await output(session, "true");
      assert.deepEqual(sandboxProcesses(), []);
    },

    "one sandbox more than may live ends the one unused for longest, or waits": async (place) => {
      const options = { maxLiveGenerations: 2 };
      const open = async (key: string) => (await place.open(options, { key })).session;
      const [a, b] = [await open("a"), await open("b")];
      const running = await Promise.all([a, b].map((s) => s.spawn({ command: "exec sleep 600" })));
      const waiting = Array.from({ length: 6 }, (_, i) => [a, b][i % 2]!.run({ command: `echo ${i}` }));
      const reading = a.readTextFile({ path: "/etc/hostname" });
      await assert.rejects(
        a.run({ command: "touch ran", abortSignal: AbortSignal.timeout(200) }),
        { name: "TimeoutError" },
        "it waits, and can be aborted",
      );
      await running[0]!.kill();
      assert.deepEqual(
        (await Promise.all(waiting)).map(({ stdout }) => stdout),
        ["0\n", "1\n", "2\n", "3\n", "4\n", "5\n"],
      );
      assert.equal(await reading, "sandbox\n");
      assert.equal(await a.readTextFile({ path: "ran" }), null);
      await running[1]!.kill();
    },

    // The second command finds no job to take over. It says so, and the tool
    // has to wait for the first.
    "a job is left in the background, watched and ended by other commands": async ({ open }) => {
      const { session } = await open();
      const launched = await session.spawn({
        command: `mkdir -p /tmp/.eve/jobs/x && cd /tmp/.eve/jobs/x || exit 1
          echo $$ > launcher; until [ -e /workspace/go ]; do sleep 0.02; done; echo "done"; exit 4`,
      });
      const claim = await session.run({
        command: "cd /tmp/.eve/jobs/x && mkdir claimed && kill -USR1 $(cat launcher)",
      });
      assert.equal(claim.exitCode, 1);
      assert.match(claim.stderr, /\/tmp\/\.eve\/jobs\/x: No such file or directory/);
      await assert.rejects(session.readTextFile({ path: "/tmp/.eve/jobs/x/stdout" }), code("ERR_UNSUPPORTED"));
      await session.writeTextFile({ path: "go", content: "" });
      assert.deepEqual(await within(20_000, "the launcher", launched.wait()), { exitCode: 4 });
      assert.equal(await textOf(launched.stdout), "done\n");
    },
  },

  // A session without a first sandbox has nothing to be ready for.
  standbys: Object.fromEntries(
    Object.keys(standbys).map((name) => [
      name,
      async ({ session }) => {
        assert.equal(await output(await session({ standby: true }), "echo here"), "here\n");
        await setTimeout(300);
        assert.deepEqual(sandboxProcesses(), []);
      },
    ]),
  ),

  terminal: {
    "kill() ends the whole tree, and a late kill() leaves what runs in the background": async ({ session }) => {
      const { spawn } = await session();
      const [near, far, left] = [nap(), nap(), nap()];
      const killed = await spawn({ command: `setsid ${far.command} & ${near.command} & wait`, pty: true });
      await until("both sleep", () => near.alive() + far.alive() === 2);
      await killed.kill();
      assert.equal(near.alive() + far.alive(), 0);
      assert.deepEqual(await killed.wait(), { exitCode: 137 });

      const over = await spawn({ command: `setsid ${left.command} & sleep 0.2; exit 6`, pty: true });
      await over.stdout.cancel();
      assert.deepEqual(await over.wait(), { exitCode: 6 });
      assert.deepEqual(sandboxProcesses(), []);
      await over.kill();
    },
  },

  files: {
    "a link out of the sandbox's view reads as `cat` does: nothing": async (place) => {
      const s = await place.session();
      const secret = join(place.directory, "secret");
      writeFileSync(secret, "host secret");
      await output(
        s,
        `ln -s ${quote(secret)} leak; ln -s ${quote(place.directory)} dir; ln -s ../../secret up; ln -s ../../../../../../../../etc/hostname far`,
      );
      await output(s, "! cat leak 2>/dev/null");
      // The host's directory may be in /tmp, of which the sandbox has its own.
      for (const path of ["leak", "dir/secret"]) {
        assert.equal(await s.readTextFile({ path }).catch((error) => code("ERR_UNSUPPORTED")(error) && null), null);
      }
      assert.equal(await s.readTextFile({ path: "up" }), null);
      assert.equal(await s.readTextFile({ path: "far" }), "sandbox\n");
      for (const path of ["leak", "dir/other"]) await assert.rejects(s.writeTextFile({ path, content: "own" }));
      await s.removePath({ path: "dir/secret", force: true }).catch(() => {});
      assert.equal(readFileSync(secret, "utf8"), "host secret");
      assert.deepEqual(readdirSync(place.directory).toSorted(), ["cache", "secret"]);
    },

    "a link to a name that is not UTF-8 is followed to that name": async ({ session }) => {
      await followOddLinks(await session(), "/workspace/odd");
    },
  },

  isolation: {
    "/proc shows the session's processes alone": async ({ open }) => {
      const { session } = await open();
      const other = nap();
      const p = await session.spawn({ command: other.command });
      await other.reached(1);
      const shown = await output(session, "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null");
      assert.ok(!shown.includes(other.command) && !shown.includes("node"), shown);
      await p.kill();
    },

    "no signal ends process 1, and the sandbox goes on": async ({ session }) => {
      assert.equal(
        await output(
          await session(),
          "for n in $(seq 64); do kill -$n 1 2>/dev/null; done; for t in /proc/1/task/*; do kill -9 ${t##*/} 2>/dev/null; done; echo on",
        ),
        "on\n",
      );
    },
  },

  events: {
    "a run: the sandbox starts, the command starts and finishes, with its code": async ({ open, watch, factory }) => {
      const { events, onEvent } = watch();
      const input = { key: "tagged", tags: { agent: "a", sessionId: "s" } };
      const { session, stop } = await open({ onEvent }, input);
      await session.run({ command: "exit 3" });
      await (await session.spawn({ command: "exit 4" })).wait();
      await until("both ends are told", () => events.filter(({ type }) => type === "cleanup.completed").length === 2);
      const told = [
        "generation.started",
        "command.started",
        "command.finished",
        "cleanup.started",
        "cleanup.completed",
      ];
      assert.deepEqual(
        events.map(({ type }) => type),
        [...told, ...told],
      );
      assert.deepEqual(
        finishedOf(events).map(({ reason, exitCode }) => ({ reason, exitCode })),
        [
          { reason: "exit", exitCode: 3 },
          { reason: "exit", exitCode: 4 },
        ],
      );
      for (const event of events) {
        assert.deepEqual(event.tags, factory.tagsOf(input));
        if (event.type === "cleanup.started") {
          assert.deepEqual([event.reason, event.requestedProcesses], ["command", 0]);
        }
      }
      checkAddsUp(events);
      await stop();
      assert.equal(events.length, 10);
    },

    "a stop tells what it cleaned up": async ({ open, watch }) => {
      const { events, onEvent } = watch();
      const { session, stop } = await open({ onEvent });
      const job = nap();
      const p = await session.spawn({ command: job.command });
      const running = session.run({ command: job.command });
      await job.reached(2);
      await stop();
      await Promise.all([p.wait(), running]);
      await until("both ends are told", () => events.filter(({ type }) => type === "cleanup.completed").length === 2);
      assert.deepEqual(
        finishedOf(events).map(({ reason }) => reason),
        ["cleanup", "cleanup"],
      );
      for (const event of events) {
        if (event.type === "cleanup.started") assert.deepEqual([event.reason, event.requestedProcesses], ["stop", 1]);
      }
      checkAddsUp(events);
    },
  },
};
