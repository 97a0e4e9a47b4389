import assert from "node:assert/strict";
import { getEventListeners } from "node:events";

import { capturedOutput, SandboxError } from "../../../lib/index.ts";
import { descriptors, nap, until, within } from "../host.ts";
import { bytesOf, code, output, same } from "../place.ts";
import type { Cases } from "../suite.ts";

const script = (lines: readonly string[]) => lines.join("\n");

export const run: Cases = {
  "the exit code is the command's own, and 128+n after a signal": async ({ session }) => {
    const { run } = await session();
    for (const [command, expected] of Object.entries({
      true: 0,
      "exit 3": 3,
      false: 1,
      "exit 255": 255,
      "kill -9 $$": 137,
      "kill -TERM $$": 143,
      "no-such-command": 127,
      "": 0,
      // Not an option of bash.
      "-x": 127,
    })) {
      assert.equal((await run({ command })).exitCode, expected, command);
    }
  },

  "stdout and stderr are told apart, and the result has nothing else": async ({ session }) => {
    const { run } = await session();
    assert.deepEqual(await run({ command: "echo out; echo err >&2; exit 4" }), {
      exitCode: 4,
      stdout: "out\n",
      stderr: "err\n",
    });
  },

  "bytes that are no UTF-8 become U+FFFD, a character in two writes does not": async ({ session }) => {
    const { run } = await session();
    const { stdout, stderr } = await run({ command: String.raw`printf 'a\xff\xfeb'; printf '\xff' >&2` });
    assert.equal(stdout, "a\ufffd\ufffdb");
    assert.equal(stderr, "\ufffd");
    assert.equal((await run({ command: String.raw`printf '\xe2'; sleep 0.2; printf '\x82\xac'` })).stdout, "€");
  },

  "a byte order mark is part of the output": async ({ session }) => {
    const { run, spawn, writeTextFile } = await session();
    await writeTextFile({ path: "marked", content: "\ufefftext" });
    assert.deepEqual(await run({ command: "cat marked; cat marked >&2" }), {
      exitCode: 0,
      stdout: "\ufefftext",
      stderr: "\ufefftext",
    });
    assert.deepEqual(
      [...(await bytesOf((await spawn({ command: "cat marked" })).stdout)).subarray(0, 4)],
      [0xef, 0xbb, 0xbf, 0x74],
    );
  },

  "16 MB on two streams at once arrive whole": async ({ session }) => {
    const { run } = await session();
    const { exitCode, stdout, stderr } = await run({
      command: "head -c 8000000 /dev/zero | tr '\\0' e >&2 & head -c 8000000 /dev/zero | tr '\\0' o; wait",
    });
    assert.equal(exitCode, 0);
    assert.equal(stdout.length, 8_000_000);
    assert.equal(stderr.length, 8_000_000);
    assert.match(stdout, /^o+$/);
    assert.match(stderr, /^e+$/);
  },

  "the working directory is relative to /workspace, or absolute": async ({ session }) => {
    const { run } = await session();
    await run({ command: "mkdir -p a/b" });
    for (const [workingDirectory, expected] of Object.entries({
      "a/b": "/workspace/a/b",
      "./a": "/workspace/a",
      ".": "/workspace",
      "": "/workspace",
      "a/../a/b": "/workspace/a/b",
      "/tmp": "/tmp",
      "/": "/",
      "/workspace/a": "/workspace/a",
    })) {
      assert.equal((await run({ command: "pwd", workingDirectory })).stdout, `${expected}\n`, workingDirectory);
    }
    assert.equal((await run({ command: "pwd" })).stdout, "/workspace\n");
  },

  "a working directory that is none is an error that names it, not an exit code": async ({ session }) => {
    const { run, spawn, writeTextFile } = await session();
    await writeTextFile({ path: "file", content: "" });
    for (const [workingDirectory, expected] of Object.entries({ nope: "ENOENT", file: "ENOTDIR", "/nope": "ENOENT" })) {
      for (const start of [run, spawn]) {
        await assert.rejects(start({ command: "touch /workspace/ran", workingDirectory }), (error: unknown) => {
          code(expected)(error);
          assert.equal("stdout" in (error as object), false, "nothing ran");
          assert.match(String(error), /nope|file/);
          return true;
        });
      }
    }
    assert.equal((await run({ command: "ls" })).stdout, "file\n");
  },

  "variables: the backend's lie beneath the call's, undefined takes away, AI_AGENT is eve": async ({ open }) => {
    const { session } = await open({ env: { A: "option", B: "option", C: undefined, LANG: undefined } });
    const { run } = session;
    const show = async (name: string, env?: Record<string, string | undefined>) =>
      (await run({ command: `printf '%s' "\${${name}-unset}"`, env })).stdout;
    assert.equal(await show("A"), "option");
    assert.equal(await show("A", { A: "call" }), "call");
    assert.equal(await show("A", { A: undefined }), "unset");
    assert.equal(await show("A", { A: "" }), "");
    assert.equal(await show("B", { A: "call" }), "option");
    assert.equal(await show("C"), "unset");
    assert.equal(await show("LANG"), "unset");
    assert.equal(await show("HOME"), "/workspace");
    assert.equal(await show("AI_AGENT"), "eve");
    assert.equal(await show("AI_AGENT", { AI_AGENT: "other" }), "other");
    assert.equal(await show("AI_AGENT", { AI_AGENT: undefined }), "unset");
    assert.equal(
      await show("TEXT", { TEXT: "two\nlines = 'quoted' $HOME \u20ac" }),
      "two\nlines = 'quoted' $HOME \u20ac",
    );
  },

  "nothing of this process's environment reaches a command": async ({ session, defer }) => {
    process.env["SBX_CONTRACT_SECRET"] = "x";
    defer(() => delete process.env["SBX_CONTRACT_SECRET"]);
    const { run } = await session();
    const names = (await run({ command: "env -0 | tr '\\0' '\\n' | cut -d= -f1 | sort | paste -sd ' '" })).stdout;
    const zone = process.env["TZ"] === undefined ? "" : " TZ";
    assert.equal(names, `AI_AGENT HOME LANG LOGNAME PATH PWD SHELL SHLVL TERM${zone} USER _\n`);
  },

  "a terminal, a shell, a user and a time zone are named, and the author's names win": async ({ open, defer }) => {
    const { TZ } = process.env;
    defer(() => {
      if (TZ === undefined) delete process.env["TZ"];
      else process.env["TZ"] = TZ;
    });
    const { session } = await open();
    process.env["TZ"] = "Asia/Tokyo";
    assert.equal(await output(session, 'echo "$TERM $TZ $(date -d @0 +%H)"'), "dumb Asia/Tokyo 09\n");
    process.env["TZ"] = "UTC";
    assert.equal(await output(session, 'echo "$TZ"; [ -x "$SHELL" ] && "$SHELL" -c "echo runs"'), "UTC\nruns\n");
    delete process.env["TZ"];
    assert.equal(await output(session, 'echo "${TZ-unset}"; [ "$USER" = "$LOGNAME" ] && echo one'), "unset\none\n");
    const env = { TERM: "xterm", TZ: "Europe/Paris", USER: "me", LOGNAME: undefined, SHELL: "/bin/false" };
    const command = 'echo "$TERM $TZ $USER ${LOGNAME-unset} $SHELL"';
    assert.equal((await session.run({ command, env })).stdout, "xterm Europe/Paris me unset /bin/false\n");
    const { session: other } = await open({ env });
    assert.equal(await output(other, command), "xterm Europe/Paris me unset /bin/false\n");
  },

  "whoever this process runs as has a name inside, the same for every program": async ({ session }) => {
    const { run } = await session();
    const user = process.getuid?.() === 0 ? "root" : "sandbox";
    for (const command of [
      "whoami",
      "id -un",
      'echo "$USER"',
      "env -u USER -u LOGNAME python3 -c 'import getpass; print(getpass.getuser())'",
      `'${process.execPath}' -p 'os.userInfo().username'`,
      `'${process.execPath}' -p 'os.userInfo().homedir' | sed s,/workspace,${user},`,
    ]) {
      assert.deepEqual(await run({ command }), { exitCode: 0, stdout: `${user}\n`, stderr: "" }, command);
    }
  },

  "a crash leaves no core dump, and no command can ask for one": async ({ session }) => {
    const { run } = await session();
    const command = "ulimit -Sc; ulimit -Hc; ulimit -c unlimited 2>/dev/null || echo refused";
    assert.equal((await run({ command })).stdout, "0\n0\nrefused\n");
    assert.deepEqual(await run({ command: "kill -ABRT $$" }), { exitCode: 134, stdout: "", stderr: "" });
    assert.equal((await run({ command: "ls -A" })).stdout, "");
  },

  "what cannot be a command or a variable is refused by name, before anything starts": async ({ open, watch }) => {
    const { onEvent, events } = watch();
    const { session } = await open({ onEvent });
    const cases: readonly [RegExp, Parameters<typeof session.run>[0]][] = [
      [/^command: /, { command: "echo\0" }],
      [/^command: /, { command: 7 as unknown as string }],
      [/^env\.V: /, { command: "true", env: { V: "a\0b" } }],
      [/^env: "A=B"/, { command: "true", env: { "A=B": "" } }],
      [/^env: /, { command: "true", env: { "": "x" } }],
      [/^env\.N: /, { command: "true", env: { N: 1 as unknown as string } }],
      [/BIG/, { command: "true", env: { BIG: "x".repeat(140_000) } }],
      [/^workingDirectory: /, { command: "true", workingDirectory: "a\0" }],
    ];
    for (const [names, options] of cases) {
      for (const start of [session.run, session.spawn]) {
        await assert.rejects(start(options), (error: unknown) => {
          code("ERR_INVALID_ARGUMENT")(error);
          assert.match((error as Error).message, names);
          return true;
        });
      }
    }
    assert.deepEqual(events, []);
  },

  "a variable of 131,000 bytes and a script of 100,000 get through": async ({ session }) => {
    const { run } = await session();
    assert.equal((await run({ command: "echo ${#V}", env: { V: "x".repeat(131_000) } })).stdout, "131000\n");
    assert.equal((await run({ command: `echo ok # ${"x".repeat(100_000)}` })).stdout, "ok\n");
  },

  "a timeout ends the whole tree and hands over what was captured": async ({ session }) => {
    const { run } = await session({ runTimeoutMs: 700 });
    const left = nap();
    const command = `echo partial; echo problem >&2; setsid ${left.command} & ${left.command}`;
    await assert.rejects(within(20_000, "a timeout of 700 ms", run({ command })), (error: unknown) => {
      code("ERR_TIMEOUT")(error);
      assert.ok(error instanceof SandboxError);
      assert.equal(error.stdout, "partial\n");
      assert.equal(error.stderr, "problem\n");
      assert.deepEqual([error.stdoutBytes, error.stderrBytes], [8, 8]);
      assert.deepEqual([error.stdoutTruncated, error.stderrTruncated], [false, false]);
      assert.ok(error.durationMs! >= 700, `${error.durationMs}`);
      assert.equal(error.retryable, false);
      return true;
    });
    assert.equal(left.alive(), 0);
    assert.equal(await output({ ...(await session()) }, "echo on"), "on\n");
  },

  "the output limit ends the whole tree and keeps head and tail": async ({ session }) => {
    const { run } = await session({ maxOutputBytes: 10_000 });
    const left = nap();
    await assert.rejects(run({ command: `${left.command} & seq 1 100000; ${left.command}` }), (error: unknown) => {
      code("ERR_OUTPUT_LIMIT")(error);
      assert.ok(error instanceof SandboxError);
      const { stdout = "", stderr } = error;
      assert.match(stdout, /^1\n2\n3\n/);
      assert.equal(stderr, "");
      assert.ok(stdout.length >= 5000 && stdout.length <= 10_200, `${stdout.length} bytes`);
      const [head = "", missing, tail = ""] = stdout.split(/\n?\[\.\.\. (\d+) bytes left out \.\.\.\]\n/);
      assert.equal(head.length + tail.length + Number(missing), error.stdoutBytes);
      assert.deepEqual([error.stdoutTruncated, error.stderrTruncated, error.stderrBytes], [true, false, 0]);
      assert.equal(capturedOutput(error), error);
      return true;
    });
    assert.equal(left.alive(), 0);
    // Exactly the limit is within it.
    assert.equal((await run({ command: "head -c 9000 /dev/zero; head -c 1000 /dev/zero >&2" })).exitCode, 0);
    await assert.rejects(
      run({ command: "head -c 9000 /dev/zero; head -c 1001 /dev/zero >&2" }),
      code("ERR_OUTPUT_LIMIT"),
    );
  },

  "the output limit cuts no character in two": async ({ session }) => {
    for (const maxOutputBytes of [1000, 1001, 1002, 1003]) {
      const { run } = await session({ maxOutputBytes });
      const command = `printf '%4000s' | sed 's/ /€/g'; printf '%4000s' | sed 's/ /😀/g' >&2; sleep 0.2`;
      await assert.rejects(run({ command }), (error: unknown) => {
        code("ERR_OUTPUT_LIMIT")(error);
        const { stdout, stderr } = error as SandboxError;
        const cut = String.raw`\n?\[\.\.\. \d+ bytes left out \.\.\.\]\n`;
        assert.match(stdout!, new RegExp(`^€*${cut}€*\ufffd?$`, "u"));
        assert.match(stderr!, new RegExp(`^(?:😀*${cut}😀*\ufffd?)?$`, "u"));
        return true;
      });
    }
  },

  "aborted meanwhile: what was captured is found by the reason": async ({ session }) => {
    const { run } = await session({ maxOutputBytes: 100_000 });
    const controller = new AbortController();
    const left = nap();
    const running = run({ command: `echo out; echo err >&2; ${left.command}`, abortSignal: controller.signal });
    await left.reached(1);
    controller.abort();
    const reason: unknown = await running.then(
      () => assert.fail("it did not reject"),
      (error: unknown) => error,
    );
    assert.equal(reason, controller.signal.reason);
    const captured = capturedOutput(reason);
    assert.deepEqual([captured?.stdout, captured?.stderr], ["out\n", "err\n"]);
    assert.deepEqual([captured?.stdoutBytes, captured?.stderrBytes], [4, 4]);
    assert.deepEqual([captured?.stdoutTruncated, captured?.stderrTruncated], [false, false]);
    assert.ok(captured!.durationMs! >= 0);
  },

  "aborted beforehand: it rejects with the reason and nothing starts": async ({ open, watch }) => {
    const { onEvent, events } = watch();
    const { session } = await open({ onEvent });
    const reason = { any: "value" };
    for (let i = 0; i < 20; i++) {
      await assert.rejects(session.run({ command: "touch ran", abortSignal: AbortSignal.abort(reason) }), same(reason));
    }
    assert.equal(await session.readTextFile({ path: "ran" }), null);
    assert.deepEqual(events, []);
  },

  "aborted meanwhile: the whole tree dies, other commands and their background jobs live": async ({ session }) => {
    const { run, spawn } = await session();
    const [doomed, other, background] = [nap(), nap(), nap()];
    await run({ command: `${background.command} & setsid ${background.command} &` });
    const bystander = await spawn({ command: other.command });
    await background.reached(2);
    await other.reached(1);

    const controller = new AbortController();
    const reason = new Error("the user changed her mind");
    const aborted = run({
      abortSignal: controller.signal,
      command: script([
        `${doomed.command} &`,
        `setsid ${doomed.command} &`,
        `( ( ${doomed.command} & ) & )`,
        `nohup setsid bash -c 'trap "" TERM INT HUP; ${doomed.command}; :' >/dev/null 2>&1 &`,
        "set -m",
        `${doomed.command} &`,
        "set +m",
        doomed.command,
      ]),
    });
    await doomed.reached(6);
    controller.abort(reason);
    await assert.rejects(within(20_000, "an abort", aborted), same(reason));
    assert.equal(doomed.alive(), 0);
    assert.equal(other.alive(), 1);
    assert.equal(background.alive(), 2);
    await bystander.kill();
    assert.equal(other.alive(), 0);
    assert.equal(background.alive(), 2);
    assert.equal(getEventListeners(controller.signal, "abort").length, 0);
  },

  "aborted meanwhile: a tree that forks without pause is ended, too": async ({ session }) => {
    const { run } = await session();
    const controller = new AbortController();
    const left = nap();
    const aborted = run({
      abortSignal: controller.signal,
      command: `f() { setsid bash -c '${left.command} & sleep 0.02; exec bash -c "$0" "$0"' "$1" & }; ${left.command} &
        spin() { while :; do ( setsid sleep 0.05 & ); done; }; spin & spin & wait`,
    });
    await left.reached(1);
    controller.abort();
    await assert.rejects(within(30_000, "an abort", aborted), { name: "AbortError" });
    assert.equal(left.alive(), 0);
    assert.equal((await run({ command: "pgrep -c sleep || true" })).stdout, "0\n");
  },

  "aborted while it waits for its turn: it rejects and never starts": async ({ session }) => {
    const { run, spawn, readTextFile } = await session({ maxConcurrentProcesses: 1 });
    const first = await spawn({ command: "exec sleep 600" });
    const controller = new AbortController();
    const waiting = run({ command: "touch ran", abortSignal: controller.signal });
    controller.abort("enough");
    await assert.rejects(waiting, same("enough"));
    await first.kill();
    assert.equal((await run({ command: "exit 5" })).exitCode, 5);
    assert.equal(await readTextFile({ path: "ran" }), null);
  },

  "aborted afterwards: the background job lives, and the signal is let go": async ({ session }) => {
    const { run } = await session();
    const job = nap();
    const controller = new AbortController();
    for (let i = 0; i < 50; i++) await run({ command: "true", abortSignal: controller.signal });
    await run({ command: `${job.command} &`, abortSignal: controller.signal });
    assert.equal(getEventListeners(controller.signal, "abort").length, 0);
    await job.reached(1);
    controller.abort();
    await run({ command: "true" });
    assert.equal(job.alive(), 1);
  },

  "it answers at once although a background child holds the pipe, and the child lives on": async ({ session }) => {
    const { run } = await session();
    const job = nap();
    for (const command of [
      `${job.command} & echo started`,
      `nohup ${job.command} & echo started`,
      `setsid ${job.command} & echo started`,
    ]) {
      const { stdout } = await within(10_000, command, run({ command }));
      assert.equal(stdout, "started\n");
    }
    await job.reached(3);
  },

  "a background child can go on writing to the stdout that nobody reads": async ({ session }) => {
    const { run, readTextFile } = await session();
    const { stdout } = await run({
      command: `( trap 'echo pipe > finished' PIPE
        until [ -e go ]; do sleep 0.02; done
        for i in $(seq 40); do head -c 50000 /dev/zero || exit; done; echo all > finished ) & echo started`,
    });
    assert.equal(stdout, "started\n");
    await run({ command: "touch go" });
    await until("the child has written 2 MB", () => readTextFile({ path: "finished" }));
    assert.equal(await readTextFile({ path: "finished" }), "all\n");
  },

  "commands that wait begin in the order of their calls": async ({ session }) => {
    const s = await session({ maxConcurrentProcesses: 1 });
    for (let round = 0; round < 5; round++) {
      await s.run({ command: "rm -f order" });
      const calls = Array.from({ length: 20 }, (_, n) => {
        const command = `echo ${n} >> order`;
        return n % 3 === 0 ? s.spawn({ command }).then(async (p) => await p.wait()) : s.run({ command });
      });
      await Promise.all(calls);
      assert.equal(await s.readTextFile({ path: "order" }), Array.from({ length: 20 }, (_, n) => `${n}\n`).join(""));
    }
  },

  "80 at once with a limit of 64 all succeed, never more than 64 alive": async ({ session, watch }) => {
    const { onEvent, events } = watch();
    const { run } = await session({ maxConcurrentProcesses: 64, onEvent });
    const results = await Promise.all(
      Array.from({ length: 80 }, (_, i) => run({ command: `echo ${i}; sleep 0.3; exit ${i}` })),
    );
    assert.deepEqual(
      results,
      results.map((_, i) => ({ exitCode: i, stdout: `${i}\n`, stderr: "" })),
    );
    const live = events.map((event) => (event.type === "command.started" ? event.liveProcesses : 0));
    assert.equal(live.filter((count) => count > 0).length, 80);
    assert.ok(Math.max(...live) <= 64, `${Math.max(...live)} alive`);
  },

  "a command is a bash login shell": async ({ session }) => {
    const { run, writeTextFile } = await session();
    await writeTextFile({ path: ".bash_profile", content: "echo profile; FROM_PROFILE=yes\n" });
    const { stdout } = await run({
      command: 'shopt -q login_shell && echo "login $FROM_PROFILE ${BASH_VERSION:+bash}"',
    });
    assert.equal(stdout, "profile\nlogin yes bash\n");
  },

  "process substitution, /dev/fd, /dev/stdin, here documents and kill -0 work": async ({ session }) => {
    const s = await session();
    assert.equal(await output(s, "cat <(echo substituted)"), "substituted\n");
    assert.equal(await output(s, "echo piped | cat /dev/stdin"), "piped\n");
    assert.equal(await output(s, "echo piped | cat /dev/fd/0"), "piped\n");
    assert.equal(
      await output(s, "echo out >/dev/stdout; echo err >/dev/stderr 2>/dev/null; echo n >/dev/null"),
      "out\n",
    );
    assert.equal(await output(s, "cat <<END\nhere\nEND"), "here\n");
    assert.equal(await output(s, "kill -0 $$ && echo self"), "self\n");
    assert.equal(await output(s, "echo x > >(cat); wait; sleep 0.1"), "x\n");
    assert.equal(await output(s, "head -c 4 /dev/urandom | wc -c"), "4\n");
  },

  "stdin is at its end": async ({ session }) => {
    const { run } = await session();
    const { stdout } = await within(10_000, "cat", run({ command: "cat; read line; echo $?" }));
    assert.equal(stdout, "1\n");
  },

  "no zombie and no descriptor is left of 500 commands with background children": async ({ session }) => {
    const s = await session();
    await output(s, "true");
    const before = descriptors();
    for (let i = 0; i < 50; i++) {
      await Promise.all(Array.from({ length: 10 }, () => output(s, "(true &) ; sleep 0.01 & true")));
    }
    await until("the descriptors are back", () => descriptors() <= before);
    await until("no zombie is left", async () => {
      return (await output(s, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true")) === "0\n";
    });
  },
};
