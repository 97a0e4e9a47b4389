import assert from "node:assert/strict";

import { descriptors, nap, until, within } from "../host.ts";
import { code, textOf } from "../place.ts";
import type { Cases } from "../suite.ts";

const key = (text: string) => Buffer.from(text);

export const terminal: Cases = {
  "it has the size that was asked for, a name and one stream, and takes keys": async ({ session }) => {
    const { spawn } = await session();
    const p = await spawn({
      command: [
        'stty size; tput cols; echo "$TERM"',
        "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal >&2",
        'read -r line; echo "got $line"; exit 4',
      ].join("\n"),
      pty: { cols: 123, rows: 45 },
    });
    // Typed at whatever moment, it is echoed there.
    const keyboard = p.stdin.getWriter();
    await keyboard.write(key("typed\r"));
    const seen = await textOf(p.stdout);
    assert.ok(seen.includes("typed\r\n"), seen);
    assert.equal(seen.replace("typed\r\n", ""), "45 123\r\n123\r\nxterm-256color\r\nterminal\r\ngot typed\r\n");
    assert.equal(await textOf(p.stderr), "");
    assert.deepEqual(await p.wait(), { exitCode: 4 });

    const usual = await spawn({ command: 'stty size; echo "$TERM"', pty: true, env: { TERM: "vt100" } });
    assert.equal(await textOf(usual.stdout), "24 80\r\nvt100\r\n");
    const none = await spawn({ command: 'tty || echo "$TERM"', pty: false });
    assert.equal(await textOf(none.stdout), "not a tty\ndumb\n");
  },

  "it can be resized while the command runs, which is told": async ({ session }) => {
    const { spawn, readTextFile } = await session();
    const p = await spawn({
      command: "trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.05; done",
      pty: true,
    });
    const reader = p.stdout.getReader();
    const { value } = await within(10_000, "the first line", reader.read());
    assert.equal(Buffer.from(value!).toString(), "ready\r\n");
    reader.releaseLock();
    for (const size of [{ cols: 0, rows: 5 }, { cols: 80, rows: 65_536 }, { cols: 1.5, rows: 5 }, {} as never]) {
      await assert.rejects(p.resize(size), code("ERR_INVALID_ARGUMENT"));
      await assert.rejects(spawn({ command: "touch never", pty: size }), code("ERR_INVALID_ARGUMENT"));
    }
    await p.resize({ cols: 100, rows: 50 });
    assert.equal(await textOf(p.stdout), "50 100\r\n");
    assert.deepEqual(await p.wait(), { exitCode: 5 });
    await p.resize({ cols: 1, rows: 1 });
    assert.equal(await readTextFile({ path: "never" }), null);
  },

  "Ctrl-C interrupts, Ctrl-D ends the input, and closing stdin types that": async ({ session }) => {
    const { spawn } = await session();
    const sleeper = nap();
    const interrupted = await spawn({ command: `trap 'echo caught' INT; ${sleeper.command}; echo after`, pty: true });
    await until("the command waits", () => sleeper.alive() === 1);
    await interrupted.stdin.getWriter().write(key("\x03"));
    assert.equal(await textOf(interrupted.stdout), "^Ccaught\r\nafter\r\n");

    const ended = await spawn({ command: "cat; echo end", pty: true });
    const keyboard = ended.stdin.getWriter();
    await keyboard.write(key("line\r"));
    await keyboard.close();
    assert.equal(await textOf(ended.stdout), "line\r\nline\r\nend\r\n");
    assert.deepEqual(await ended.wait(), { exitCode: 0 });
  },

  "kill() ends the whole tree, and a late kill() leaves what runs in the background": async ({ session }) => {
    const { spawn } = await session();
    const [near, far, left] = [nap(), nap(), nap()];
    const killed = await spawn({ command: `setsid ${far.command} & ${near.command} & wait`, pty: true });
    await until("both sleep", () => near.alive() + far.alive() === 2);
    await killed.kill();
    assert.equal(near.alive() + far.alive(), 0);
    assert.equal(await textOf(killed.stdout), "");
    assert.deepEqual(await killed.wait(), { exitCode: 137 });

    const over = await spawn({ command: `setsid ${left.command} & sleep 0.2; exit 6`, pty: true });
    await over.stdout.cancel();
    assert.deepEqual(await over.wait(), { exitCode: 6 });
    await over.kill();
    assert.equal(left.alive(), 1);
  },

  "a command whose terminal nobody reads can be cancelled, and 1 MB through it arrives": async ({ session }) => {
    const { spawn } = await session();
    const given = await spawn({ command: "seq 100000; exit 7", pty: true });
    await given.stdout.cancel();
    assert.deepEqual(await given.wait(), { exitCode: 7 });

    const lines = Array.from({ length: 150_000 }, (_, n) => `${n + 1}\r\n`).join("");
    const read = await spawn({ command: "seq 150000", pty: true });
    assert.equal(await textOf(read.stdout), lines);
  },

  "40 at once leave no descriptor behind": async ({ session }) => {
    const { run, spawn } = await session();
    await run({ command: "true" });
    const before = descriptors();
    for (let round = 0; round < 3; round++) {
      const all = await Promise.all(Array.from({ length: 40 }, () => spawn({ command: "read -r _", pty: true })));
      await Promise.all(
        all.map(async ({ stdin, stdout, stderr, wait }) => {
          const keyboard = stdin.getWriter();
          await keyboard.write(key("\r"));
          await Promise.all([textOf(stdout), textOf(stderr), wait()]);
          await keyboard.close();
        }),
      );
    }
    await until("all descriptors are closed", () => descriptors() <= before);
  },
};
