// The requests of capi/sandbox.h, in its order: a name there without sbx_, in
// camelCase, is a name here. What each means stands there.

/** The options that decide how a sandbox is built. */
export interface SandboxShape {
  readonly cacheDir: string;
  /** The application's own directory, which is nothing to commands. */
  readonly appRoot: string;
  readonly bwrapPath: string;
  readonly hidePaths: readonly string[];
  readonly home: "workspace" | "separate";
  /** PATH of this process, to look for bwrap and bash in. */
  readonly path: string;
  /** The running Node, which is to be seen inside. */
  readonly nodePath: string;
  readonly processes: "session" | "command";
}

/** How long sandboxes live; what is left out has no bound. */
export interface Lifetime {
  readonly idleTimeoutMs?: number;
  /** Whether a sandbox is kept ready for the next new session. */
  readonly standby?: boolean;
  readonly maxLiveGenerations?: number;
}

/** What `run` and `spawn` have in common. */
export interface CommandRequest {
  readonly session: number;
  readonly command: string;
  readonly workingDirectory: string;
  /** The author's variables; the core has its own beneath, of which `null` takes one away. */
  readonly env: Readonly<Record<string, string | null>>;
  /** TZ of this process; absent when it has none. */
  readonly timeZone?: string;
  readonly maxProcesses?: number;
  /** Refuses the command where it would have to wait for its turn. */
  readonly noQueue?: true;
}

/** The size of a terminal in characters, each from 1 to 65535. */
export interface TerminalSize {
  readonly cols: number;
  readonly rows: number;
}

/** What is known of a command that `run` started, however it ended. */
export interface RunFacts {
  readonly exitCode: number;
  /** How many of the reply's bytes are stdout; the rest is stderr. */
  readonly stdoutLength: number;
  readonly stdoutBytes: number;
  readonly stderrBytes: number;
  readonly stdoutTruncated: boolean;
  readonly stderrTruncated: boolean;
  readonly durationMs: number;
}

/** An error as it crosses the boundary. */
export interface WireError {
  readonly code: string;
  readonly message: string;
  readonly op?: string;
  readonly path?: string;
  readonly remedy?: string;
  readonly detail?: string;
  readonly limit?: number;
  readonly live?: number;
}

interface Call<Request, Reply = object> {
  readonly request: Request;
  readonly reply: Reply;
}

type OfSession = { readonly session: number };
type OfProcess = { readonly process: number };
type OfStream = { readonly process: number; readonly stream: 1 | 2 };
type OfFile = { readonly file: number };
type OfPath = { readonly session: number; readonly path: string };
type Tags = Readonly<Record<string, string>>;

/** Every request with its reply. */
export interface Requests {
  readonly cancel: Call<{ readonly target: number }>;

  readonly prewarmBegin: Call<
    Lifetime & {
      readonly sandbox: SandboxShape;
      readonly templateKey: string;
      readonly templateRevision?: string;
      readonly networkPolicy: string;
      readonly events?: boolean;
    },
    { readonly reused: true } | { readonly reused: false; readonly session: number }
  >;
  readonly prewarmCommit: Call<OfSession>;
  readonly prewarmAbort: Call<OfSession>;

  readonly create: Call<
    Lifetime & {
      readonly sandbox: SandboxShape;
      readonly sessionKey: string;
      readonly templateKey: string | null;
      readonly templateRevision?: string;
      readonly networkPolicy: string;
      readonly initialNetworkPolicy?: string;
      readonly tags?: Tags;
      readonly existingOnly?: boolean;
      readonly events?: boolean;
    },
    { readonly session: number; readonly sessionId: string; readonly strategy: string }
  >;
  readonly sessionPolicy: Call<{ readonly session: number; readonly networkPolicy: string }>;
  readonly sessionStop: Call<OfSession>;
  readonly sessionClose: Call<OfSession>;
  readonly sessionDelete: Call<OfSession>;

  readonly run: Call<CommandRequest & { readonly timeoutMs?: number; readonly maxOutputBytes?: number }, RunFacts>;
  readonly spawn: Call<
    CommandRequest & { readonly stdin?: boolean; readonly pty?: TerminalSize },
    { readonly process: number; readonly pid: number }
  >;
  readonly processRead: Call<OfStream & { readonly maxBytes: number }, { readonly end: boolean }>;
  readonly processDiscard: Call<OfStream>;
  readonly processKeep: Call<OfProcess>;
  readonly processWrite: Call<OfProcess>;
  readonly processEnd: Call<OfProcess>;
  readonly processResize: Call<OfProcess & TerminalSize>;
  readonly processWait: Call<OfProcess, { readonly exitCode: number }>;
  readonly processKill: Call<OfProcess & { readonly aborted: boolean }>;
  readonly processRelease: Call<OfProcess>;

  readonly fileRead: Call<OfPath, { readonly missing: boolean }>;
  readonly fileOpen: Call<
    OfPath,
    { readonly missing: true } | { readonly missing: false; readonly file: number; readonly size: number }
  >;
  readonly fileNext: Call<OfFile & { readonly maxBytes: number }, { readonly end: boolean }>;
  readonly fileWrite: Call<OfPath>;
  readonly fileCreate: Call<OfPath, { readonly file: number }>;
  readonly fileAppend: Call<OfFile>;
  readonly fileCommit: Call<OfFile>;
  readonly fileClose: Call<OfFile>;
  readonly fileRemove: Call<OfPath & { readonly recursive: boolean; readonly force: boolean }>;

  readonly cachePrune: Call<
    {
      readonly cacheDir: string;
      readonly tag: { readonly name: string; readonly value: string };
      readonly maxAgeMs: number;
    },
    { readonly removed: number; readonly inUse: number; readonly failed: number }
  >;
}

/** The name of a request. */
export type RequestName = keyof Requests;
/** What the request `Name` takes. */
export type RequestOf<Name extends RequestName> = Requests[Name]["request"];
/** What the request `Name` is answered with. */
export type ReplyOf<Name extends RequestName> = Requests[Name]["reply"];
