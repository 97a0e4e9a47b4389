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
  /** An admission limit is reached; see `retryable`. */
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
  /** What a command had written to stdout when it was ended. */
  readonly stdout?: string;
  /** What a command had written to stderr when it was ended. */
  readonly stderr?: string;
  /** How long a command had run when it was ended. */
  readonly durationMs?: number;
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
  declare readonly durationMs?: number;

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
  const { code, op, path, message, remedy, detail } = error;
  if (!code.startsWith("ERR_")) return fileError(code, message, op, path);
  const info: { -readonly [K in keyof SandboxErrorInfo]: SandboxErrorInfo[K] } = {};
  if (op) info.op = op;
  if (path) info.path = path;
  if (remedy) info.remedy = remedy;
  if (detail) info.detail = detail;
  if (facts.stdoutBytes !== undefined) Object.assign(info, decodeOutput(output, facts.stdoutBytes));
  if (facts.durationMs !== undefined) info.durationMs = facts.durationMs;
  return new SandboxError(code as SandboxErrorCode, message, info);
}

/** Splits what `run` captured, stdout then stderr, into texts; bytes that are not UTF-8 become U+FFFD. */
export function decodeOutput(output: Uint8Array, stdoutBytes: number): { stdout: string; stderr: string } {
  const decoder = new TextDecoder();
  return {
    stdout: decoder.decode(output.subarray(0, stdoutBytes)),
    stderr: decoder.decode(output.subarray(stdoutBytes)),
  };
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
