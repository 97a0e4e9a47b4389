import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { homedir } from "node:os";
import { join } from "node:path";

import type { SandboxOperations } from "../../../lib/index.ts";
import { nap, processes, program, sandboxProcesses, until } from "../host.ts";
import { code, listTmp, output, quote } from "../place.ts";
import type { Cases } from "../suite.ts";

const isRoot = process.getuid!() === 0;

/** Runs commands that the sandbox has to refuse. */
async function refuses(session: SandboxOperations, commands: readonly string[]): Promise<void> {
  for (const command of commands) {
    const { exitCode, stdout, stderr } = await session.run({ command });
    assert.notEqual(exitCode, 0, `${command}\n${stdout}${stderr}`);
    assert.notEqual(exitCode, 127, `${command}\n${stderr}`);
  }
}

export const isolation: Cases = {
  "no command has a capability, and none can get one": async ({ session }) => {
    const s = await session();
    const none = "0000000000000000";
    const fields = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status";
    const expected = `CapInh:${none} CapPrm:${none} CapEff:${none} CapBnd:${none} CapAmb:${none} NoNewPrivs:1 Seccomp:2`;
    const flat = (text: string) => text.replaceAll("\t", "").trim().split("\n").join(" ");
    assert.equal(flat(await output(s, fields)), expected);
    assert.equal(flat(await output(s, `setsid bash -c "${fields}" & wait`)), expected);
    const p = await s.spawn({ command: fields });
    assert.equal(flat(await new Response(p.stdout).text()), expected);
  },

  "a command has the descriptors 0, 1 and 2, whatever this process has open": async (place) => {
    const secret = join(place.directory, "secret");
    writeFileSync(secret, "FD-SECRET");
    // Not the last command, which bash would become: its own descriptors are meant.
    // And not in a pipeline, for which bash opens one for a moment.
    const show = "ls /proc/$$/fd >fds; paste -sd ' ' fds; cat <&200";
    assert.equal((await (await place.session()).run({ command: show })).stdout, "0 1 2\n");
    const input = {
      factory: place.factory.module,
      options: { cacheDir: place.cacheDir },
      input: { key: "other" },
      command: show,
    };
    const lines = await program("open", input, { viaShell: `exec 200<${quote(secret)}` }).done;
    assert.deepEqual(lines, ["0 1 2"]);
  },

  "/proc shows the session's processes alone": async ({ open }) => {
    const neighbour = (await open({}, { key: "neighbour" })).session;
    const s = (await open()).session;
    const [theirs, own] = [nap(), nap()];
    await output(neighbour, `${theirs.command} & true`);
    await output(s, `${own.command} & true`);
    await theirs.reached(1);
    await own.reached(1);
    const shown = await output(s, "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null");
    assert.ok(shown.includes(own.command));
    assert.ok(!shown.includes(theirs.command) && !shown.includes("node"), shown);
    const pids = (await output(s, "ls /proc | grep -c '^[0-9]'")).trim();
    assert.ok(Number(pids) < 10, `${pids} processes`);
    await output(s, "test ! -e /proc/" + process.pid + " || test $(cat /proc/" + process.pid + "/comm) != node");
  },

  "namespaces, mounts and devices are refused": async ({ session }) => {
    const s = await session();
    await refuses(s, [
      "unshare -U true",
      "unshare -Ur true",
      "unshare -m true",
      "unshare -n true",
      "unshare -p -f true",
      "unshare -u true",
      "unshare -C true",
      "mount -t tmpfs none /tmp",
      "mount --bind /tmp /workspace",
      "mount -o remount,rw,bind /",
      "mount -o remount,rw,bind /usr",
      "mount -t proc proc /tmp",
      "umount /workspace",
      "umount -l /proc",
      "umount -l /etc/passwd",
      "/usr/sbin/chroot / true",
      "mknod /workspace/zero c 1 5",
      "mknod /tmp/mem b 8 0",
      "touch /usr/x",
      "touch /x",
      "touch /etc/x",
      "touch /dev/x",
      "hostname other",
    ]);
    assert.equal(await output(s, `ls -A; ${listTmp}`), "");
  },

  "system calls that reach past the sandbox are refused": async ({ session }) => {
    const s = await session();
    const [keyctl, addKey, bpf, userfaultfd, perfEventOpen] = {
      x64: [250, 248, 321, 323, 298],
      arm64: [219, 217, 280, 282, 241],
    }[process.arch as "x64" | "arm64"];
    const calls: Readonly<Record<string, string>> = {
      keyctl: `${keyctl}, 0, -3, 0`,
      add_key: `${addKey}, 0, 0, 0`,
      bpf: `${bpf}, 0, 0, 0`,
      userfaultfd: `${userfaultfd}, 0`,
      perf_event_open: `${perfEventOpen}, 0, 0, -1, -1, 0`,
      // From here on every architecture has the same numbers.
      open_tree: "428, -100, 0, 0",
      fsopen: "430, 0, 0",
      mount_setattr: "442, -100, 0, 0, 0, 0",
      io_uring_setup: "425, 1, 0",
    };
    for (const [name, call] of Object.entries(calls)) {
      const errno = (await output(s, `perl -e '$! = 0; syscall(${call}); print 0 + $!'`)).trim();
      assert.ok(["1", "38"].includes(errno), `${name}: errno ${errno} is neither EPERM nor ENOSYS`);
    }
  },

  "files of the host outside the system are not there": async (place) => {
    const { directory, cacheDir } = place;
    const secret = join(directory, "secret");
    writeFileSync(secret, "x", { mode: 0o644 });
    const neighbour = (await place.open({}, { key: "neighbour" })).session;
    await neighbour.writeTextFile({ path: "secret", content: "x" });
    const [id] = readdirSync(join(cacheDir, "sessions"));
    const home = mkdtempSync(join(homedir(), ".sbx-contract-"));
    place.defer(() => rmSync(home, { recursive: true }));
    writeFileSync(join(home, "secret"), "x");
    const s = await place.session();
    for (const path of [
      secret,
      directory,
      cacheDir,
      join(cacheDir, "sessions"),
      join(cacheDir, "sessions", id!, "secret"),
      home,
      join(home, "secret"),
    ]) {
      assert.equal((await s.run({ command: `test -e ${quote(path)}` })).exitCode, 1, path);
      // Of /tmp a sandbox for one command has nothing that the file API would read.
      const content = await s.readTextFile({ path }).catch((error) => code("ERR_UNSUPPORTED")(error) && null);
      assert.equal(content, null, path);
    }
    const roots = (await output(s, "ls -A /")).trim().split("\n");
    const allowed = /^(bin|dev|etc|home|lib.*|nix|opt|proc|run|sbin|tmp|usr|var|workspace)$/;
    // What holds the running Node is the one exception.
    const node = process.execPath.split("/")[1];
    assert.deepEqual(
      roots.filter((name) => !allowed.test(name) && name !== node),
      [],
    );
    assert.equal(
      await output(
        s,
        "ls -A /home /run | grep -v -e : -e '^$' -e current-system; ls -d /sys /boot /root /srv 2>/dev/null; true",
      ),
      "",
    );
  },

  "secrets in /etc are not there": async (place) => {
    const s = await place.session();
    assert.equal(await output(s, "cat /etc/shadow /etc/gshadow /etc/sudoers 2>/dev/null; true"), "");
    assert.equal(
      await output(s, "cat /etc/hostname /etc/machine-id"),
      `sandbox\n${(await output(s, "cat /etc/machine-id")).trim()}\n`,
    );
    if (!isRoot) return;
    // A file that only its owner may read, where its owner is who runs this.
    const path = `/etc/sbx-test-${randomBytes(6).toString("hex")}`;
    writeFileSync(path, "ETC-SECRET", { mode: 0o600 });
    place.defer(() => rmSync(path, { force: true }));
    const later = (await place.open({}, { key: "later" })).session;
    assert.equal((await later.run({ command: `cat ${path}` })).stdout, "");
    assert.ok(!(await later.readTextFile({ path }).catch(() => null)));
  },

  "what hidePaths names is not there, be it file or directory": async (place) => {
    const { session } = await place.open({ hidePaths: ["/etc/os-release", "/usr/share", "/not/there"] });
    assert.equal(await output(session, "cat /etc/os-release 2>/dev/null; ls -A /usr/share 2>/dev/null; true"), "");
    assert.ok(!(await session.readTextFile({ path: "/etc/os-release" })));
  },

  "/proc/sys cannot be written and the host's device nodes cannot be changed": async ({ session }) => {
    const s = await session();
    await refuses(s, [
      "test -w /proc/sys/kernel/core_pattern",
      // Opened for appending, nothing is written: closed again if it ever opens.
      "( exec 3>>/proc/sys/kernel/core_pattern ) 2>/dev/null",
      "( exec 3>>/proc/sys/kernel/hostname ) 2>/dev/null",
      "( exec 3>>/proc/sysrq-trigger ) 2>/dev/null",
      "test -w /proc/sys/vm/drop_caches",
      "chmod $(stat -c %a /dev/null) /dev/null",
      "chown $(stat -c %u:%g /dev/null) /dev/null",
      "ln /dev/null /dev/other",
      "rm -f /dev/null",
    ]);
    assert.equal(
      await output(s, "echo x > /dev/null; head -c 3 /dev/zero | wc -c; test -c /dev/tty; stat -c %a /dev/null"),
      "3\n666\n",
    );
  },

  "no value, script or policy shows in the host's process list, but in the command's own": async ({ open }) => {
    const { session } = await open({ env: { OPTION: "marker-of-option" }, networkPolicy: "deny-all" });
    const job = nap();
    const running = await session.spawn({
      command: `${job.command}; : marker-of-script`,
      env: { CALL: "marker-of-call" },
    });
    await job.reached(1);
    const own = new Set(
      processes()
        .filter(({ argv }) => argv.includes(`${job.command}; : marker-of-script`))
        .map(({ pid }) => pid),
    );
    assert.equal(own.size, 1);
    for (const { pid, argv, name } of processes()) {
      const line = argv.join(" ");
      assert.doesNotMatch(line, /marker-of-(option|call)/, name);
      if (!own.has(pid)) assert.doesNotMatch(line, /marker-of-script|deny-all.*bwrap|bwrap.*deny-all/, name);
    }
    const ours = sandboxProcesses().filter(
      ({ argv }) => argv[0] !== "bash" && !argv[0]?.endsWith("/bash") && argv[0] !== "sleep",
    );
    assert.ok(ours.length >= 2, "bwrap and init are there");
    for (const { pid, argv } of ours) {
      assert.ok(argv.join(" ").length < 200, `the arguments of ${pid} say too much: ${argv.join(" ")}`);
      assert.doesNotMatch(argv.join(" "), /cache|sessions|workspace/);
      assert.equal(environ(pid), "", `the environment of ${argv[0]}`);
    }
    await running.kill();
  },

  "process 1 keeps its memory, environment, files and arguments to itself": async ({ session }) => {
    const s = await session();
    await refuses(s, [
      "cat /proc/1/environ",
      // Root owns the directory and may list the numbers; they lead nowhere.
      "readlink /proc/1/fd/0 /proc/1/fd/3",
      "cat /proc/1/fd/0",
      "cat /proc/1/fd/3",
      "ls -A /proc/1/map_files/",
      "cat /proc/1/maps",
      "cat /proc/1/mem",
      "readlink /proc/1/exe",
      "ls /proc/1/root/",
      "ls /proc/1/cwd/",
      "cat /proc/1/task/1/environ",
      "cat /proc/1/stack",
      "cat /proc/1/auxv",
    ]);
    assert.doesNotMatch(await output(s, "tr '\\0' ' ' </proc/1/cmdline; cat /proc/1/comm"), /session|cache|deny|allow/);
  },

  "no signal ends process 1, and the sandbox goes on": async ({ session, watch }) => {
    const { onEvent, events } = watch();
    const s = await session({ onEvent });
    await output(
      s,
      "echo here > /tmp/f; for n in $(seq 64); do kill -$n 1 2>/dev/null; done; for t in /proc/1/task/*; do kill -9 ${t##*/} 2>/dev/null; done; true",
    );
    assert.equal(await output(s, "cat /tmp/f"), "here\n");
    // Everything that is not process 1 may be killed, and the file API goes on.
    await s.run({ command: "kill -9 -1" });
    assert.equal(await s.readTextFile({ path: "/tmp/f" }), "here\n");
    assert.equal(await output(s, "cat /tmp/f"), "here\n");
    assert.equal(events.filter(({ type }) => type === "generation.started").length, 1);
  },

  "sockets of the host cannot be reached, by path or abstract": async (place) => {
    const path = join(place.directory, "h.sock");
    const name = `sbx-contract-${process.pid}`;
    for (const where of [path, `\0${name}`]) {
      const server = createServer((socket) => socket.end("HOST")).listen(where);
      await once(server, "listening");
      place.defer(() => server.close());
    }
    const connect = (where: string) =>
      `${quote(process.execPath)} -e ${quote(`require("node:net").connect(${where}).on("connect", () => process.exit(0)).on("error", () => process.exit(7))`)}`;
    for (const networkPolicy of ["deny-all", "allow-all"] as const) {
      const { session } = await place.open({ networkPolicy }, { key: networkPolicy });
      assert.equal((await session.run({ command: connect(JSON.stringify(path)) })).exitCode, 7, networkPolicy);
      if (networkPolicy === "deny-all") {
        assert.equal((await session.run({ command: connect(`"\\0${name}"`) })).exitCode, 7);
      }
    }
  },

  "the cache is for its owner alone": async (place) => {
    const adapter = place.adapter();
    await adapter.prewarm({ key: "template", seeds: [{ path: "seed", content: "x" }] });
    const { session } = await adapter.open({ key: "session", templateKey: "template" });
    await output(session, "echo x > f");
    const mode = (...path: string[]) => (statSync(join(place.cacheDir, ...path)).mode & 0o7777).toString(8);
    assert.equal(mode(), "700");
    const [id] = readdirSync(join(place.cacheDir, "sessions"));
    for (const path of [["sessions"], ["templates"], ["metadata"], ["sessions", id!]])
      assert.equal(mode(...path), "700", path.join("/"));
    assert.equal(mode("metadata", "sessions", `${id}.json`), "600");
  },

  "names and numbers of the user agree": async ({ session }) => {
    const s = await session();
    const [uid, name, home] = (await output(s, "id -u; whoami; getent passwd $(id -u) | cut -d: -f6"))
      .trim()
      .split("\n");
    assert.equal(home, "/workspace");
    assert.equal(name, uid === "0" ? "root" : "sandbox");
    assert.equal(
      await output(s, "id -gn >/dev/null && hostname && cat /etc/resolv.conf >/dev/null && echo ok"),
      "sandbox\nok\n",
    );
  },

  "a sandbox leaves no set-id bit and no device on the host's disk": async (place) => {
    const s = await place.session();
    await s.run({
      command: "cp /bin/true su; chmod 4755 su; cp /bin/true sg; chmod 2755 sg; mknod p p; mknod z c 1 5",
    });
    const directory = join(place.cacheDir, "sessions", readdirSync(join(place.cacheDir, "sessions"))[0]!);
    for (const name of readdirSync(directory)) {
      const { mode } = statSync(join(directory, name));
      // Its owner's own files, in a directory that only the owner can enter: no more than that user had.
      assert.ok(!isRoot || (mode & 0o6000) === 0, `${name}: ${mode.toString(8)}`);
      assert.notEqual(mode & 0o170000, 0o020000, name);
    }
  },

  "the sandbox's tmpfs are bounded": async ({ session }) => {
    const s = await session();
    const sizes = await output(s, "df -B1 --output=size /tmp /dev/shm | tail -n +2");
    for (const size of sizes.trim().split("\n")) assert.ok(Number(size) <= 2 ** 30, `${size} bytes`);
    await until("the session works", async () => (await output(s, "echo on")) === "on\n");
  },
};

/** The environment of a process of the host; what cannot be read shows nothing. */
function environ(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/environ`, "utf8");
  } catch {
    return "";
  }
}
