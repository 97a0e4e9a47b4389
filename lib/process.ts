import { whenCollected } from "./collected.ts";
import type { Environment } from "./environment.ts";
import { invalid } from "./errors.ts";
import type { RequestOf, TerminalSize } from "./requests.ts";
import { chunkBytes, readOnDemand } from "./streams.ts";

/** A command that was spawned. */
export interface SandboxProcess {
  /** The main process's id inside the sandbox. */
  readonly pid?: number;
  /**
   * What the command writes to stdout. Read on demand: a command whose output
   * nobody reads comes to wait, until `wait()` is called. Cancelling discards the rest
   * unnoticed.
   */
  readonly stdout: ReadableStream<Uint8Array>;
  /** What the command writes to stderr; as independent as `stdout`. */
  readonly stderr: ReadableStream<Uint8Array>;
  /**
   * Resolves once the main process has exited, however often it is called;
   * death by signal n is 128+n. Rejects with the reason of a signal that
   * ended the command.
   *
   * It needs no reader: of a stream that nobody has begun to read by then, up to
   * 4 MiB are kept for later. Where there is more, the command waits for a reader
   * for another two seconds; then the rest is lost, and the stream says so with
   * `ERR_OUTPUT_LIMIT` once the kept part has been read.
   */
  wait(): Promise<{ exitCode: number }>;
  /** Ends the command with every process it started. After its exit, and a second time, it does nothing. */
  kill(): Promise<void>;
}

/** A command that was spawned with `stdin`. */
export interface WritableSandboxProcess extends SandboxProcess {
  /** The command's stdin. Closing it is end of file. */
  readonly stdin: WritableStream<Uint8Array>;
}

/** A command that was spawned with `pty`. */
export interface TerminalSandboxProcess extends WritableSandboxProcess {
  /** Changes the size of the terminal, of which the command is told by SIGWINCH. */
  resize(size: TerminalSize): Promise<void>;
}

/** Checks the size of a terminal. */
export function checkTerminalSize(value: unknown, field: string): TerminalSize {
  const { cols, rows } = (value ?? {}) as Partial<Record<keyof TerminalSize, unknown>>;
  if ([cols, rows].every((n) => Number.isInteger(n) && (n as number) > 0 && (n as number) <= 65_535)) {
    return { cols: cols as number, rows: rows as number };
  }
  throw invalid(field, "needs cols and rows, whole numbers from 1 to 65535");
}

/** The main process's end, watched from the start so that a late signal finds nobody listening. */
interface Exit {
  readonly code: Promise<{ exitCode: number }>;
  /** Whether `code` has settled, or is about to. */
  isOver(): boolean;
}

/** Starts a command. */
export async function spawnProcess(
  environment: Environment,
  request: RequestOf<"spawn">,
  signal: AbortSignal | undefined,
): Promise<SandboxProcess | WritableSandboxProcess> {
  const { ok } = await environment.call("spawn", request, {
    signal,
    undo: async ({ process }) => {
      await environment.call("processKill", { process, aborted: true });
      await environment.call("processRelease", { process });
    },
  });
  const exit = watchExit(environment, ok.process, signal);
  return processObject(environment, ok, exit, request);
}

// Its closures live in the core's pending call and on the signal. They must not
// reach the process object, or it could never be collected while the command runs.
function watchExit(environment: Environment, process: number, signal: AbortSignal | undefined): Exit {
  let over = false;
  let ending: Promise<unknown> | undefined;
  const abort = () => {
    ending = environment.call("processKill", { process, aborted: true }).catch(() => {});
  };
  const waited = environment.call("processWait", { process });
  if (signal?.aborted) abort();
  else signal?.addEventListener("abort", abort, { once: true });

  const code = (async () => {
    try {
      const { ok } = await waited;
      if (!ending) return { exitCode: ok.exitCode };
    } catch (error) {
      if (!ending) throw error;
    } finally {
      over = true;
      signal?.removeEventListener("abort", abort);
    }
    // The main process may be gone before the rest of its tree is.
    await ending;
    throw signal?.reason;
  })();
  // Nobody may ever ask.
  code.catch(() => {});
  return { code, isOver: () => over };
}

function processObject(
  environment: Environment,
  { process, pid }: { readonly process: number; readonly pid: number },
  exit: Exit,
  { stdin, pty }: Pick<RequestOf<"spawn">, "stdin" | "pty">,
): SandboxProcess | WritableSandboxProcess | TerminalSandboxProcess {
  // Process and streams reach the number through this object: as long as one of
  // them is in use, the core keeps it.
  const handle = { process };
  const writable = stdin === true || pty !== undefined;
  const open = new Set<string>(writable ? ["stdin", "stdout", "stderr"] : ["stdout", "stderr"]);
  const releaseIfOver = () => {
    if (open.size > 0 || !exit.isOver() || !whenCollected.unregister(handle)) return;
    release(environment, handle.process);
  };
  const ended = (part: string) => () => {
    open.delete(part);
    releaseIfOver();
  };
  const object: SandboxProcess = {
    pid,
    stdout: outputStream(environment, handle, 1, ended("stdout")),
    stderr: outputStream(environment, handle, 2, ended("stderr")),
    async wait() {
      // What fails is told by the wait itself.
      if (!exit.isOver()) environment.call("processKeep", { process: handle.process }).catch(() => {});
      try {
        return await exit.code;
      } finally {
        releaseIfOver();
      }
    },
    async kill() {
      if (!exit.isOver()) await environment.call("processKill", { process: handle.process, aborted: false });
    },
  };
  whenCollected.register(handle, releaseLater(environment, process), handle);
  if (!writable) return object;
  const input = { ...object, stdin: inputStream(environment, handle, ended("stdin")) };
  if (!pty) return input;
  return {
    ...input,
    async resize(size) {
      const { cols, rows } = checkTerminalSize(size, "resize");
      if (!exit.isOver()) await environment.call("processResize", { process: handle.process, cols, rows });
    },
  };
}

function release(environment: Environment, process: number): void {
  environment.call("processRelease", { process }).catch(() => {});
}

function releaseLater(environment: Environment, process: number): () => void {
  return () => release(environment, process);
}

function outputStream(
  environment: Environment,
  handle: { readonly process: number },
  stream: 1 | 2,
  ended: () => void,
): ReadableStream<Uint8Array> {
  return readOnDemand({
    read: () => environment.call("processRead", { process: handle.process, stream, maxBytes: chunkBytes }),
    ended,
    async cancel() {
      await environment.call("processDiscard", { process: handle.process, stream });
      ended();
    },
  });
}

function inputStream(
  environment: Environment,
  handle: { readonly process: number },
  ended: () => void,
): WritableStream<Uint8Array> {
  const end = async () => {
    try {
      await environment.call("processEnd", { process: handle.process });
    } finally {
      ended();
    }
  };
  return new WritableStream<Uint8Array>({
    async write(chunk, controller) {
      try {
        if (!(chunk instanceof Uint8Array)) throw invalid("stdin", "takes Uint8Array chunks");
        if (chunk.byteLength > 0) await environment.call("processWrite", { process: handle.process }, { data: chunk });
      } catch (error) {
        // A stream that failed gets no close: this is its end.
        await end().catch(() => {});
        controller.error(error);
        throw error;
      }
    },
    close: end,
    abort: end,
  });
}
