// What the host sees while a sandbox runs: processes, descriptors, time.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";

/** Long enough for a busy machine, short enough for a person. */
const patienceMs = 20_000;

/** Asks until the answer is true, and fails with what was waited for. */
export async function until(what: string, holds: () => unknown, ms = patienceMs): Promise<void> {
  const deadline = Date.now() + ms;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`waited ${ms} ms in vain until ${what}`);
    await setTimeout(10);
  }
}

/** Settles as the promise does, but fails once it has taken too long. */
export async function within<T>(ms: number, what: string, promise: Promise<T>): Promise<T> {
  const stop = new AbortController();
  const late = setTimeout(ms, undefined, { signal: stop.signal }).then(() => {
    throw new Error(`${what} took longer than ${ms} ms`);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    late.catch(() => {});
    stop.abort();
  }
}

/** A process of the host. */
export interface HostProcess {
  readonly pid: number;
  readonly parent: number;
  readonly state: string;
  readonly name: string;
  readonly argv: readonly string[];
}

/** All processes that this user can see. */
export function processes(): HostProcess[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        const stat = readFileSync(`/proc/${name}/stat`, "latin1");
        const argv = readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0").slice(0, -1);
        const [state = "", parent = ""] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
        const comm = stat.slice(stat.indexOf("(") + 1, stat.lastIndexOf(")"));
        return [{ pid: Number(name), parent: Number(parent), state, name: comm, argv }];
      } catch {
        return []; // it has gone meanwhile
      }
    });
}

/** The descendants of this process that are no Node: what our sandboxes consist of. */
export function sandboxProcesses(): HostProcess[] {
  const all = processes();
  const found = new Set([process.pid]);
  for (let before = 0; before < found.size;) {
    before = found.size;
    for (const { pid, parent } of all) if (found.has(parent)) found.add(pid);
  }
  return all.filter(({ pid, name }) => found.has(pid) && pid !== process.pid && !name.startsWith("node"));
}

/** The bwraps that hold something of a directory, also those that have lost their parent. */
export function sandboxesOn(directory: string): HostProcess[] {
  return processes().filter(({ pid, name }) => {
    if (name !== "bwrap") return false;
    try {
      const links = readdirSync(`/proc/${pid}/fd`).map((fd) => readlinkSync(`/proc/${pid}/fd/${fd}`));
      return links.some((link) => link.startsWith(`${directory}/`));
    } catch {
      return false; // it has gone meanwhile, or is another user's
    }
  });
}

let lastNap = 0;

/** A `sleep` that no other test has: its duration is its name. */
export interface Nap {
  /** The command. */
  readonly command: string;
  /** How many of it are alive, wherever on this host. */
  alive(): number;
  /** Waits until so many are alive. */
  reached(count: number): Promise<void>;
}

/** Makes a nap; its argument appears in no other command of this process or another. */
export function nap(): Nap {
  const duration = `7${process.pid}.${++lastNap}${Math.random().toString().slice(2, 8)}`;
  const alive = () =>
    processes().filter(({ argv, state }) => argv[0] === "sleep" && argv[1] === duration && state !== "Z").length;
  return {
    command: `sleep ${duration}`,
    alive,
    reached: (count) => until(`${count} of "sleep ${duration}" are alive`, () => alive() === count),
  };
}

/** How many descriptors this process has open. */
export function descriptors(): number {
  return readdirSync("/proc/self/fd").length;
}

/** A Node process that plays one of programs/. */
export interface Program {
  /** Its process id. */
  readonly pid: number;
  /** Ends it as the kernel would. */
  kill(): void;
  /** Its lines so far. */
  lines(): string[];
  /** Resolves to its lines once it has exited with 0. */
  readonly done: Promise<string[]>;
}

/** Starts programs/NAME.ts with arguments that travel as JSON. */
export function program(name: string, input: object, { viaShell = "" } = {}): Program {
  const path = fileURLToPath(new URL(`programs/${name}.ts`, import.meta.url));
  const words = [process.execPath, path, JSON.stringify(input)];
  const child = viaShell
    ? spawn("bash", ["-c", `${viaShell}; exec "$@"`, "bash", ...words], { stdio: ["ignore", "pipe", "pipe"] })
    : spawn(words[0]!, words.slice(1), { stdio: ["ignore", "pipe", "pipe"] });
  let stdout = "";
  let stderr = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (stdout += text));
  child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text));
  const lines = () => stdout.split("\n").slice(0, -1);
  const done = once(child, "close").then(([code, signal]) => {
    if (code !== 0) throw new Error(`${name} ended with ${code ?? signal}: ${stderr}`);
    return lines();
  });
  done.catch(() => {});
  return { pid: child.pid!, kill: () => child.kill("SIGKILL"), lines, done };
}
