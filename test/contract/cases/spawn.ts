import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { readFile } from "node:fs/promises";
import { setTimeout } from "node:timers/promises";
import v8 from "node:v8";
import vm from "node:vm";

import type { SandboxOperations } from "../../../lib/index.ts";
import { descriptors, nap, until, within } from "../host.ts";
import { bytesOf, code, output, same, textOf } from "../place.ts";
import type { Cases } from "../suite.ts";

v8.setFlagsFromString("--expose-gc");
const collectGarbage = vm.runInNewContext("gc") as () => void;

export const spawn: Cases = {
  "both streams bring their bytes unchanged, and end": async ({ session }) => {
    const { spawn, readBinaryFile } = await session();
    const p = await spawn({ command: "head -c 700000 /dev/urandom | tee bytes; printf 'err\\xff' >&2; exit 3" });
    assert.equal(typeof p.pid, "number");
    const [stdout, stderr, end] = await Promise.all([bytesOf(p.stdout), bytesOf(p.stderr), p.wait()]);
    assert.deepEqual(end, { exitCode: 3 });
    assert.equal(stdout.length, 700_000);
    assert.ok(stdout.equals((await readBinaryFile({ path: "bytes" }))!));
    assert.deepEqual([...stderr], [...Buffer.from("err"), 0xff]);
  },

  "variables and the working directory are run()'s": async ({ session }) => {
    const { run, spawn } = await session({ env: { A: "option", B: "option" } });
    await run({ command: "mkdir -p a/b" });
    const said = async (options: Omit<Parameters<typeof spawn>[0], "command">) => {
      const command = 'printf "%s " "$PWD" "$A" "${B-unset}" "$AI_AGENT"';
      const { stdout } = await spawn({ ...options, command });
      const text = await textOf(stdout);
      assert.equal((await run({ ...options, command })).stdout, text);
      return text;
    };
    assert.equal(await said({}), "/workspace option option eve ");
    assert.equal(
      await said({ workingDirectory: "a/b", env: { A: "call", B: undefined } }),
      "/workspace/a/b call unset eve ",
    );
    assert.equal(await said({ workingDirectory: "/tmp", env: { AI_AGENT: "other" } }), "/tmp option option other ");
  },

  "output arrives while the command runs": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({ command: "echo ready; exec sleep 600" });
    const reader = p.stdout.getReader();
    const { value } = await within(10_000, "the first line", reader.read());
    assert.equal(Buffer.from(value!).toString(), "ready\n");
    await p.kill();
    assert.equal((await reader.read()).done, true);
  },

  "a command that nobody reads from comes to wait, and goes on when somebody does": async ({ session }) => {
    const { spawn, readTextFile } = await session();
    const p = await spawn({ command: "i=0; while :; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > n; done" });
    const reader = p.stdout.getReader();
    await reader.read();
    const written = async () => Number((await readTextFile({ path: "n" })) ?? 0);
    const stalled = async () => {
      const before = await written();
      await setTimeout(200);
      return before > 0 && (await written()) === before;
    };
    await until("the command waits", stalled);
    const held = await written();
    assert.ok(held <= 64, `${held} parts of 64 KiB were taken from it unread`);
    let bytes = 0;
    while (bytes < 8 << 20) bytes += (await reader.read()).value!.byteLength;
    // The shell empties the file before it writes the next number.
    await until("it goes on", async () => (await written()) > held);
    await p.kill();
    assert.deepEqual(await p.wait(), { exitCode: 137 });
  },

  "`yes` is read once, killed, and its stream ends": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({ command: "yes" });
    const reader = p.stdout.getReader();
    assert.equal((await reader.read()).done, false);
    await within(20_000, "kill()", p.kill());
    await within(
      20_000,
      "the rest of the stream",
      (async () => {
        while (!(await reader.read()).done);
      })(),
    );
    assert.deepEqual(await p.wait(), { exitCode: 137 });
    await p.kill();
  },

  "to cancel one stream disturbs neither the command nor the other stream": async ({ session }) => {
    const { spawn } = await session();
    for (const [cancelled, kept] of [
      ["stdout", "stderr"],
      ["stderr", "stdout"],
    ] as const) {
      const p = await spawn({ command: "for i in $(seq 5000); do echo $i; echo $i >&2; done; exit 6" });
      await p[cancelled].cancel();
      assert.equal((await textOf(p[kept])).split("\n").length, 5001);
      assert.deepEqual(await p.wait(), { exitCode: 6 });
    }
  },

  "to cancel a stream that is being read lets the command run on": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({ command: "seq 200000; exit 7" });
    const reader = p.stdout.getReader();
    await reader.read();
    await reader.cancel();
    assert.deepEqual(await within(20_000, "wait()", p.wait()), { exitCode: 7 });
  },

  "wait() can be called often, early, late and together": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({ command: "sleep 0.1; exit 9" });
    assert.deepEqual(await Promise.all([p.wait(), p.wait()]), [{ exitCode: 9 }, { exitCode: 9 }]);
    await p.stdout.cancel();
    await p.stderr.cancel();
    assert.deepEqual(await p.wait(), { exitCode: 9 });
  },

  "wait() needs no reader for a little output, which can be read afterwards": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({ command: "echo out; echo err >&2; exit 3" });
    assert.deepEqual(await within(10_000, "wait()", p.wait()), { exitCode: 3 });
    assert.equal(await textOf(p.stdout), "out\n");
    assert.equal(await textOf(p.stderr), "err\n");
  },

  "wait() needs no reader for 2 MB either, which can be read afterwards": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({ command: "head -c 2000000 /dev/zero; head -c 1000000 /dev/zero >&2; exit 3" });
    assert.deepEqual(await within(20_000, "wait()", p.wait()), { exitCode: 3 });
    assert.equal((await bytesOf(p.stdout)).length, 2_000_000);
    assert.equal((await bytesOf(p.stderr)).length, 1_000_000);
    const unread = await spawn({ command: "head -c 2000000 /dev/zero" });
    assert.deepEqual(await within(20_000, "wait()", unread.wait()), { exitCode: 0 });
  },

  "wait() resolves for a flood that nobody reads, which says what it has lost": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({ command: "head -c 9000000 /dev/zero; echo whole >&2" });
    assert.deepEqual(await within(20_000, "wait()", p.wait()), { exitCode: 0 });
    const reader = p.stdout.getReader();
    let bytes = 0;
    await assert.rejects(async () => {
      for (;;) bytes += (await reader.read()).value!.byteLength;
    }, code("ERR_OUTPUT_LIMIT"));
    assert.equal(bytes, 4 << 20);
    assert.equal(await textOf(p.stderr), "whole\n");
  },

  "who reads while another waits gets every byte, whoever comes first": async ({ session }) => {
    const { spawn } = await session();
    const command = "seq 200000; sleep 0.05; seq 2000000";
    const expected = (await bytesOf((await spawn({ command })).stdout)).length;
    for (const pause of [0, 0, 20, 60]) {
      const p = await spawn({ command });
      const waited = p.wait();
      if (pause > 0) await setTimeout(pause);
      assert.equal((await bytesOf(p.stdout)).length, expected);
      assert.deepEqual(await waited, { exitCode: 0 });
    }
  },

  "a stream that was kept unread can be cancelled": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({ command: "head -c 3000000 /dev/zero; sleep 0.1; echo end >&2; exit 4" });
    const waited = p.wait();
    await p.stdout.cancel();
    assert.equal(await textOf(p.stderr), "end\n");
    assert.deepEqual(await within(20_000, "wait()", waited), { exitCode: 4 });
  },

  "200 commands whose output nobody reads, and FIFOs, keep nothing else waiting": async ({ open }) => {
    const { session, stop } = await open({ maxConcurrentProcesses: null });
    await output(session, "for i in $(seq 200); do mkfifo f$i /tmp/f$i; done");
    const before = descriptors();
    const unread = await Promise.all(Array.from({ length: 200 }, () => session.spawn({ command: "exec yes" })));
    const readers = unread.map(({ stderr }) => stderr.getReader().read());
    const fifos = unread.flatMap((_, i) => [`f${i + 1}`, `/tmp/f${i + 1}`]);
    const refused = await Promise.allSettled(fifos.map((path) => session.readFile({ path })));
    assert.ok(refused.every(({ status }) => status === "rejected"));
    assert.equal(await within(20_000, "run()", output(session, "echo on")), "on\n");
    await session.writeTextFile({ path: "file", content: "x" });
    assert.match((await within(20_000, "a read", session.readTextFile({ path: "/etc/hosts" })))!, /sandbox/);
    // Node's own pool of threads is left alone.
    assert.match(await within(20_000, "Node's own work", readFile("/etc/passwd", "utf8")), /root/);
    await stop();
    await Promise.all(readers);
    assert.deepEqual(
      new Set((await Promise.all(unread.map((p) => p.wait()))).map(({ exitCode }) => exitCode)),
      new Set([137]),
    );
    await Promise.all(unread.map(({ stdout }) => stdout.cancel()));
    await until("the descriptors are back", () => descriptors() <= before);
  },

  "kill() ends the whole tree, as often as it is called": async ({ session }) => {
    const { spawn } = await session();
    const [a, b] = [nap(), nap()];
    const p = await spawn({ command: `${a.command} & setsid ${a.command} & ${b.command}` });
    await a.reached(2);
    await b.reached(1);
    await Promise.all([p.kill(), p.kill()]);
    assert.equal(a.alive() + b.alive(), 0);
    assert.deepEqual(await within(10_000, "wait()", p.wait()), { exitCode: 137 });
    assert.equal(await textOf(p.stdout), "");
    await p.kill();
    assert.deepEqual(await p.wait(), { exitCode: 137 });
  },

  "kill() after the exit leaves the background job alone": async ({ session }) => {
    const { spawn, run } = await session();
    const job = nap();
    const p = await spawn({ command: `${job.command} & exit 0` });
    assert.deepEqual(await within(10_000, "wait()", p.wait()), { exitCode: 0 });
    // The shell may be gone before its job has become what it is known by.
    await job.reached(1);
    await p.kill();
    await run({ command: "true" });
    assert.equal(job.alive(), 1);
  },

  "aborted beforehand: it rejects with the reason and nothing starts": async ({ open, watch }) => {
    const { onEvent, events } = watch();
    const { session } = await open({ onEvent });
    const reason = new Error("no");
    await assert.rejects(session.spawn({ command: "touch ran", abortSignal: AbortSignal.abort(reason) }), same(reason));
    assert.equal(await session.readTextFile({ path: "ran" }), null);
    assert.deepEqual(events, []);
  },

  "aborted while it starts: it rejects with the reason and leaves nothing": async ({ session }) => {
    const { spawn, run } = await session();
    const left = nap();
    await run({ command: "true" });
    for (let i = 0; i < 30; i++) {
      const controller = new AbortController();
      const started = spawn({ command: `${left.command} & ${left.command}`, abortSignal: controller.signal });
      if (i % 3 === 1) await Promise.resolve();
      if (i % 3 === 2) await setTimeout(i / 10);
      controller.abort(i);
      await assert.rejects(
        started.then((p) => p.wait()),
        same(i),
      );
      assert.equal(left.alive(), 0);
    }
  },

  "aborted meanwhile: wait() rejects with the reason, streams end, the tree is dead": async ({ session }) => {
    const { spawn } = await session();
    const left = nap();
    const controller = new AbortController();
    const p = await spawn({
      command: `setsid ${left.command} & set -m; ${left.command} & set +m; echo ready; ${left.command}`,
      abortSignal: controller.signal,
    });
    await left.reached(3);
    const reason = { why: "abort" };
    controller.abort(reason);
    await assert.rejects(within(20_000, "wait()", p.wait()), same(reason));
    assert.equal(left.alive(), 0);
    assert.equal(await textOf(p.stdout), "ready\n");
    await assert.rejects(p.wait(), same(reason));
    await p.kill();
  },

  "aborted afterwards: the background job lives, and the signal is let go": async ({ session }) => {
    const { spawn, run } = await session();
    const job = nap();
    const controller = new AbortController();
    const p = await spawn({ command: `${job.command} & exit 2`, abortSignal: controller.signal });
    assert.deepEqual(await p.wait(), { exitCode: 2 });
    assert.equal(getEventListeners(controller.signal, "abort").length, 0);
    await job.reached(1);
    controller.abort();
    await run({ command: "true" });
    assert.equal(job.alive(), 1);
    assert.deepEqual(await p.wait(), { exitCode: 2 });
  },

  "stdin takes what is written, and closing it is end of file": async ({ session }) => {
    const { spawn } = await session();
    for (const stdin of [true, "pipe"] as const) {
      const p = await spawn({ command: "tr a-z A-Z; exit 8", stdin });
      const writer = p.stdin.getWriter();
      await writer.write(Buffer.from("first "));
      await writer.write(new Uint8Array());
      await writer.write(Buffer.from("second"));
      await writer.close();
      assert.equal(await textOf(p.stdout), "FIRST SECOND");
      assert.deepEqual(await p.wait(), { exitCode: 8 });
    }
  },

  "5 MB through stdin and back arrive unchanged": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({ command: "cat", stdin: true });
    const content = Buffer.alloc(
      5 << 20,
      Uint8Array.from({ length: 251 }, (_, i) => i),
    );
    const writer = p.stdin.getWriter();
    const written = writer.write(content).then(() => writer.close());
    const [back] = await Promise.all([bytesOf(p.stdout), written]);
    assert.ok(back.equals(content));
  },

  "writing to a stdin that nobody reads fails with EPIPE": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({ command: "exec 0<&-; echo closed; exec sleep 600", stdin: true });
    await p.stdout.getReader().read();
    const writer = p.stdin.getWriter();
    writer.closed.catch(() => {});
    await assert.rejects(writer.write(Buffer.from("x")), code("EPIPE"));
    await p.kill();
  },

  "without stdin a command finds end of file, and the object has none": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({ command: "cat; echo end" });
    assert.equal(await within(10_000, "cat", textOf(p.stdout)), "end\n");
    assert.equal("stdin" in p, false);
  },

  "streams end with the main process while a background child holds them": async ({ session }) => {
    const { spawn } = await session();
    const job = nap();
    const p = await spawn({ command: `${job.command} & echo before; exit 0` });
    assert.equal(await within(10_000, "the stream", textOf(p.stdout)), "before\n");
    assert.equal(await textOf(p.stderr), "");
    assert.deepEqual(await p.wait(), { exitCode: 0 });
    await job.reached(1);
  },

  "process objects that were dropped leak nothing": async ({ session }) => {
    const s = await session();
    await output(s, "true");
    const before = descriptors();
    for (let i = 0; i < 20; i++) {
      await Promise.all(Array.from({ length: 10 }, () => s.spawn({ command: "echo unread", stdin: i % 2 === 0 })));
    }
    await until("the descriptors are back", async () => {
      collectGarbage();
      await output(s, "true");
      return descriptors() <= before + 2;
    });
  },

  "a command whose process object was dropped goes on": async ({ session }) => {
    const s = await session();
    await dropped(
      s,
      "until [ -e go ]; do sleep 0.02; done; for i in $(seq 40); do head -c 50000 /dev/zero; done; touch done",
    );
    await s.writeTextFile({ path: "go", content: "" });
    await until("it has written 2 MB that nobody read", async () => {
      collectGarbage();
      return (await s.readTextFile({ path: "done" })) !== null;
    });
  },
};

/** Starts a command and keeps nothing of it, not even in a frame of the caller. */
async function dropped(session: SandboxOperations, command: string): Promise<void> {
  await session.spawn({ command });
}
