import { constants } from "node:os";

import type { RunFacts, WireError } from "./requests.ts";

/**
 * Why an operation failed, where a caller may do something different because
 * of it. Codes are stable, messages are not. File operations fail with POSIX
 * names instead (`ENOENT`, `EISDIR`, …) on a plain `Error`, as Node's do.
 */
export type SandboxErrorCode =
  /** This host cannot build a sandbox; `remedy` says what would help. */
  | "ERR_UNAVAILABLE"
  /** An option or an argument was rejected; the message names it. */
  | "ERR_INVALID_ARGUMENT"
  /** This host or release cannot enforce what was asked for. */
  | "ERR_UNSUPPORTED"
  /** The template was never built. */
  | "ERR_TEMPLATE_NOT_FOUND"
  /** The session's directory was removed or replaced. */
  | "ERR_SESSION_GONE"
  /** The session or process had ended before the call. */
  | "ERR_CLOSED"
  /** There is no room for another command; see `retryable`, and `limit` and `live` where an option says so. */
  | "ERR_BUSY"
  /** The command was cancelled other than by the caller's signal. */
  | "ERR_ABORTED"
  /** The command outlived `runTimeoutMs`. */
  | "ERR_TIMEOUT"
  /** The command wrote more than `maxOutputBytes`. */
  | "ERR_OUTPUT_LIMIT"
  /** The kernel ended the command for its memory use. */
  | "ERR_OOM"
  /** A path kept changing under a bounded number of retries. */
  | "ERR_ESCAPE"
  /** Another process holds what is to be removed. */
  | "ERR_IN_USE"
  /** The cache holds something that cannot have been written there. */
  | "ERR_CORRUPT"
  /** A bug of this package. */
  | "ERR_BAD_HANDLE"
  /** A bug of this package. */
  | "ERR_INTERNAL";

/** What a {@link SandboxError} says besides its code and message. */
export interface SandboxErrorInfo {
  /** The operation or the field, in the package's own words: `"run"`, `"cacheDir"`. */
  readonly op?: string;
  /** The path as the sandbox sees it; never a path of the host. */
  readonly path?: string;
  /** What the person who runs the host can do. */
  readonly remedy?: string;
  /** Evidence of a set-up failure, such as what bwrap wrote. Never a command's output. */
  readonly detail?: string;
  /**
   * What a command had written to stdout when it was ended. Of a stream that is
   * `stdoutTruncated` the beginning and the end, with a line between them:
   * `[... N bytes left out ...]`.
   */
  readonly stdout?: string;
  /** The same of stderr. */
  readonly stderr?: string;
  /** Whether some of stdout was left out, for being over `maxOutputBytes`. */
  readonly stdoutTruncated?: boolean;
  /** The same of stderr. */
  readonly stderrTruncated?: boolean;
  /** How many bytes of stdout arrived, those that were left out included. */
  readonly stdoutBytes?: number;
  /** The same of stderr. */
  readonly stderrBytes?: number;
  /** How long a command had run when it was ended. */
  readonly durationMs?: number;
  /** How many commands of a session, or sandboxes of this process, may be live: the smallest limit that holds. */
  readonly limit?: number;
  /** How many were live when a command was refused for it. */
  readonly live?: number;
  /** The error behind this one. */
  readonly cause?: unknown;
}

/**
 * A failure with a {@link SandboxErrorCode}. Members that say nothing are absent.
 * Branch on `code`: where a bundler made two copies of this package there are
 * two such classes.
 */
export class SandboxError extends Error implements SandboxErrorInfo {
  override readonly name: string = "SandboxError";
  /** What to branch on. */
  readonly code: SandboxErrorCode;
  declare readonly op?: string;
  declare readonly path?: string;
  declare readonly remedy?: string;
  declare readonly detail?: string;
  declare readonly stdout?: string;
  declare readonly stderr?: string;
  declare readonly stdoutTruncated?: boolean;
  declare readonly stderrTruncated?: boolean;
  declare readonly stdoutBytes?: number;
  declare readonly stderrBytes?: number;
  declare readonly durationMs?: number;
  declare readonly limit?: number;
  declare readonly live?: number;

