import type { Environment, OpenSession } from "./environment.ts";
import { decodeOutput, invalid, SandboxError } from "./errors.ts";
import { openFile, writeStream } from "./files.ts";
import { type BwrapNetworkPolicy, checkCall, networkPolicy, type Options, text, variables } from "./options.ts";
import {
  checkTerminalSize,
  type SandboxProcess,
  spawnProcess,
  type TerminalSandboxProcess,
  type WritableSandboxProcess,
} from "./process.ts";
import type { CommandRequest, TerminalSize } from "./requests.ts";
import { checkEncoding, checkLineRange, decode, encode, sliceLines } from "./text.ts";

const workspace = "/workspace";
const runOptions: ReadonlySet<string> = new Set(["command", "workingDirectory", "env", "abortSignal"]);
const spawnOptions: ReadonlySet<string> = new Set([...runOptions, "stdin", "pty"]);

interface Abortable {
  /** Ends the operation, which rejects with the signal's reason. */
  readonly abortSignal?: AbortSignal | undefined;
}

/** What `run()` and `spawn()` take. */
export interface SandboxCommandOptions extends Abortable {
  /** A bash script, run as `bash -lc`; at most 8 MiB in UTF-8. */
  readonly command: string;
  /** Where it starts; relative to `/workspace`, which is the default. */
  readonly workingDirectory?: string | undefined;
  /**
   * Variables above the backend's; `undefined` takes one away. A `PATH` of either
   * is the script's, whatever login files say. Names that begin with `__sandbox_` are taken.
   */
  readonly env?: Readonly<Record<string, string | undefined>> | undefined;
}

/** What `spawn()` takes. */
export interface SandboxSpawnOptions extends SandboxCommandOptions {
  /** `true`, or `"pipe"`, gives the process a `stdin` to write to. Default: at end of file. */
  readonly stdin?: boolean | "pipe" | undefined;
  /**
   * Gives the command a terminal of that size, 80 by 24 with `true`, and a `TERM` of
   * `xterm-256color`. What the command writes is `stdout`, `stderr` is at its end,
   * and `stdin` is the keyboard: closing it types Ctrl-D. Default: none.
   */
  readonly pty?: boolean | TerminalSize | undefined;
}

/**
 * How a command of `run()` ended. Its output is the exact text, a byte order mark
 * included; bytes that are not UTF-8 appear as U+FFFD.
 */
export interface SandboxCommandResult {
  /** The exit status; death by signal n is 128+n. */
  exitCode: number;
  stdout: string;
  stderr: string;
}

/** Names a file. */
export interface SandboxPathOptions extends Abortable {
  /** As the sandbox sees it; relative to `/workspace`. */
  readonly path: string;
}

/** What `readTextFile()` takes. */
export interface SandboxReadTextOptions extends SandboxPathOptions {
  /** How to decode: `"utf-8"`, the default, rejects other bytes; else an encoding of Node's Buffer. */
  readonly encoding?: string | undefined;
  /** First line, from 1. Past the end of the file the text is empty. */
  readonly startLine?: number | undefined;
  /** Last line, included. */
  readonly endLine?: number | undefined;
}

/** What the writing methods take. */
export interface SandboxWriteOptions<Content> extends SandboxPathOptions {
  /** The file's new content. */
  readonly content: Content;
}

/** What `writeTextFile()` takes. */
export interface SandboxWriteTextOptions extends SandboxWriteOptions<string> {
  /** How to encode: `"utf-8"`, the default, or another encoding of Node's Buffer. */
  readonly encoding?: string | undefined;
}

/** What `removePath()` takes. */
export interface SandboxRemoveOptions extends SandboxPathOptions {
  /** Removes a directory with what is in it. */
  readonly recursive?: boolean | undefined;
  /** What does not exist counts as removed. */
  readonly force?: boolean | undefined;
}

/**
 * What can be done in a session. All members are the object's own and use no
 * `this`: a copy by spread works as well.
 *
 * A signal that is aborted beforehand rejects with its reason, and nothing
 * happens. File operations reject with POSIX names as `code`.
 */
