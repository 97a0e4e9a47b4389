/**
 * Why a command came to its end. Of several reasons it is the first; one that comes
 * after the main process's exit is none.
 *
 * - `"exit"`: by itself, whatever its exit code.
 * - `"abort"`: its signal.
 * - `"timeout"`, `"output-limit"`: a limit of `run()`.
 * - `"killed"`: `kill()`.
 * - `"cleanup"`: its sandbox ended, by `stop()`, `shutdown()` or `delete()`, with the
 *   last environment, or by itself; then there is an `error`.
 */
export type BwrapCommandFinishReason = "exit" | "abort" | "timeout" | "output-limit" | "killed" | "cleanup";

/**
 * Why a live sandbox is ended: `stop()`, `shutdown()`, `delete()` or the end of
 * all that use the session (`"stop"`); because it could not serve any more, when
 * other options were asked for or its directory was removed (`"replaced"`);
 * because nothing ran in it for `idleTimeoutMs` (`"idle"`), or nothing runs in it
 * and `maxLiveGenerations` leaves no place for another one (`"limit"`);
 * because what it was for is over, with `processes: "command"` (`"command"`).
 */
export type BwrapCleanupReason = "stop" | "replaced" | "idle" | "limit" | "command";

interface EventBase {
  /** When it happened, in ISO 8601. */
  readonly timestamp: string;
  /** The session's id in the cache. */
  readonly sessionId: string;
  /** The id of the live sandbox the event belongs to. */
  readonly generationId: string;
  /** The tags that eve gave the session. */
  readonly tags: Readonly<Record<string, string>>;
}

interface CleanupEnd extends EventBase {
  /** How many commands were alive when the generation was asked to end. */
  readonly requestedProcesses: number;
  /** How many of them are still alive. */
  readonly remainingProcesses: number;
  /** How long it took. */
  readonly durationMs: number;
}

/**
 * Something that happened in a session's life, told apart by `type`. Events
 * carry no command text and no output.
 */
export type BwrapSandboxEvent =
  | (EventBase & { readonly type: "generation.started" })
  | (EventBase & {
      readonly type: "command.started";
      readonly commandId: string;
      readonly pid?: number;
      readonly pgid?: number;
      /** Commands alive in the generation, this one included. */
      readonly liveProcesses: number;
    })
  | (EventBase & {
      readonly type: "command.finished";
      readonly commandId: string;
      readonly pid?: number;
      readonly reason: BwrapCommandFinishReason;
      readonly exitCode?: number;
      readonly durationMs: number;
      /**
       * User and system time of the main process and of what it waited for, in whole
       * milliseconds. Absent where the sandbox ended before this was told.
       */
      readonly cpuMs?: number;
      /**
       * The most memory that the largest of these processes had resident. It is never
       * less than the few MB of the process that starts them. Absent like `cpuMs`.
       */
      readonly maxRssBytes?: number;
      /** What a `run()` wrote; of a `spawn()`, what had been read when this was told. */
      readonly stdoutBytes: number;
      readonly stderrBytes: number;
      /** Commands still alive in the generation. */
      readonly liveProcesses: number;
      readonly error?: string;
    })
  | (EventBase & {
      readonly type: "cleanup.started";
      readonly reason: BwrapCleanupReason;
      readonly requestedProcesses: number;
    })
  | (CleanupEnd & { readonly type: "cleanup.completed" })
  | (CleanupEnd & { readonly type: "cleanup.failed"; readonly errors: readonly string[] });

/** Receives events. What it throws or rejects with is dropped: telemetry changes no command. */
export type BwrapSandboxEventSink = (event: BwrapSandboxEvent) => void | PromiseLike<void>;

/** Hands an event to a sink and survives whatever the sink does. */
export function deliver(sink: BwrapSandboxEventSink, event: BwrapSandboxEvent): void {
  try {
    // Promise.resolve also adopts a foreign thenable whose `then` throws.
    Promise.resolve(sink(event)).catch(() => {});
  } catch {
    // As promised to the sink's author.
  }
}
