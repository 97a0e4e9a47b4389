// What eve's providers get and give, as far as we use it. eve's own types differ
// from release to release, and a copy of them here keeps our build free of eve.

/** What `eve/sandbox/provider` exports. Which of it is there tells the generation. */
export interface ProviderModule {
  defineSandboxProvider(definition: ProviderDefinition): unknown;
  /** From eve 0.81. */
  readonly SandboxSessionGoneError?: new (message: string) => Error;
  /** From eve 0.81. */
  readonly SandboxTemplateNotProvisionedError?: new (facts: {
    readonly providerName: string;
    readonly reason: string;
    readonly templateKey: string;
  }) => Error;
}

/** What `defineSandboxProvider` takes. */
export interface ProviderDefinition {
  readonly name: string;
  readonly stateProtocolVersion: number;
  /** eve 0.64 to 0.80 give `undefined` where the author gave nothing. */
  environment(options?: unknown): HandleProvider | ConnectionProvider;
}

/** A value that eve writes down; a member that is `undefined` is not one. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };

/** What a template was built as. eve keeps it with the deployment. */
export interface Artifact extends Readonly<Record<string, Json>> {
  readonly version: 1;
  /** The template's key; `null` when sessions begin empty. */
  readonly template: string | null;
  /** The `templateRevision` it was built under. */
  readonly revision: string | null;
}

/** What eve keeps of a session. */
export interface State extends Readonly<Record<string, Json>> {
  readonly version: 1;
  /** The session's key in our store. */
  readonly name: string;
}

/** Why a session has come to its end. */
export type EndReason = "completed" | "expired" | "failed" | "deleted";

interface Session {
  readonly id: string;
}

interface Host {
  resolveProjectPath(path: string): string;
}

/** Eve 0.64 to 0.80: where a session is. */
export interface HandleContext {
  readonly host: Host;
  readonly session: Session;
  readonly storagePath: string;
}

/** Eve 0.64 to 0.80: the files of one kind that a template begins with. */
export interface ResourceTree {
  readonly files: readonly { readonly content: string | Uint8Array; readonly relativePath: string }[];
  /** Another key, other files. */
  readonly key: string;
  /** Where they go; `$HOME/` begins the sandbox's home. */
  readonly targetPath: string;
}

/** Eve 0.64 to 0.80: what a template is made of. */
export interface HandlePrepareContext {
  readonly host: Host;
  readonly log?: (message: string) => void;
  readonly resources: { readonly skills?: ResourceTree; readonly workspace?: ResourceTree };
  /** Another revision, another sandbox file. */
  readonly sourceRevision: string;
  readonly storagePath: string;
}

/** Eve 0.64 to 0.80: an open session. */
export interface Handle<Sandbox> {
  readonly sandbox: Sandbox;
  onRuntimeShutdown(): Promise<void>;
  /** 0.64 to 0.74. */
  onSessionStop(): Promise<void>;
  /** 0.64 to 0.74. */
  onSessionDelete(options?: Abortable): Promise<void>;
  /** From 0.75. */
  onSandboxStop(): Promise<void>;
  /** From 0.75. */
  onSandboxDelete(options?: Abortable): Promise<void>;
}

/** Eve 0.64 to 0.80: a provider's lifecycle. */
export interface HandleProvider<Sandbox = unknown> {
  prepare(context: HandlePrepareContext): Promise<Artifact>;
  start(
    context: HandleContext,
    open: unknown,
    artifact: unknown,
  ): Promise<{ readonly handle: Handle<Sandbox>; readonly state: State }>;
  resume(context: HandleContext, artifact: unknown, state: unknown): Promise<Handle<Sandbox>>;
  onSessionEnd(
    context: HandleContext,
    artifact: unknown,
    state: unknown,
    end: { readonly reason: EndReason },
  ): Promise<void>;
}

interface Abortable {
  readonly abortSignal?: AbortSignal | undefined;
}

/** From eve 0.81: where a session is. */
export interface ConnectionContext {
  readonly kind: "session" | "tool-session";
  readonly session: Session;
  resolveProjectPath(path: string): string;
}

/** From eve 0.81: what a template is made of. */
export interface ConnectionPrepareContext {
  /** Neither files nor a callback of the author's. */
  readonly isEmpty: boolean;
  readonly log?: (message: string) => void;
  /** Writes the files, then runs the author's callback. */
  populate(connection: Connection): Promise<void>;
  resolveProjectPath(path: string): string;
  templateKey(identity: { readonly [name: string]: Json }): string;
}

/** From eve 0.81: one file to be written. */
export interface ConnectionFile {
  readonly path: string;
  readonly content: string | Uint8Array | ReadableStream<Uint8Array>;
}

/** From eve 0.81: the link to one sandbox, from which eve makes the session. Paths are absolute. */
export interface Connection<Process = unknown, Extensions extends object = object> {
  spawn(
    options: Abortable & {
      readonly command: string;
      readonly workingDirectory: string;
      readonly env?: Readonly<Record<string, string | undefined>> | undefined;
      readonly stdin?: boolean | "pipe" | undefined;
    },
  ): Promise<Process>;
  readFile(options: Abortable & { readonly path: string }): Promise<Uint8Array | ReadableStream<Uint8Array> | null>;
  writeFiles(options: Abortable & { readonly files: readonly ConnectionFile[] }): Promise<void>;
  removePath(
    options: Abortable & {
      readonly path: string;
      readonly force?: boolean | undefined;
      readonly recursive?: boolean | undefined;
    },
  ): Promise<void>;
  stop(): Promise<void>;
  close(): Promise<void>;
  readonly extensions: Extensions;
}

/** From eve 0.81: a provider's lifecycle. */
export interface ConnectionProvider {
  readonly toolSessions: true;
  prepare(context: ConnectionPrepareContext): Promise<Artifact>;
  start(
    context: ConnectionContext,
    open: unknown,
    artifact: unknown,
  ): Promise<{ readonly connection: Connection; readonly state: State }>;
  resume(context: ConnectionContext, artifact: unknown, state: unknown): Promise<Connection>;
  onSessionEnd(
    context: ConnectionContext,
    state: unknown,
    end: Abortable & { readonly reason: EndReason },
  ): Promise<void>;
}