export interface SandboxOperations {
  /** Returns the absolute path that a relative one stands for; absolute paths stay as they are. */
  resolvePath(path: string): string;
  /**
   * Runs a command and answers when its main process exits; what it left in
   * the background goes on. A signal or a limit ends it with everything it started.
   *
   * Errors: `ERR_TIMEOUT` and `ERR_OUTPUT_LIMIT`, with what was captured. Of an aborted
   * command `capturedOutput()` tells it, as the call rejects with the signal's reason.
   */
  run(options: SandboxCommandOptions): Promise<SandboxCommandResult>;
  /** Starts a command. A signal ends it with everything it started, until its main process has exited. */
  spawn(options: SandboxSpawnOptions & { readonly pty: true | TerminalSize }): Promise<TerminalSandboxProcess>;
  spawn(options: SandboxSpawnOptions & { readonly stdin: true | "pipe" }): Promise<WritableSandboxProcess>;
  spawn(options: SandboxSpawnOptions & { readonly stdin?: false | undefined }): Promise<SandboxProcess>;
  spawn(options: SandboxSpawnOptions): Promise<SandboxProcess | WritableSandboxProcess>;
  /** Opens a regular file as a stream; `null` when it does not exist. */
  readFile(options: SandboxPathOptions): Promise<ReadableStream<Uint8Array> | null>;
  /** Reads a regular file; `null` when it does not exist. */
  readBinaryFile(options: SandboxPathOptions): Promise<Uint8Array | null>;
  /** Reads a text, or some lines of it with the endings they have; `null` when the file does not exist. */
  readTextFile(options: SandboxReadTextOptions): Promise<string | null>;
  /** Replaces a file by what a stream gives, making parent directories. If the stream fails the old content stays. */
  writeFile(options: SandboxWriteOptions<ReadableStream<Uint8Array>>): Promise<void>;
  /** Replaces a file at once, making parent directories. */
  writeBinaryFile(options: SandboxWriteOptions<Uint8Array>): Promise<void>;
  /** Replaces a file by a text, making parent directories. */
  writeTextFile(options: SandboxWriteTextOptions): Promise<void>;
  /** Removes a file or a link, or with `recursive` a directory. */
  removePath(options: SandboxRemoveOptions): Promise<void>;
  /** Changes the network of later commands, for as long as the session exists. */
  setNetworkPolicy(policy: BwrapNetworkPolicy): Promise<void>;
}

/** A durable workspace and the commands in it. */
export interface SandboxSession extends SandboxOperations {
  /** The key that eve gave the session; of a template being built, the template's. */
  readonly id: string;
}