  /** Makes an error; everything in `info` becomes a member. */
  constructor(code: SandboxErrorCode, message: string, info: SandboxErrorInfo = {}) {
    const { cause, ...members } = info;
    super(message, "cause" in info ? { cause } : undefined);
    this.code = code;
    for (const [key, value] of Object.entries(members)) {
      if (value !== undefined) Object.assign(this, { [key]: value });
    }
  }

  /** True when the same call may succeed once other commands have ended. */
  get retryable(): boolean {
    return this.code === "ERR_BUSY";
  }
}

/** Returns the rejection of an option or argument, named by `field`. */
export function invalid(field: string, message: string): SandboxError {
  return new SandboxError("ERR_INVALID_ARGUMENT", `${field}: ${message}`, { op: field });
}

/** Returns the error that a reply stands for, with what a command had written when it was ended. */
export function decodeError(
  error: WireError,
  facts: Partial<RunFacts> = {},
  output: Uint8Array = new Uint8Array(),
): Error {
  const { code, op, path, message, remedy, detail, limit, live } = error;
  if (!code.startsWith("ERR_")) return fileError(code, message, op, path);
  const info: { -readonly [K in keyof SandboxErrorInfo]: SandboxErrorInfo[K] } = {};
  if (op) info.op = op;
  if (path) info.path = path;
  if (remedy) info.remedy = remedy;
  if (detail) info.detail = detail;
  if (limit !== undefined) info.limit = limit;
  if (live !== undefined) info.live = live;
  if (facts.stdoutLength !== undefined) {
    const { stdoutLength, stdoutBytes, stderrBytes, stdoutTruncated, stderrTruncated, durationMs } = facts as RunFacts;
    const told = { stdoutBytes, stderrBytes, stdoutTruncated, stderrTruncated, durationMs };
    Object.assign(info, decodeOutput(output, stdoutLength), told);
  }
  return new SandboxError(code as SandboxErrorCode, message, info);
}

/**
 * Splits what `run` captured, stdout then stderr, into texts. Bytes that are not
 * UTF-8 become U+FFFD; a byte order mark is a character of the text like any other.
 */
export function decodeOutput(output: Uint8Array, stdoutLength: number): { stdout: string; stderr: string } {
  // Not by a TextDecoder, which takes several times as long over 16 MB, to the same text.
  const text = Buffer.from(output.buffer, output.byteOffset, output.byteLength);
  return { stdout: text.toString("utf8", 0, stdoutLength), stderr: text.toString("utf8", stdoutLength) };
}

/** What was captured of aborted commands, by the reason that their call rejected with. */
type Aborted = WeakMap<object, SandboxError>;

// A bundler may have made several copies of this package, of which one rejects and
// another is asked.
const shared = Symbol.for("@evelandhq/sandbox-bwrap aborted");

function abortedCommands(): Aborted {
  return ((globalThis as { [shared]?: Aborted })[shared] ??= new WeakMap());
}

/** Keeps what was captured of a command for whoever catches the reason of its abort. */
export function rememberAborted(reason: unknown, error: Error): void {
  if (isObject(reason) && error instanceof SandboxError) abortedCommands().set(reason, error);
}

/**
 * Returns what is known of the command behind an error that `run()` rejected with:
 * what it had written, how much, and how long it ran. A signal's own reason, which
 * cannot say so itself, is looked up; a `SandboxError` is returned as it is.
 *
 * Ask where the error is caught: when one signal aborts several commands, a reason
 * stands for the one that rejected last. `undefined` for a reason that is no object,
 * and for one that ended no command.
 */
export function capturedOutput(error: unknown): SandboxErrorInfo | undefined {
  if (!isObject(error)) return undefined;
  return abortedCommands().get(error) ?? (error instanceof SandboxError ? error : undefined);
}

function isObject(value: unknown): value is object {
  return (typeof value === "object" && value !== null) || typeof value === "function";
}

function fileError(code: string, message: string, syscall?: string, path?: string): Error {
  const errno = (constants.errno as Readonly<Record<string, number>>)[code];
  return Object.assign(
    new Error(`${code}: ${message}`),
    { code },
    errno !== undefined && { errno: -errno },
    syscall && { syscall },
    path && { path },
  );
}
