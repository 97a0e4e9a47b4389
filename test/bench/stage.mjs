// What the measures run on: sessions of ours, Node's child_process, and one bwrap per command.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { bwrap } from "../../dist/index.js";
import { sameMounts } from "./same-mounts.mjs";

/** The environment the sandbox gives a command. */
const environment = (home) => ({
  PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
  HOME: home,
  LANG: "C.UTF-8",
  AI_AGENT: "eve",
});

/**
 * Makes a stage in a directory of its own; `close()` removes it. Options are those of `bwrap()`.
 * No sandbox is kept ready unless they say so: it would start while something else is measured.
 */
export async function openStage(options) {
  const scratch = await mkdtemp(join(tmpdir(), "sandbox-bwrap-bench-"));
  const workspace = join(scratch, "workspace");
  await mkdir(workspace);
  const backend = bwrap({ standby: false, ...options, cacheDir: join(scratch, "cache") });
  let sessions = 0;
  let opened;
  let mounts;

  const newSession = () =>
    backend.create({
      templateKey: null,
      sessionKey: `bench-${sessions++}`,
      runtimeContext: { appRoot: scratch },
    });
  const live = async () => (await (opened ??= newSession())).session;
  const start = (file, args, env) => spawn(file, args, { cwd: workspace, env, stdio: ["ignore", "pipe", "pipe"] });

  /** Runs a program as Node does it, and returns its stdout as a text. */
  async function collect(file, args, env) {
    const child = start(file, args, env);
    const output = [[], []];
    child.stdout.on("data", (chunk) => output[0].push(chunk));
    child.stderr.on("data", (chunk) => output[1].push(chunk));
    const [code] = await once(child, "close");
    const [stdout, stderr] = output.map((chunks) => Buffer.concat(chunks).toString());
    if (code !== 0) throw new Error(`${file}: status ${code}\n${stderr}`);
    return stdout;
  }

  return {
    /** Opens a session that has not run anything. */
    newSession,
    /** Runs a script in a session, by default in the one that stays live, and returns its stdout. */
    async ours(script, session) {
      const { exitCode, stdout, stderr } = await (session ?? (await live())).run({ command: script });
      if (exitCode !== 0) throw new Error(`run(${script}): status ${exitCode}\n${stderr}`);
      return stdout;
    },
    /** Starts a script in the live session. */
    oursSpawned: async (script) => await (await live()).spawn({ command: script }),
    /** Runs a script by Node's child_process on the host. */
    host: (script) => collect("bash", ["-lc", script], environment(workspace)),
    /** Starts a script by Node's child_process on the host. */
    hostSpawned: (script) => start("bash", ["-lc", script], environment(workspace)),
    /** Runs a script by Node's child_process in a bwrap of its own, with the mounts that the live session has. */
    async bwrapEach(script, ...more) {
      mounts ??= sameMounts(await live(), { workspace, scratch });
      const args = [...(await mounts), ...more, "--", "bash", "-lc", script];
      return await collect("bwrap", args, environment("/workspace"));
    },
    /** Puts a file into every variant's workspace. */
    async putFile(name, content) {
      await writeFile(join(workspace, name), content);
      await (await live()).writeTextFile({ path: name, content });
    },
    async close() {
      await (await opened)?.shutdown();
      await rm(scratch, { recursive: true, force: true });
    },
  };
}

/**
 * Returns the proportional set size, in bytes, of all processes below this one.
 * Throws where the kernel does not show it: a sandbox's process 1 shows its
 * memory to root only.
 */
export async function descendantsPss() {
  const children = new Map();
  for (const pid of (await readdir("/proc")).filter((name) => /^\d+$/.test(name))) {
    const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => undefined);
    const parent = stat && Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]);
    if (parent) children.set(parent, [...(children.get(parent) ?? []), Number(pid)]);
  }
  let sum = 0;
  const visit = async (pid) => {
    for (const child of children.get(pid) ?? []) {
      const [, kilobytes] = /^Pss:\s+(\d+) kB$/m.exec(await readFile(`/proc/${child}/smaps_rollup`, "utf8"));
      sum += Number(kilobytes) * 1024;
      await visit(child);
    }
  };
  await visit(process.pid);
  return sum;
}
