import assert from "node:assert/strict";

import { SandboxError, type SandboxOperations } from "../../../lib/index.ts";
import { nap, until, within } from "../host.ts";
import { code } from "../place.ts";
import type { Cases } from "../suite.ts";

/** More than goes as an argument, and less than the kernel takes as one. */
const padding = `# ${"x".repeat(100_000)}`;

/** Scripts of which bash could make something else than it does of `bash -lc`. */
const scripts: readonly string[] = [
  "",
  ": begins with nothing\n\n\necho $LINENO",
  "#!/bin/sh\necho $LINENO $0 $# $*",
  "# a comment\necho $LINENO",
  "cat <<END; echo $LINENO\nhere $LINENO\nEND\necho $LINENO",
  "cat <<'END'\n$HOME `x`\nEND",
  "echo one\n)\necho two",
  ") echo one",
  "&& echo one",
  "; echo one",
  "echo one; )",
  "if true; then",
  'echo "no end',
  "cat <<END\nno end",
  "exit 7",
  "false",
  "(exit 9); echo $?",
  "return 3; echo $?",
  "no-such-command; echo $?",
  "set -e; false; echo no",
  "set -e\n(false)\necho no",
  "set -u; echo $nope; echo no",
  "echo ${nope:?is not set}; echo no",
  "readonly x=1; x=2; echo no",
  "f() {\n  echo $LINENO ${FUNCNAME[@]} ${BASH_LINENO[@]}\n}; f\nf",
  "trap 'echo bye $?' EXIT; exit 3",
  "trap 'echo wrong $LINENO' ERR\nfalse\ntrue",
  "exec echo replaced",
  "! true",
  "time true; { echo grouped; }",
  "sleep 0.05 & wait $!; echo $?",
  "shopt -s extglob\necho !(a)",
  "shopt -s expand_aliases; alias hi='echo alias'\nhi",
  "shopt -q login_shell; echo $? $- ${BASH_SOURCE[@]}",
  "ls /proc/$$/fd >fds; cat fds",
  "compgen -v | grep -i sandbox; env | grep -i sandbox; echo $?",
  "printf '%s' '\u0001\u007f\u0001€\ud83d\ude00 \\ \" $' | od -c",
  "read line; echo $?; cat",
  "kill -TERM $$",
];

/** What a shell without this package makes of a script that is no longer than an argument can be. */
async function plain({ run }: SandboxOperations, script: string) {
  return await run({
    command: 'exec "$SHELL" -lc -- "$SCRIPT"',
    env: { SCRIPT: script, SHLVL: "-1", TIMEFORMAT: "took" },
  });
}

/** A script that is a little more than `bytes` long and says how many of its parts were run. */
function longScript(bytes: number): string {
  const line = "n=$((n+1)) # 0123456789012345678901234567890123456789\n".repeat(1000);
  return `${line.repeat(Math.ceil(bytes / line.length))}echo $n $LINENO`;
}

