import { isAbsolute } from "node:path";

import { invalid, SandboxError } from "./errors.ts";
import type { BwrapSandboxEventSink } from "./events.ts";

/** How long one `run()` may take unless `runTimeoutMs` says otherwise, in milliseconds. */
export const DEFAULT_RUN_TIMEOUT_MS = 600_000;
/** How many commands of a session may be alive at once unless `maxConcurrentProcesses` says otherwise. */
export const DEFAULT_MAX_CONCURRENT_PROCESSES = 64;
/** How much one `run()` may write unless `maxOutputBytes` says otherwise, in bytes. */
export const DEFAULT_MAX_OUTPUT_BYTES = 16_777_216;
/** How long a live sandbox is kept in which nothing runs unless `idleTimeoutMs` says otherwise, in milliseconds. */
export const DEFAULT_IDLE_TIMEOUT_MS = 900_000;
/** How many sandboxes may be live in one process unless `maxLiveGenerations` says otherwise. */
export const DEFAULT_MAX_LIVE_GENERATIONS = 256;
/** How long the sandbox of a keyed tool call is kept unused unless `toolSessionMaxAgeMs` says otherwise, in milliseconds. */
export const DEFAULT_TOOL_SESSION_MAX_AGE_MS = 7 * 24 * 60 * 60 * 1000;

/**
 * Which network commands get: `"allow-all"` shares the host's, `"deny-all"` is
 * one of the session's own with nothing but loopback.
 */
export type BwrapNetworkPolicy = "allow-all" | "deny-all";

/**
 * Which processes share a sandbox, that is a process list, a loopback and
 * `/tmp`: all of a `"session"`, or those of one `"command"`, whose sandbox ends
 * when its main process exits.
 */
export type BwrapProcesses = "session" | "command";

/**
 * Where a command's `HOME` is: `"workspace"` is `/workspace`, `"separate"` is
 * `/home/sandbox`, a directory of the session's own that lasts as long.
 */
export type BwrapHome = "workspace" | "separate";