/** Makes the operations of an open session. Once it is closed they reject with `ERR_CLOSED`. */
export function createOperations(environment: Environment, session: OpenSession, options: Options): SandboxOperations {
  const handle = (): number => {
    if (session.closed) throw new SandboxError("ERR_CLOSED", "the session was closed");
    return session.handle;
  };
  const place = ({ path }: SandboxPathOptions) => ({ session: handle(), path: resolvePath(path) });
  const command = (call: SandboxCommandOptions): CommandRequest => ({
    session: handle(),
    command: text(call.command, "command"),
    workingDirectory: resolvePath(call.workingDirectory ?? workspace, "workingDirectory"),
    env: mergeVariables(options.env, variables(call.env ?? {})),
    // As this process has it now: a library sees only what it was at the start.
    ...(process.env["TZ"] !== undefined && { timeZone: process.env["TZ"] }),
    ...(options.maxConcurrentProcesses !== null && { maxProcesses: options.maxConcurrentProcesses }),
    ...(!options.queue && { noQueue: true }),
  });
  const limits = {
    ...(options.runTimeoutMs !== null && { timeoutMs: options.runTimeoutMs }),
    ...(options.maxOutputBytes !== null && { maxOutputBytes: options.maxOutputBytes }),
  };

  async function run(call: SandboxCommandOptions): Promise<SandboxCommandResult> {
    checkCall(call, runOptions);
    const request = { ...command(call), ...limits };
    const { ok, data } = await environment.call("run", request, { signal: call.abortSignal });
    return { exitCode: ok.exitCode, ...decodeOutput(data, ok.stdoutLength) };
  }

  async function spawn(call: SandboxSpawnOptions): Promise<SandboxProcess | WritableSandboxProcess> {
    checkCall(call, spawnOptions);
    const pty = terminalSize(call.pty);
    const request = { ...command(call), ...(wantsStdin(call.stdin) && { stdin: true }), ...(pty && { pty }) };
    return await spawnProcess(environment, request, call.abortSignal);
  }

  async function readFile(call: SandboxPathOptions): Promise<ReadableStream<Uint8Array> | null> {
    return await openFile(environment, { ...place(call), signal: call.abortSignal });
  }

  async function readBinaryFile(call: SandboxPathOptions): Promise<Uint8Array | null> {
    const { ok, data } = await environment.call("fileRead", place(call), { signal: call.abortSignal });
    return ok.missing ? null : data;
  }

  async function readTextFile(call: SandboxReadTextOptions): Promise<string | null> {
    checkLineRange(call);
    const encoding = checkEncoding(call.encoding ?? "utf-8");
    const bytes = await readBinaryFile(call);
    return bytes && sliceLines(decode(bytes, encoding), call);
  }

  async function writeFile(call: SandboxWriteOptions<ReadableStream<Uint8Array>>): Promise<void> {
    const { content } = call;
    if (!(content instanceof ReadableStream)) throw invalid("content", "must be a ReadableStream");
    await writeStream(environment, { ...place(call), signal: call.abortSignal }, content);
  }

  async function writeBinaryFile(call: SandboxWriteOptions<Uint8Array>): Promise<void> {
    const { content } = call;
    if (!(content instanceof Uint8Array)) throw invalid("content", "must be a Uint8Array");
    await environment.call("fileWrite", place(call), { data: content, signal: call.abortSignal });
  }

  async function writeTextFile(call: SandboxWriteTextOptions): Promise<void> {
    if (typeof call.content !== "string") throw invalid("content", "must be a string");
    const content = encode(call.content, checkEncoding(call.encoding ?? "utf-8"));
    await writeBinaryFile({ path: call.path, content, abortSignal: call.abortSignal });
  }

  async function removePath(call: SandboxRemoveOptions): Promise<void> {
    const request = { ...place(call), recursive: call.recursive === true, force: call.force === true };
    await environment.call("fileRemove", request, { signal: call.abortSignal });
  }

  async function setNetworkPolicy(policy: BwrapNetworkPolicy): Promise<void> {
    await environment.call("sessionPolicy", { session: handle(), networkPolicy: networkPolicy(policy) });
  }

  return {
    resolvePath: (path) => resolvePath(path),
    run,
    spawn: spawn as SandboxOperations["spawn"],
    readFile,
    readBinaryFile,
    readTextFile,
    writeFile,
    writeBinaryFile,
    writeTextFile,
    removePath,
    setNetworkPolicy,
  };
}

// Links and ".." are the kernel's to resolve, inside: "a/../b" need not be "b".
function resolvePath(path: string, field = "path"): string {
  text(path, field);
  if (path.startsWith("/")) return path;
  const relative = path.replace(/^(?:\.\/+)+/, "");
  return relative === "" || relative === "." ? workspace : `${workspace}/${relative}`;
}

function terminalSize(pty: unknown): TerminalSize | undefined {
  if (pty === undefined || pty === false) return undefined;
  if (pty === true) return { cols: 80, rows: 24 };
  return checkTerminalSize(pty, "pty");
}

function wantsStdin(stdin: unknown): boolean {
  if (stdin === undefined || stdin === false) return false;
  if (stdin === true || stdin === "pipe") return true;
  throw invalid("stdin", 'must be a boolean or "pipe"');
}

// `undefined` has to stay: the core has variables of its own beneath these.
function mergeVariables(
  ...layers: readonly Readonly<Record<string, string | undefined>>[]
): Readonly<Record<string, string | null>> {
  const merged = layers.flatMap((layer) =>
    Object.entries(layer).map(([name, value]) => [name, value ?? null] as const),
  );
  return Object.fromEntries(merged);
}
