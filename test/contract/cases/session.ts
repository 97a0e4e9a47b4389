import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer as createHttpServer } from "node:http";
import { existsSync, readdirSync } from "node:fs";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";

import type { SandboxOperations } from "../../../lib/index.ts";
import { nap, program, sandboxProcesses, until, within } from "../host.ts";
import { code, listTmp, output, type Place, quote, same, textOf } from "../place.ts";
import type { Cases } from "../suite.ts";

export const session: Cases = {
  "opening a session starts no process, and neither do its files": async ({ open }) => {
    const { session } = await open();
    await session.writeTextFile({ path: "a/b", content: "x" });
    assert.equal(await session.readTextFile({ path: "a/b" }), "x");
    await session.removePath({ path: "a", recursive: true });
    assert.deepEqual(sandboxProcesses(), []);
  },

  "a copy of the session by spread works, and so does each method alone": async ({ open }) => {
    const { session } = await open();
    const copy = { ...session };
    assert.deepEqual(Object.keys(copy), Object.keys(session));
    assert.equal(await output(copy, "echo copied"), "copied\n");
    assert.equal(copy.resolvePath("a"), "/workspace/a");
    assert.equal(copy.resolvePath("/tmp/a"), "/tmp/a");
  },

  "/tmp and /dev/shm are shared by commands and with the file API": async ({ open }) => {
    const { session } = await open();
    await output(session, "echo from-command > /tmp/a; mkdir /tmp/dir; echo shm > /dev/shm/s");
    assert.equal(await output(session, "cat /tmp/a /var/tmp/a"), "from-command\nfrom-command\n");
    assert.equal(await session.readTextFile({ path: "/tmp/a" }), "from-command\n");
    assert.equal(await session.readTextFile({ path: "/dev/shm/s" }), "shm\n");
    assert.equal(await session.readTextFile({ path: "/tmp/nope" }), null);
    await assert.rejects(session.readTextFile({ path: "/tmp" }), code("EISDIR"));
    await assert.rejects(session.writeTextFile({ path: "/tmp", content: "" }), code("EISDIR"));
    await session.writeTextFile({ path: "/tmp/b", content: "from-api\n" });
    await session.writeTextFile({ path: "/tmp/made/up/c", content: "parents\n" });
    assert.equal(await output(session, "cat /tmp/b /tmp/made/up/c"), "from-api\nparents\n");
    await session.removePath({ path: "/tmp/made", recursive: true });
    const failure = new Error("source");
    const failing = new ReadableStream<Uint8Array>({ start: (controller) => controller.error(failure) });
    await assert.rejects(session.writeFile({ path: "/tmp/new", content: failing }), same(failure));
    assert.equal(await output(session, listTmp), "a\nb\ndir\n");
    await output(session, "ln -s /tmp t; ln -s /tmp/far far");
    await session.writeTextFile({ path: "far", content: "far\n" });
    assert.equal(await output(session, "cat /tmp/far; readlink far"), "far\n/tmp/far\n");
    await session.removePath({ path: "t", recursive: true });
    assert.equal(await output(session, `${listTmp}; ls`), "a\nb\ndir\nfar\nfar\n");
    // The host has another /tmp.
    assert.equal(existsSync("/tmp/b") && existsSync("/tmp/made"), false);
  },

  "sessions share neither files nor /tmp nor processes": async ({ open }) => {
    const one = (await open({}, { key: "one" })).session;
    const two = (await open({}, { key: "two" })).session;
    const job = nap();
    await output(one, `echo secret > mine; echo secret > /tmp/mine; ${job.command} & true`);
    assert.equal(await output(two, `cat mine /tmp/mine 2>/dev/null; pgrep sleep; ls -A; ${listTmp}; true`), "");
    assert.equal(await two.readTextFile({ path: "/tmp/mine" }), null);
  },

  "a background server is reached by the next command, with and without a network": async ({ open }) => {
    for (const networkPolicy of ["deny-all", "allow-all"] as const) {
      const { session } = await open({ networkPolicy }, { key: networkPolicy });
      const port = await serveInside(session);
      assert.equal(await fetchInside(session, port), "pong");
    }
  },

  "deny-all reaches no server of the host, allow-all does, and both switch live": async ({ open }) => {
    const port = await serveOutside();
    const opened = await open({ networkPolicy: "deny-all" });
    const { session } = opened;
    const reaches = () => reachesHost(session, port);
    assert.equal(await reaches(), false);
    await session.setNetworkPolicy("allow-all");
    assert.equal(await reaches(), true);
    await opened.use({ networkPolicy: "deny-all" });
    assert.equal(await reaches(), false);
    await opened.use({ networkPolicy: "allow-all" });
    await opened.use();
    await opened.use({});
    assert.equal(await reaches(), true);
  },

  "under deny-all there is loopback, and no other interface": async ({ open }) => {
    const { session } = await open({ networkPolicy: "deny-all" });
    assert.equal(await output(session, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"), "lo\n");
    assert.equal((await session.run({ command: "exec 3<>/dev/tcp/198.51.100.1/80" })).exitCode, 1);
  },

  "a policy that cannot be enforced is refused and changes nothing": async ({ open }) => {
    const port = await serveOutside();
    const opened = await open({ networkPolicy: "deny-all" });
    const headers = { authorization: "Basic x" };
    for (const finer of [
      { allow: { "example.com": [] } },
      { allow: { "github.com": [{ transform: [{ headers }] }], "*": [] } },
      { subnets: { deny: ["10.0.0.0/8"] } },
      "some",
    ] as unknown as "allow-all"[]) {
      await assert.rejects(opened.session.setNetworkPolicy(finer), code("ERR_UNSUPPORTED"));
      await assert.rejects(opened.use({ networkPolicy: finer }), code("ERR_UNSUPPORTED"));
    }
    assert.equal(await reachesHost(opened.session, port), false);
  },

  "a policy that was set survives another open, a stop and another process": async (place) => {
    const port = await serveOutside();
    const options = { networkPolicy: "allow-all" } as const;
    const first = await place.open(options);
    await first.session.setNetworkPolicy("deny-all");
    const again = await place.open(options);
    assert.equal(await reachesHost(again.session, port), false);
    await again.stop();
    assert.equal(await reachesHost(first.session, port), false);
    await first.shutdown();
    await again.shutdown();
    const lines = await elsewhere(
      place,
      options,
      { key: "session" },
      `(exec 3<>/dev/tcp/127.0.0.1/${port}) 2>&1; echo $?`,
    );
    assert.match(lines.join("\n"), /refused[^]*\n1$/);
  },

  "all handles of a key lead to one sandbox, and a stop of one ends it": async ({ open }) => {
    const [a, b, c] = await Promise.all([open(), open(), open()]);
    const job = nap();
    await output(a.session, `${job.command} & echo $! > /tmp/job`);
    assert.equal(await output(b.session, "kill -0 $(cat /tmp/job) && echo seen"), "seen\n");
    await Promise.all([a, b, c].map((o) => output(o.session, "true")));
    assert.equal(sandboxProcesses().filter(({ name }) => name === "bwrap").length <= 2, true);
    await c.stop();
    assert.equal(job.alive(), 0);
    assert.deepEqual(sandboxProcesses(), []);
  },

  "after stop() the session works on: files stay, /tmp and background jobs are gone": async ({ open }) => {
    const opened = await open();
    const { session, stop } = opened;
    const job = nap();
    await output(session, `echo kept > file; echo gone > /tmp/file; ${job.command} & setsid ${job.command} & true`);
    await job.reached(2);
    await stop();
    assert.equal(job.alive(), 0);
    assert.deepEqual(sandboxProcesses(), []);
    assert.equal(await output(session, `cat file; ${listTmp}`), "kept\n");
    await stop();
    await stop();
    await Promise.all([stop(), stop()]);
    assert.equal(await session.readTextFile({ path: "file" }), "kept\n");
    assert.equal(await output(session, "cat file"), "kept\n");
  },

  "stop() ends what runs: 137": async ({ open }) => {
    const { session, stop } = await open();
    const left = nap();
    const running = session.run({ command: left.command });
    const spawned = await session.spawn({ command: left.command });
    await left.reached(2);
    await stop();
    assert.equal(left.alive(), 0);
    assert.equal((await running).exitCode, 137);
    assert.deepEqual(await spawned.wait(), { exitCode: 137 });
    assert.equal(await textOf(spawned.stdout), "");
    await spawned.kill();
  },

  "stop() amid many commands: each of them settles, and later ones work": async ({ open }) => {
    const { session, stop } = await open();
    for (let round = 0; round < 5; round++) {
      const commands = Array.from({ length: 12 }, () => session.run({ command: "sleep 0.05; exit 3" }));
      const stopped = stop();
      for (const end of await Promise.allSettled(commands)) {
        if (end.status === "fulfilled") assert.ok([3, 137].includes(end.value.exitCode), `${end.value.exitCode}`);
        else code("ERR_CLOSED")(end.reason);
      }
      await stopped;
      assert.equal(await output(session, "echo on"), "on\n");
    }
  },

  "shutdown() ends session object and processes, twice is once, and files are found again": async ({ open }) => {
    const opened = await open();
    const job = nap();
    await output(opened.session, `echo kept > file; ${job.command} & true`);
    await opened.shutdown();
    assert.equal(job.alive(), 0);
    await opened.shutdown();
    await opened.stop();
    await assert.rejects(opened.session.run({ command: "true" }), code("ERR_CLOSED"));
    await assert.rejects(opened.session.spawn({ command: "true" }), code("ERR_CLOSED"));
    await assert.rejects(opened.session.readTextFile({ path: "file" }), code("ERR_CLOSED"));
    await assert.rejects(opened.session.setNetworkPolicy("deny-all"), code("ERR_CLOSED"));
    const again = await open();
    assert.equal(await output(again.session, "cat file"), "kept\n");
  },

  "delete() removes the files and keeps the template; the key begins afresh": async (place) => {
    const adapter = place.adapter();
    await adapter.prewarm({ key: "template", seeds: [{ path: "/workspace/seed", content: "seed" }] });
    const input = { key: "session", templateKey: "template" };
    const opened = await adapter.open(input);
    const neighbour = await adapter.open({ key: "neighbour", templateKey: "template" });
    await neighbour.session.writeTextFile({ path: "own", content: "own" });
    const job = nap();
    await output(opened.session, `echo mine > mine; ${job.command} & true`);
    await opened.session.setNetworkPolicy("deny-all");
    await opened.delete();
    assert.equal(job.alive(), 0);
    assert.equal(readdirSync(join(place.cacheDir, "sessions")).length, 1);
    await opened.delete();
    await assert.rejects(opened.session.readTextFile({ path: "mine" }), code("ERR_SESSION_GONE"));
    await assert.rejects(opened.session.run({ command: "true" }), code("ERR_SESSION_GONE"));

    const fresh = await adapter.open(input);
    assert.equal(await output(fresh.session, "ls -A"), "seed\n");
    assert.equal(await neighbour.session.readTextFile({ path: "own" }), "own");
    // The policy belonged to what was deleted.
    assert.equal(await reachesHost(fresh.session, await serveOutside()), true);
  },

  "opening one key eight times at once gives one whole workspace": async (place) => {
    const adapter = place.adapter();
    await manyFiles(adapter);
    const opened = await Promise.all(
      Array.from({ length: 8 }, () => adapter.open({ key: "session", templateKey: "template" })),
    );
    const counts = await Promise.all(opened.map(({ session }) => output(session, "ls many | wc -l; echo x >> shared")));
    assert.deepEqual(
      counts,
      Array.from({ length: 8 }, () => "300\n"),
    );
    assert.equal(await output(opened[0]!.session, "wc -l < shared"), "8\n");
    assert.equal(readdirSync(join(place.cacheDir, "sessions")).length, 1);
  },

  "opening one key in four processes at once gives one whole workspace": async (place) => {
    await manyFiles(place.adapter());
    const input = { key: "session", templateKey: "template" };
    const counts = await Promise.all(
      Array.from({ length: 4 }, () => elsewhere(place, {}, input, "ls many | wc -l; echo x >> shared")),
    );
    assert.deepEqual(
      counts,
      Array.from({ length: 4 }, () => ["300"]),
    );
    const { session } = await place.open({}, input);
    assert.equal(await output(session, "wc -l < shared"), "4\n");
    assert.equal(readdirSync(join(place.cacheDir, "sessions")).length, 1);
  },

  "a session that another process uses is not deleted": async (place) => {
    const { open, factory, cacheDir } = place;
    const other = program("open", {
      factory: factory.module,
      options: { cacheDir },
      input: { key: "session" },
      command: "echo ready; exec sleep 600",
      stream: true,
    });
    place.defer(() => other.kill());
    await until("the other process runs a command", () => other.lines().includes("ready"));
    const opened = await open();
    await assert.rejects(opened.delete(), code("ERR_IN_USE"));
    other.kill();
    await until("the other process's sandbox has ended", async () => {
      return await opened.delete().then(
        () => true,
        () => false,
      );
    });
  },

  "a killed process leaves nothing running, and its session opens again": async (place) => {
    const left = nap();
    const other = program("open", {
      factory: place.factory.module,
      options: { cacheDir: place.cacheDir },
      input: { key: "session" },
      command: `echo kept > file; setsid ${left.command} & ${left.command} & echo ready; exec ${left.command}`,
      stream: true,
    });
    await until("the other process runs a command", () => other.lines().includes("ready"));
    await left.reached(3);
    other.kill();
    await left.reached(0);
    assert.equal(await output(await place.session(), "cat file"), "kept\n");
  },

  // The protocol of a tool that leaves slow commands in the background: a
  // launcher that is told by signal to let go, and files in /tmp about its job.
  "a job is left in the background, watched and ended by other commands": async ({ open }) => {
    const { session } = await open();
    const job = nap();
    const launched = await session.spawn({
      command: `mkdir -p /tmp/.eve/jobs/x && cd /tmp/.eve/jobs/x || exit 1
        trap 'released=1' USR1
        echo $$ > launcher
        set -m
        ( cd /workspace; bash -c 'echo line 1; echo line 2; ${job.command}' >/tmp/.eve/jobs/x/stdout 2>/tmp/.eve/jobs/x/stderr ) &
        group=$!
        set +m
        echo $group > pid
        ( while kill -0 $group 2>/dev/null; do sleep 0.05; done; echo 143 > exit ) >/dev/null 2>&1 &
        until [ "$released" ]; do wait $group; done
        echo "running $group"`,
    });
    await job.reached(1);
    await output(session, "cd /tmp/.eve/jobs/x && mkdir claimed && kill -USR1 $(cat launcher)");
    assert.deepEqual(await within(20_000, "the launcher", launched.wait()), { exitCode: 0 });
    assert.match(await textOf(launched.stdout), /^running \d+\n$/);
    assert.equal(job.alive(), 1);

    assert.equal(
      await output(session, "tail -n 1 /tmp/.eve/jobs/x/stdout; ls /tmp/.eve/jobs/x/exit 2>/dev/null; true"),
      "line 2\n",
    );
    assert.equal(await session.readTextFile({ path: "/tmp/.eve/jobs/x/stdout", startLine: 1, endLine: 1 }), "line 1\n");
    await output(session, "kill -- -$(cat /tmp/.eve/jobs/x/pid)");
    await job.reached(0);
    await until("the job's exit is told", async () => {
      return (await session.readTextFile({ path: "/tmp/.eve/jobs/x/exit" })) === "143\n";
    });
  },

  "a sandbox in which nothing runs is ended, a background job keeps it, and the next command works": async (place) => {
    const { events, onEvent } = place.watch();
    const { session } = await place.open({ onEvent, idleTimeoutMs: 300 });
    const job = nap();
    await output(session, `echo kept > file; echo gone > /tmp/file; ${job.command} & true`);
    await setTimeout(1500);
    assert.equal(job.alive(), 1);
    assert.equal(await output(session, "cat /tmp/file; pkill sleep"), "gone\n");
    await until("it is ended", () => events.at(-1)?.type === "cleanup.completed");
    assert.deepEqual(sandboxProcesses(), []);
    const ended = events.find((event) => event.type === "cleanup.started");
    assert.deepEqual([ended!.reason, ended!.requestedProcesses], ["idle", 0]);
    assert.equal(await output(session, `cat file; ${listTmp}`), "kept\n");
    await until("the next one is ended", () => sandboxProcesses().length === 0);
    assert.equal(await session.readTextFile({ path: "file" }), "kept\n");
    assert.deepEqual(sandboxProcesses(), []);
  },

  "one sandbox more than may live ends the one unused for longest, or waits": async (place) => {
    const { events, onEvent } = place.watch();
    const options = { maxLiveGenerations: 2, onEvent };
    const open = async (key: string) => (await place.open(options, { key })).session;
    const [a, b, c] = [await open("a"), await open("b"), await open("c")];
    const job = nap();
    await output(a, `${job.command} & true`);
    await output(b, "echo kept > file; echo gone > /tmp/file");
    // Only a's is unused for longer, but something runs in it.
    await output(c, "true");
    const ended = events.filter((event) => event.type === "cleanup.started");
    assert.deepEqual(
      ended.map(({ reason }) => reason),
      ["limit"],
    );
    assert.equal(job.alive(), 1);
    assert.equal(await output(b, `cat file; ${listTmp}`), "kept\n");

    const running = await b.spawn({ command: "exec sleep 600" });
    const controller = new AbortController();
    const [given, waiting] = [
      c.run({ command: "touch ran", abortSignal: controller.signal }),
      c.run({ command: "echo c" }),
    ];
    await setTimeout(200);
    controller.abort("enough");
    await assert.rejects(given, same("enough"));
    const { session: impatient } = await place.open({ ...options, queue: false }, { key: "d" });
    await assert.rejects(impatient.run({ command: "touch ran" }), { code: "ERR_BUSY", limit: 2, live: 2 });
    await running.kill();
    assert.deepEqual((await waiting).stdout, "c\n");
    assert.equal(await c.readTextFile({ path: "ran" }), null);
    assert.equal(job.alive(), 1);
  },

  "many sessions at once": async ({ open }) => {
    const outputs = await Promise.all(
      Array.from({ length: 6 }, async (_, i) => {
        const { session } = await open({ networkPolicy: i % 2 ? "deny-all" : "allow-all" }, { key: `s${i}` });
        return await output(session, `echo ${i} > file; cat file`);
      }),
    );
    assert.deepEqual(outputs, ["0\n", "1\n", "2\n", "3\n", "4\n", "5\n"]);
  },
};

/** Opens a session in a process of its own, runs a command and resolves to the lines of its output. */
async function elsewhere(place: Place, options: object, input: object, command: string): Promise<string[]> {
  const { factory, cacheDir } = place;
  return await program("open", { factory: factory.module, options: { ...options, cacheDir }, input, command }).done;
}

async function manyFiles({ prewarm }: ReturnType<Place["adapter"]>): Promise<void> {
  await prewarm({
    key: "template",
    bootstrap: async (session) => {
      await output(session, "mkdir many && for i in $(seq 300); do echo $i > many/$i; done");
    },
  });
}

const server = createHttpServer((_, response) => response.end("pong"));

/** The port of a server on this host's loopback. It keeps no test from ending. */
async function serveOutside(): Promise<number> {
  if (!server.listening) {
    server.listen(0, "127.0.0.1").unref();
    await once(server, "listening");
  }
  return (server.address() as AddressInfo).port;
}

async function reachesHost(session: SandboxOperations, port: number): Promise<boolean> {
  const { exitCode } = await session.run({ command: `exec 3<>/dev/tcp/127.0.0.1/${port}` });
  return exitCode === 0;
}

/** Leaves a server in the background of the sandbox and resolves to its port. */
async function serveInside(session: SandboxOperations): Promise<string> {
  await session.writeTextFile({
    path: "server.cjs",
    content: `const server = require("node:http").createServer((_, response) => response.end("pong"));
      server.listen(0, "127.0.0.1", () => require("node:fs").writeFileSync("port", String(server.address().port)));`,
  });
  // The Node that runs this is one that every sandbox sees.
  await output(session, `${quote(process.execPath)} server.cjs >server.log 2>&1 & echo started`);
  let port: string | null = null;
  await until("the server listens", async () => (port = await session.readTextFile({ path: "port" })));
  return port!;
}

async function fetchInside(session: SandboxOperations, port: string): Promise<string | undefined> {
  const request = String.raw`exec 3<>/dev/tcp/127.0.0.1/${port} && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && cat <&3`;
  return (await output(session, request)).split("\r\n\r\n")[1];
}