export const input: Cases = {
  "a script means what it means to bash, of every size and with a PATH of the author's": async ({ session }) => {
    const s = await session();
    for (const script of scripts) {
      for (const text of [script, `${script}\n${padding}`]) {
        const expected = await plain(s, text);
        const common = { SCRIPT: text, TIMEFORMAT: "took" };
        for (const env of [common, { ...common, PATH: "/usr/bin:/bin" }]) {
          const { exitCode, stdout, stderr } = await s.run({ command: text, env });
          // What bash shows of a first line has ours before it; and its word for a text is another.
          const shown = stderr
            .replaceAll(": eval: line", ": -c: line")
            .replace(/`(?:unset __sandbox_script; )?(?:export PATH=.*?;unset __sandbox_PATH; )?/g, "`");
          assert.deepEqual({ exitCode, stdout, stderr: shown }, expected, `${script}, ${text.length} bytes`);
        }
      }
    }
  },

  "a script of 8 MiB runs, and one byte more is refused by name": async ({ open, watch }) => {
    const { onEvent, events } = watch();
    const { session } = await open({ onEvent });
    const limit = 8 << 20;
    const most = "echo ok #".padEnd(limit, "x");
    for (const start of [session.run, session.spawn]) {
      // The length is that in UTF-8: of these there are two bytes each.
      for (const command of [`${most}x`, "#".padEnd(limit / 2 + 1, "é")]) {
        await assert.rejects(start({ command }), (error: unknown) => {
          code("ERR_INVALID_ARGUMENT")(error);
          assert.ok(error instanceof SandboxError);
          assert.equal(error.op, "command");
          assert.match(error.message, /8388609 bytes.*8388608/);
          return true;
        });
      }
    }
    assert.deepEqual(events, []);
    assert.deepEqual(await session.run({ command: most }), { exitCode: 0, stdout: "ok\n", stderr: "" });
    for (const bytes of [90_000, 1 << 20, 3 << 20]) {
      const command = longScript(bytes);
      const lines = command.split("\n").length;
      assert.equal((await session.run({ command })).stdout, `${lines - 1} ${lines}\n`);
    }
  },

  "a long script can be fed through stdin, killed and aborted as any other": async ({ session }) => {
    const { spawn, run } = await session();
    const p = await spawn({ command: `cat; exit 3\n${padding}`, stdin: "pipe" });
    const writer = p.stdin.getWriter();
    await writer.write(Buffer.from("fed"));
    await writer.close();
    assert.equal(await new Response(p.stdout).text(), "fed");
    assert.deepEqual(await p.wait(), { exitCode: 3 });

    const left = nap();
    const killed = await spawn({ command: `${left.command} & ${left.command}\n${padding}` });
    await left.reached(2);
    await killed.kill();
    assert.equal(left.alive(), 0);
    const controller = new AbortController();
    const aborted = run({ command: `${left.command}\n${padding}`, abortSignal: controller.signal });
    await left.reached(1);
    controller.abort("enough");
    await assert.rejects(aborted, (reason) => reason === "enough");
    assert.equal(left.alive(), 0);
  },

  "variables that are too large together, and options that there are not, are refused before anything starts": async ({
    open,
    watch,
  }) => {
    const { onEvent, events } = watch();
    const { session } = await open({ onEvent });
    const variable = "x".repeat(100_000);
    const env = Object.fromEntries(Array.from({ length: 100 }, (_, n) => [`V${n}`, variable]));
    const calls: Readonly<Record<string, object>> = {
      env: { command: "true", env },
      "env.PATH": { command: "true", env: { PATH: "x".repeat(131_060) } },
      "env.__sandbox_PATH": { command: "true", env: { __sandbox_PATH: "/" } },
      "env.TERM": { command: "true", env: { TERM: null } },
      cwd: { command: "true", cwd: "/tmp" },
      workingDirectory: { command: "true", workingDirectory: "/tmp\0" },
    };
    for (const [op, call] of Object.entries(calls)) {
      for (const start of [session.run, session.spawn]) {
        await assert.rejects(start(call as { command: string }), { code: "ERR_INVALID_ARGUMENT", op }, op);
      }
    }
    assert.deepEqual(events, []);
    const { V1, V2 } = env;
    assert.equal((await session.run({ command: "echo $((${#V1} + ${#V2}))", env: { V1, V2 } })).stdout, "200000\n");
  },

  "with queue false a command over the limit is refused, with the limit and the number of live ones": async ({
    open,
    watch,
  }) => {
    const { onEvent, events } = watch();
    const { session } = await open({ queue: false, maxConcurrentProcesses: 2, onEvent });
    const held = await Promise.all([0, 1].map(() => session.spawn({ command: "exec sleep 600" })));
    for (const start of [session.run, session.spawn]) {
      await assert.rejects(start({ command: "touch ran" }), (error: unknown) => {
        code("ERR_BUSY")(error);
        assert.ok(error instanceof SandboxError);
        assert.deepEqual([error.limit, error.live, error.retryable], [2, 2, true]);
        assert.match(error.message, /2 .*2/);
        return true;
      });
    }
    await held[0]!.kill();
    assert.deepEqual(await session.run({ command: "ls" }), { exitCode: 0, stdout: "", stderr: "" });
    await held[1]!.kill();
    assert.equal(events.filter(({ type }) => type === "command.started").length, 3);
  },

  "waiting for a turn counts in the time limit": async ({ open }) => {
    const { session } = await open({ maxConcurrentProcesses: 1, runTimeoutMs: 300 });
    const held = await session.spawn({ command: "exec sleep 600" });
    await assert.rejects(within(20_000, "the time limit", session.run({ command: "touch ran" })), code("ERR_TIMEOUT"));
    await held.kill();
    assert.equal((await session.run({ command: "ls" })).stdout, "");
  },

  "who gives up waiting for a turn leaves it to the next": async ({ open }) => {
    const { session } = await open({ maxConcurrentProcesses: 1 });
    const held = await session.spawn({ command: "exec sleep 600" });
    const controller = new AbortController();
    const gone = session.run({ command: "touch ran", abortSignal: controller.signal });
    const others = [1, 2, 3].map((n) => session.run({ command: `echo ${n}` }));
    controller.abort("gone");
    await assert.rejects(gone, (reason) => reason === "gone");
    await held.kill();
    const results = await within(20_000, "the others", Promise.all(others));
    assert.deepEqual(
      results.map(({ stdout }) => stdout),
      ["1\n", "2\n", "3\n"],
    );
    assert.equal(await session.readTextFile({ path: "ran" }), null);
  },

  "two limits for one session: never more live than the smaller one allows": async ({ open, watch }) => {
    const { onEvent, events } = watch();
    const { session: narrow } = await open({ maxConcurrentProcesses: 2, onEvent });
    const { session: wide } = await open({ maxConcurrentProcesses: 8, onEvent });
    const held = await narrow.spawn({ command: "exec sleep 600" });
    await Promise.all(Array.from({ length: 12 }, () => wide.run({ command: "sleep 0.05" })));
    await held.kill();
    const live = events.map((event) => (event.type === "command.started" ? event.liveProcesses : 0));
    assert.equal(live.filter((n) => n > 0).length, 13);
    assert.equal(Math.max(...live), 2);
  },

  "login files run before a long script as before a short one, and cannot take it": async ({ session }) => {
    const s = await session();
    const both = async (script: string, env?: Record<string, string>) => {
      const short = await s.run({ command: script, env });
      assert.deepEqual(await s.run({ command: `${script}\n${padding}`, env }), short, script);
      return short.stdout;
    };
    await s.writeTextFile({ path: "env", content: "echo env" });
    await s.writeTextFile({ path: ".profile", content: "echo profile; MADE=here; set -f; return 4" });
    assert.equal(await both('echo $MADE $- "$BASH_ENV"'), "profile\nhere fhBc \n");
    assert.equal(await both("echo s", { BASH_ENV: "$HOME/env" }), "profile\nenv\ns\n");
    assert.equal(await both('echo "$BASH_ENV"', { BASH_ENV: "/nope" }), "profile\n/nope\n");
    assert.equal(await both("echo s", { POSIXLY_CORRECT: "1" }), "s\n");
    assert.equal(await both("echo s", { HOME: "/tmp" }), "s\n");
    await s.run({ command: "ln -s nowhere .bash_profile; echo echo login > .bash_login" });
    assert.equal(await both("echo s"), "login\ns\n");
    // Everything that it could read, left to a process that goes on reading.
    const thief = "cat <&3; (exec sleep 600 >/dev/null 2>&1) & exec 3</dev/null; cat; read -u 3 x; exec 3<&-";
    await s.run({ command: `rm .bash_profile; printf '%s' '${thief}' > .bash_profile` });
    const { stdout, exitCode } = await s.run({ command: `echo whole; ls -l /proc/*/fd; exit 6\n${padding}` });
    assert.equal(exitCode, 6);
    assert.match(stdout, /^whole\n/);
    assert.doesNotMatch(stdout, /memfd/);
    await s.writeTextFile({ path: ".bash_profile", content: "exit 7" });
    assert.equal((await s.run({ command: `echo no\n${padding}` })).exitCode, 7);
  },

  "a PATH of the author's is the script's, whatever the login files say": async ({ open }) => {
    const { session } = await open();
    const { session: with_ } = await open({ env: { PATH: "/option/bin:/usr/bin:/bin" } });
    await session.writeTextFile({ path: ".profile", content: "export PATH=/profile/bin:/usr/bin:/bin" });
    const command = "echo \"$PATH\"; export -p | grep -c ' PATH='";
    for (const end of ["", `\n${padding}`]) {
      const path = async ({ run }: SandboxOperations, env?: Record<string, string | undefined>) =>
        (await run({ command: `${command.replaceAll("grep", "/usr/bin/grep")}${end}`, env })).stdout;
      assert.equal(await path(session), "/profile/bin:/usr/bin:/bin\n1\n");
      assert.equal(await path(session, { PATH: undefined }), "/profile/bin:/usr/bin:/bin\n1\n");
      assert.equal(await path(session, { PATH: "/a b'$x\"\n:/call" }), "/a b'$x\"\n:/call\n1\n");
      assert.equal(await path(session, { PATH: "" }), "\n1\n");
      assert.equal(await path(with_), "/option/bin:/usr/bin:/bin\n1\n");
      assert.equal(await path(with_, { PATH: "/call" }), "/call\n1\n");
      assert.equal(await path(with_, { PATH: undefined }), "/profile/bin:/usr/bin:/bin\n1\n");
    }
    await session.writeTextFile({ path: ".profile", content: "PATH=/usr/bin; readonly PATH" });
    assert.equal((await session.run({ command: "echo on", env: { PATH: "/a" } })).stdout, "on\n");
  },

  "no value, and of a long script no text, stands in an argument": async ({ session }) => {
    const { spawn, run } = await session();
    const secret = `secret-${process.pid}`;
    for (const end of ["", `\n${padding}`]) {
      const left = nap();
      const command = `# ${end === "" ? "" : secret}\n${left.command}; :${end}`;
      const p = await spawn({ command, env: { PATH: `/usr/bin:/bin:/${secret}`, V: secret } });
      await left.reached(1);
      const { stdout } = await run({ command: "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -v 'cat /proc'" });
      assert.doesNotMatch(stdout, new RegExp(secret));
      assert.match(stdout, /bash/);
      await p.kill();
      await until("it is gone", () => left.alive() === 0);
    }
  },
};