/** Options of a backend. Each may be left out. */
export interface BwrapSandboxCreateOptions {
  /**
   * Variables for every command, beneath those of the call and above what each
   * command has: `PATH`, `HOME`, `LANG`, `AI_AGENT`, `USER`, `LOGNAME`, `SHELL`,
   * `TERM=dumb`, and the `TZ` of this process. `undefined` takes a variable away.
   */
  readonly env?: Readonly<Record<string, string | undefined>> | undefined;
  /** The network until a session sets its own. Default `"allow-all"`. */
  readonly networkPolicy?: BwrapNetworkPolicy | undefined;
  /** Absolute host paths that the sandbox must not show. Default none. */
  readonly hidePaths?: readonly string[] | undefined;
  /**
   * The home of commands. Default `"workspace"`: there a `.profile` in `/workspace`
   * is read by every later command, and caches of tools lie among the agent's files.
   */
  readonly home?: BwrapHome | undefined;
  /** The bwrap to run: an absolute path, or a name looked up in `PATH`. Default `"bwrap"`. */
  readonly bwrapPath?: string | undefined;
  /**
   * Absolute directory of templates and sessions. Default
   * `<appRoot>/.eve/sandbox-cache/bwrap`, which is lost with the release
   * directory it lies in.
   */
  readonly cacheDir?: string | undefined;
  /** Release that templates belong to: another one has templates of its own, sessions stay. Default `null`, none. */
  readonly templateRevision?: string | null | undefined;
  /** Limit of one `run()` in milliseconds; `null` is none. Default {@link DEFAULT_RUN_TIMEOUT_MS}. `spawn()` has no limit. */
  readonly runTimeoutMs?: number | null | undefined;
  /**
   * Limit of live commands of a session; more wait their turn, see `queue`. Where
   * one session is opened with several limits, the smallest of the commands that
   * live or wait holds. `null` is none. Default {@link DEFAULT_MAX_CONCURRENT_PROCESSES}.
   */
  readonly maxConcurrentProcesses?: number | null | undefined;
  /**
   * Whether a command over `maxConcurrentProcesses` waits its turn, first come first
   * served, and one that needs a sandbox over `maxLiveGenerations` waits for a place,
   * which both counts in `runTimeoutMs`. With `false` it rejects at once with
   * `ERR_BUSY`. Default `true`.
   */
  readonly queue?: boolean | undefined;
  /** Limit of what one `run()` may write, stdout and stderr together, in bytes; `null` is none. Default {@link DEFAULT_MAX_OUTPUT_BYTES}. */
  readonly maxOutputBytes?: number | null | undefined;
  /**
   * Whether a sandbox is kept ready for the next new session, while a sandbox of
   * one runs that was made before; for 30 seconds at most. Default `true`.
   */
  readonly standby?: boolean | undefined;
  /**
   * How long a live sandbox is kept in which no process runs, be it a command or
   * what one left in the background, and through which no file is reached, in
   * milliseconds; `null` is for ever. Then it is ended as by `stop()`: files stay,
   * `/tmp` goes, and the next command starts another. Of several opens the one
   * that used the sandbox last decides. Default {@link DEFAULT_IDLE_TIMEOUT_MS}.
   */
  readonly idleTimeoutMs?: number | null | undefined;
  /**
   * Limit of live sandboxes in this process, over all its sessions; `null` is none.
   * One more ends the one that has been unused for longest and in which nothing
   * runs, as by `stop()`. Where something runs in each, it waits, see `queue`. With
   * `processes: "command"` the sandbox of each command counts while it lives; one on
   * `standby` does not, and is not started where the limit is reached. Of several values that of the open counts which starts a sandbox.
   * Default {@link DEFAULT_MAX_LIVE_GENERATIONS}.
   */
  readonly maxLiveGenerations?: number | null | undefined;
  /**
   * Which processes share a sandbox. With `"command"` nothing but `/workspace`
   * lasts from one command to the next, what a command leaves in the background
   * is ended with it, and the file API refuses `/tmp`, `/var/tmp` and `/dev/shm`
   * with `ERR_UNSUPPORTED`. Default `"session"`.
   */
  readonly processes?: BwrapProcesses | undefined;
  /** Receives lifecycle events; its failures are ignored. Default none. */
  readonly onEvent?: BwrapSandboxEventSink | undefined;
}

/** Options of `use()` in `bootstrap` and `onSession`. */
export interface BwrapSandboxUseOptions {
  /** The network from the moment `use()` has resolved. Left out, it stays as it is. */
  readonly networkPolicy?: BwrapNetworkPolicy | undefined;
}

/** Input of `createBwrapSandboxBackend`. */
export interface CreateBwrapSandboxBackendInput {
  /** The backend's options. */
  readonly createOptions?: BwrapSandboxCreateOptions | undefined;
}

/** What stands in for what was left out; absent members have no default. */
export interface Options {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly networkPolicy: BwrapNetworkPolicy;
  readonly hidePaths: readonly string[];
  readonly home: BwrapHome;
  readonly bwrapPath: string;
  readonly cacheDir?: string;
  readonly templateRevision?: string;
  readonly runTimeoutMs: number | null;
  readonly maxConcurrentProcesses: number | null;
  readonly queue: boolean;
  readonly maxOutputBytes: number | null;
  readonly standby: boolean;
  readonly idleTimeoutMs: number | null;
  readonly maxLiveGenerations: number | null;
  readonly processes: BwrapProcesses;
  readonly onEvent: BwrapSandboxEventSink | undefined;
}

/** Checks a backend's options, once: nothing behind this looks at them with suspicion. */
export function parseOptions(input: BwrapSandboxCreateOptions = {}): Options {
  const take = members(input, "createOptions");
  const options = takeOptions(take);
  take.nothingElse();
  return options;
}

/** Options of a provider's environment, which are a backend's and these. */
export interface EnvironmentOptions<Prepare> extends Options {
  readonly prepare: Prepare | undefined;
  readonly toolSessionMaxAgeMs: number | null;
}

/** Checks the options of a provider's environment; eve may give none. */
export function parseEnvironmentOptions<Prepare>(input: unknown = {}): EnvironmentOptions<Prepare> {
  const take = members(input, "options");
  const options = {
    ...takeOptions(take),
    prepare: take("prepare", callback<Prepare>),
    toolSessionMaxAgeMs: take("toolSessionMaxAgeMs", orNull(limit), DEFAULT_TOOL_SESSION_MAX_AGE_MS),
  };
  take.nothingElse();
  return options;
}

function takeOptions(take: Take): Options {
  const cacheDir = take("cacheDir", absolutePath);
  const templateRevision = take("templateRevision", orNull(nonEmpty));
  return {
    env: take("env", variables) ?? {},
    networkPolicy: take("networkPolicy", networkPolicy) ?? "allow-all",
    hidePaths: take("hidePaths", absolutePaths) ?? [],
    home: take("home", home) ?? "workspace",
    bwrapPath: take("bwrapPath", nonEmpty) ?? "bwrap",
    runTimeoutMs: take("runTimeoutMs", orNull(limit), DEFAULT_RUN_TIMEOUT_MS),
    maxConcurrentProcesses: take("maxConcurrentProcesses", orNull(limit), DEFAULT_MAX_CONCURRENT_PROCESSES),
    queue: take("queue", flag, true),
    maxOutputBytes: take("maxOutputBytes", orNull(limit), DEFAULT_MAX_OUTPUT_BYTES),
    standby: take("standby", flag) ?? true,
    idleTimeoutMs: take("idleTimeoutMs", orNull(limit), DEFAULT_IDLE_TIMEOUT_MS),
    maxLiveGenerations: take("maxLiveGenerations", orNull(limit), DEFAULT_MAX_LIVE_GENERATIONS),
    processes: take("processes", processes, "session"),
    onEvent: take("onEvent", callback<BwrapSandboxEventSink>),
    ...(cacheDir !== undefined && { cacheDir }),
    ...(typeof templateRevision === "string" && { templateRevision }),
  };
}

/** Checks the input of `createBwrapSandboxBackend` and returns the options in it. */
export function parseBackendInput(input: CreateBwrapSandboxBackendInput = {}): BwrapSandboxCreateOptions | undefined {
  const take = members(input, "input");
  for (const testDouble of ["runner", "copyDirectory"]) {
    take(testDouble, () => {
      throw invalid(testDouble, "commands and copies are made by the native core, which takes no test doubles");
    });
  }
  const options = take("createOptions", (value) => value as BwrapSandboxCreateOptions);
  take.nothingElse();
  return options;
}

/** Checks the options of `use()` or `open()`; `undefined` leaves the policy as it is. */
export function parseUseOptions(input: BwrapSandboxUseOptions = {}, field = "use"): BwrapNetworkPolicy | undefined {
  const take = members(input, field);
  const policy = take("networkPolicy", networkPolicy);
  take.nothingElse();
  return policy;
}

/** Checks a network policy: what cannot be enforced is refused, not weakened. */
export function networkPolicy(value: unknown, field = "networkPolicy"): BwrapNetworkPolicy {
  if (value === "allow-all" || value === "deny-all") return value;
  throw new SandboxError("ERR_UNSUPPORTED", `${field}: only "allow-all" and "deny-all" can be enforced`, { op: field });
}

function home(value: unknown, field: string): BwrapHome {
  if (value === "workspace" || value === "separate") return value;
  throw invalid(field, 'must be "workspace" or "separate"');
}

/** Checks variables for a command; a value of `undefined` means that there shall be none. */
export function variables(value: unknown, field = "env"): Readonly<Record<string, string | undefined>> {
  if (!isObject(value)) throw invalid(field, "must be an object of strings");
  for (const [name, text] of Object.entries(value)) {
    if (name === "") throw invalid(field, "a variable needs a name");
    if (/[=\0]/.test(name)) throw invalid(field, `${JSON.stringify(name)} is not a variable name`);
    if (text === undefined) continue;
    if (typeof text !== "string") throw invalid(`${field}.${name}`, "must be a string");
    if (text.includes("\0")) throw invalid(`${field}.${name}`, "a value cannot contain a NUL byte");
  }
  return value as Readonly<Record<string, string | undefined>>;
}

/** Checks a text that reaches the kernel. */
export function text(value: unknown, field: string): string {
  if (typeof value !== "string") throw invalid(field, "must be a string");
  if (value.includes("\0")) throw invalid(field, "cannot contain a NUL byte");
  return value;
}

type Check<T> = (value: unknown, field: string) => T;

interface Take {
  /** Returns the member, checked, or `fallback` when it is `undefined`. */
  <T>(name: string, check: Check<T>): T | undefined;
  <T>(name: string, check: Check<T>, fallback: T): T;
  /** Rejects members that were not taken: a misspelt option must not go unnoticed. */
  nothingElse(): void;
}

function members(value: unknown, field: string): Take {
  if (!isObject(value)) throw invalid(field, "must be an object");
  const known = new Set<string>();
  const take = <T>(name: string, check: Check<T>, fallback?: T): T | undefined => {
    known.add(name);
    const member = value[name];
    return member === undefined ? fallback : check(member, name);
  };
  const nothingElse = () => rejectOthers(Object.keys(value), known);
  return Object.assign(take as Take, { nothingElse });
}

function rejectOthers(names: readonly string[], known: ReadonlySet<string>): void {
  for (const name of names) {
    if (!known.has(name)) throw invalid(name, `is not an option; there are ${[...known].join(", ")}`);
  }
}

/**
 * Checks the object of a call for members that are not `known`, and its signal.
 * What is `undefined` says nothing: eve hands on what it was given.
 */
export function checkCall(call: unknown, known: ReadonlySet<string>): void {
  if (!isObject(call)) throw invalid("options", "must be an object");
  const given = Object.keys(call).filter((name) => call[name] !== undefined);
  rejectOthers(given, known);
  const { abortSignal } = call;
  // Not by its class: it may be another realm's.
  if (abortSignal !== undefined && !(isObject(abortSignal) && typeof abortSignal["addEventListener"] === "function")) {
    throw invalid("abortSignal", "must be an AbortSignal");
  }
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function orNull<T>(check: Check<T>): Check<T | null> {
  return (value, field) => (value === null ? null : check(value, field));
}

function limit(value: unknown, field: string): number {
  if (Number.isSafeInteger(value) && (value as number) > 0) return value as number;
  throw invalid(field, "must be a positive integer, or null for no limit");
}

function processes(value: unknown, field: string): BwrapProcesses {
  if (value === "session" || value === "command") return value;
  throw invalid(field, 'must be "session" or "command"');
}

function flag(value: unknown, field: string): boolean {
  if (typeof value === "boolean") return value;
  throw invalid(field, "must be true or false");
}

function nonEmpty(value: unknown, field: string): string {
  const string = text(value, field);
  if (string === "") throw invalid(field, "cannot be empty");
  return string;
}

function absolutePath(value: unknown, field: string): string {
  const path = text(value, field);
  if (!isAbsolute(path)) throw invalid(field, `${JSON.stringify(path)} is not an absolute path`);
  return path;
}

function absolutePaths(value: unknown, field: string): readonly string[] {
  if (!Array.isArray(value)) throw invalid(field, "must be a list of absolute paths");
  return value.map((path, index) => absolutePath(path, `${field}[${index}]`));
}

function callback<Callback>(value: unknown, field: string): Callback {
  if (typeof value !== "function") throw invalid(field, "must be a function");
  return value as Callback;
}
