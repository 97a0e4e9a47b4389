// Eve from 0.81, as far as a sandbox provider sees it. That release could not be
// installed when this was written: everything here is played from its documentation,
// "Custom Sandbox Providers", and each part says in quotes which sentence it plays.
// When the release is there, this file is what has to be compared with it.

import { AsyncLocalStorage } from "node:async_hooks";
import { createHash } from "node:crypto";
import { join } from "node:path";

import type {
  Connection,
  ConnectionContext,
  ConnectionFile,
  ConnectionProvider,
  EndReason,
  Json,
  ProviderDefinition,
} from "../../lib/eve/provider/eve.ts";
import type { SandboxProcess } from "../../lib/process.ts";
import type {
  SandboxCommandOptions,
  SandboxPathOptions,
  SandboxReadTextOptions,
  SandboxRemoveOptions,
  SandboxWriteOptions,
  SandboxWriteTextOptions,
} from "../../lib/session.ts";

/** "When the sandbox no longer exists, throw `SandboxSessionGoneError`". */
export class SandboxSessionGoneError extends Error {
  override readonly name = "SandboxSessionGoneError";
}

/** "Throw `SandboxTemplateNotProvisionedError` from `start()` or `resume()` when the artifact names [what] no longer exists". */
export class SandboxTemplateNotProvisionedError extends Error {
  override readonly name = "SandboxTemplateNotProvisionedError";
  readonly providerName: string;
  readonly reason: string | undefined;
  readonly templateKey: string;

  constructor(facts: { readonly providerName: string; readonly reason?: string; readonly templateKey: string }) {
    super(`Sandbox template "${facts.templateKey}" is not available to this runtime. ${facts.reason ?? ""}`);
    this.providerName = facts.providerName;
    this.reason = facts.reason;
    this.templateKey = facts.templateKey;
  }
}

/** "`SANDBOX_AGENT_ENV` is `{ AI_AGENT: "eve" }`". */
export const SANDBOX_AGENT_ENV = { AI_AGENT: "eve" };

/** "`defineSandboxProvider()` from `eve/sandbox/provider` takes a name and an `environment()` function that returns the lifecycle." */
export function defineSandboxProvider(definition: ProviderDefinition) {
  return {
    name: definition.name,
    environment({ prepare, ...options }: { readonly prepare?: Prepare } & Record<string, unknown> = {}): Environment {
      const environment: Environment = {
        provider: definition.name,
        protocol: definition.stateProtocolVersion ?? 1,
        // "`environment(options)` always receives an object, without `prepare`".
        implementation: definition.environment(options) as ConnectionProvider,
        prepare,
        async open(...args) {
          const runtime = selecting.getStore();
          if (runtime === undefined)
            throw new Error("Sandbox environments can only open sandboxes inside defineSandbox().");
          return await runtime(environment, args[0]);
        },
      };
      return environment;
    },
  };
}

/** What the author's callback gets a session for. */
export type Prepare = (sandbox: Session) => void | Promise<void>;

/** An environment as a sandbox file exports it. */
export interface Environment {
  readonly provider: string;
  readonly protocol: number;
  readonly implementation: ConnectionProvider;
  readonly prepare: Prepare | undefined;
  open(options?: unknown): Promise<RuntimeSession>;
}

const selecting = new AsyncLocalStorage<(environment: Environment, options: unknown) => Promise<RuntimeSession>>();

/** What an agent brings into its templates. */
export interface Agent {
  /** The application's directory. */
  readonly appRoot: string;
  readonly workspace?: Readonly<Record<string, string | Uint8Array>>;
  readonly skills?: Readonly<Record<string, string | Uint8Array>>;
  /** The text of the sandbox file. */
  readonly source: string;
}

/** "`eve build`, or the first sandbox access in `eve dev`: `prepare(ctx)`, and stores the artifact it returns with the deployment". */
export async function build(environment: Environment, agent: Agent): Promise<string> {
  const { workspace = {}, skills = {}, source, appRoot } = agent;
  const artifact = await environment.implementation.prepare({
    // "`true` when the agent has no workspace files, no skill files, and no authored `prepare`."
    isEmpty: Object.keys({ ...workspace, ...skills }).length === 0 && environment.prepare === undefined,
    log: () => {},
    resolveProjectPath: (path) => join(appRoot, path),
    // "`ctx.templateKey(identity)` returns a SHA-256 hex key that changes whenever `identity`, the workspace
    // files, the skill files, or the sandbox file's source changes. […] eve throws if `identity` sets either one."
    templateKey(identity) {
      if ("resources" in identity || "sourceRevision" in identity) throw new Error("a reserved member of the identity");
      return createHash("sha256")
        .update(serialized([identity, bytesOf(workspace), bytesOf(skills), source]))
        .digest("hex");
    },
    populate: (connection) => populate(environment, connection, { workspace, skills }),
  });
  return serialized(artifact);
}

function bytesOf(files: Readonly<Record<string, string | Uint8Array>>): Json {
  return Object.entries(files).map(([path, content]) => [path, Buffer.from(content as string).toString("base64")]);
}

/** "a JSON-compatible artifact", "minimal JSON-compatible state": a member that is `undefined` is neither. */
function serialized(value: unknown): string {
  const undefinedAt = (value: unknown): boolean =>
    value === undefined || (typeof value === "object" && value !== null && Object.values(value).some(undefinedAt));
  if (undefinedAt(value)) throw new Error("a value that is not JSON");
  return JSON.stringify(value);
}

async function populate(
  environment: Environment,
  connection: Connection,
  { workspace, skills }: Required<Pick<Agent, "workspace" | "skills">>,
): Promise<void> {
  const session = derive(connection);
  // "eve finds `$HOME` by running a command through `spawn()`. When the sandbox has no usable home directory,
  // skills go to `/workspace/skills`."
  const home = await session.run({ command: `printf '%s' "$HOME"` });
  const usable = home.exitCode === 0 && /^\/[^\n\0]*$/.test(home.stdout);
  const skillsAt = usable ? `${home.stdout}/.agents/skills` : "/workspace/skills";
  // "`populate()` writes the agent's workspace files to `/workspace` and its skill files to
  // `$HOME/.agents/skills` in one `writeFiles()` batch, then runs the authored `prepare` callback with a session
  // over the same connection."
  const files: ConnectionFile[] = [
    ...Object.entries(workspace).map(([path, content]) => ({ path: `/workspace/${path}`, content: asBytes(content) })),
    ...Object.entries(skills).map(([path, content]) => ({ path: `${skillsAt}/${path}`, content: asBytes(content) })),
  ];
  if (files.length > 0) await connection.writeFiles({ files });
  await environment.prepare?.(preparationSession(session));
}

const asBytes = (content: string | Uint8Array) => (typeof content === "string" ? Buffer.from(content) : content);

/** As the providers that eve ships have long done it: a command of `prepare` that exits with 1 fails it. */
function preparationSession(session: Session): Session {
  return {
    ...session,
    async run(options) {
      const result = await session.run(options);
      if (result.exitCode === 1) throw new Error(`Sandbox preparation failed: ${options.command}\n${result.stderr}`);
      return result;
    },
  };
}

/** The session that eve derives, with the extensions of our connections. */
export type Session = ReturnType<typeof derive>;

/** A session as tools and authors get it. */
export type RuntimeSession = Session & {
  stop(): Promise<void>;
  delete(options?: { readonly abortSignal?: AbortSignal }): Promise<void>;
};

/**
 * "eve builds the rest of the session from these methods: `run()` over `spawn()`, the binary and text read and
 * write variants, encodings and line ranges, `writeFiles()`, `resolvePath()`, and abort-signal binding." How, is
 * what eve 0.80.1 does.
 */
function derive(connection: Connection) {
  // "Every path a connection receives is absolute, and `workingDirectory` is always set. eve resolves relative
  // paths and a missing or relative working directory from `/workspace` before it calls the connection."
  const resolvePath = (path: string) =>
    path.startsWith("/") ? path : `/workspace/${path.replace(/^(\.\/+)+/, "")}`.replace(/\/\.?$/, "");

  async function spawn(options: SandboxCommandOptions & { readonly stdin?: true | "pipe" }) {
    return (await connection.spawn({
      ...options,
      workingDirectory: resolvePath(options.workingDirectory ?? "/workspace"),
    })) as SandboxProcess;
  }

  async function run(options: SandboxCommandOptions) {
    const process = await spawn(options);
    const [stdout, stderr, { exitCode }] = await Promise.all([
      collect(process.stdout),
      collect(process.stderr),
      process.wait(),
    ]);
    return { exitCode, stderr: new TextDecoder().decode(stderr), stdout: new TextDecoder().decode(stdout) };
  }

  async function readFile({ path, abortSignal }: SandboxPathOptions): Promise<ReadableStream<Uint8Array> | null> {
    // "`readFile()` resolves to the file's bytes or a byte stream, or to `null`".
    const content = await connection.readFile({ path: resolvePath(path), abortSignal });
    return content instanceof Uint8Array ? new Blob([content as Uint8Array<ArrayBuffer>]).stream() : content;
  }

  async function readBinaryFile(options: SandboxPathOptions): Promise<Uint8Array | null> {
    const content = await readFile(options);
    return content && (await collect(content));
  }

  async function readTextFile(options: SandboxReadTextOptions): Promise<string | null> {
    const { encoding = "utf-8", startLine, endLine } = options;
    for (const [name, line] of Object.entries({ startLine, endLine })) {
      if (line !== undefined && !(Number.isInteger(line) && line >= 1))
        throw new Error(`${name} must be a positive integer`);
    }
    if (startLine !== undefined && endLine !== undefined && startLine > endLine) {
      throw new Error("startLine must not be greater than endLine.");
    }
    const bytes = await readBinaryFile(options);
    if (bytes === null) return null;
    const text =
      encoding === "utf-8" || encoding === "utf8"
        ? new TextDecoder("utf-8", { fatal: true }).decode(bytes)
        : Buffer.from(bytes).toString(encoding as BufferEncoding);
    if (startLine === undefined && endLine === undefined) return text;
    const lines = text.match(/[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$/g) ?? [];
    return lines.slice((startLine ?? 1) - 1, endLine).join("");
  }

  // "`writeFiles({ files, abortSignal })` […] is the only write primitive."
  async function writeFiles(options: {
    readonly files: readonly ConnectionFile[];
    readonly abortSignal?: AbortSignal;
  }) {
    const files = options.files.map(({ path, content }) => ({ path: resolvePath(path), content }));
    await connection.writeFiles({ ...options, files });
  }

  async function writeBinaryFile({ path, content, abortSignal }: SandboxWriteOptions<Uint8Array>) {
    await connection.writeFiles({ files: [{ path: resolvePath(path), content }], abortSignal });
  }

  async function writeFile({ path, content, abortSignal }: SandboxWriteOptions<ReadableStream<Uint8Array>>) {
    await writeBinaryFile({ path, content: await collect(content, abortSignal), abortSignal });
  }

  async function writeTextFile({ path, content, encoding = "utf-8", abortSignal }: SandboxWriteTextOptions) {
    await writeBinaryFile({ path, content: Buffer.from(content, encoding as BufferEncoding), abortSignal });
  }

  async function removePath({ path, ...options }: SandboxRemoveOptions) {
    await connection.removePath({ ...options, path: resolvePath(path) });
  }

  const members = {
    resolvePath,
    run,
    spawn,
    readFile,
    readBinaryFile,
    readTextFile,
    writeFile,
    writeBinaryFile,
    writeTextFile,
    writeFiles,
    removePath,
  };
  // "`extensions` […] is a plain object whose own properties eve merges onto the session". "An extension member
  // named like a session method, or `stop` or `delete`, is a type error, and eve throws when it opens the connection".
  const extensions = (connection.extensions ?? {}) as { setNetworkPolicy(policy: string): Promise<void> };
  const clashes = Object.keys(extensions).filter((name) => name in members || name === "stop" || name === "delete");
  if (clashes.length > 0) {
    throw new Error(
      `Sandbox connection extensions cannot replace the session members eve provides: ${clashes.join(", ")}. Rename them.`,
    );
  }
  return { ...members, ...extensions };
}

async function collect(stream: ReadableStream<Uint8Array>, signal?: AbortSignal): Promise<Uint8Array> {
  const reader = stream.getReader();
  const abort = () => void reader.cancel(signal?.reason).catch(() => {});
  signal?.addEventListener("abort", abort, { once: true });
  if (signal?.aborted) abort();
  try {
    const chunks: Uint8Array[] = [];
    for (;;) {
      const { done, value } = await reader.read();
      signal?.throwIfAborted();
      if (done) return Buffer.concat(chunks);
      if (!(value instanceof Uint8Array)) throw new TypeError("a stream of something else than Uint8Array");
      chunks.push(value);
    }
  } catch (error) {
    reader.cancel(error).catch(() => {});
    throw error;
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

/** What outlives a server: for each session what eve has on record, as it is written down. */
export type Records = Map<string, { readonly provider: string; readonly protocol: number; readonly state: string }>;

/** What a server runs. */
export interface Deployment {
  readonly environment: Environment;
  /** What `build` gave. */
  readonly artifact: string;
  readonly appRoot: string;
  /** The author's `defineSandbox()`. Default: opens the environment without options. */
  readonly selector?: () => Promise<RuntimeSession>;
  readonly records: Records;
}

interface Live {
  readonly connection: Connection;
  readonly session: RuntimeSession;
  /** "eve calls `close()` at most once per connection, retrying only after a failure." */
  close(): Promise<void>;
}

/** One eve server: the process's connections, over records that other servers share. */
export interface Server {
  /** A tool or a callback asks for its sandbox: one step of a workflow. */
  access(sessionId: string): Promise<RuntimeSession>;
  /** A step is over: the next one reaches for the sandbox anew, also in this process. */
  endStep(sessionId: string): void;
  /** "The owning session reaches a terminal outcome". */
  end(sessionId: string, reason: Exclude<EndReason, "deleted">): Promise<void>;
  /** A subagent that shares the sandbox of `parentId` opens it. */
  accessAsChild(parentId: string): Promise<RuntimeSession>;
  /** An `invokeTool` call, keyed or not, whose tool requests the sandbox. */
  invokeTool<T>(key: string | undefined, tool: (sandbox: Session) => Promise<T>): Promise<T>;
  /** "The eve server shuts down". */
  shutdown(): Promise<void>;
  /** What eve would log. */
  readonly logged: unknown[];
}

/** Starts a server. */
export function serve({ environment, artifact, appRoot, selector, records }: Deployment): Server {
  const { implementation, provider, protocol } = environment;
  // One connection a session for its steps, and those of subagents that share it.
  const live = new Map<string, Live>();
  const children = new Map<string, Live[]>();
  const logged: unknown[] = [];

  // "`ctx.session.id` is the id of the session that owns the sandbox." "`ctx.kind` is `"tool-session"` for a
  // keyed `invokeTool` call's sandbox and `"session"` otherwise."
  const context = (id: string, kind: ConnectionContext["kind"] = "session"): ConnectionContext => ({
    kind,
    session: { id },
    resolveProjectPath: (path) => join(appRoot, path),
  });
  // "`resume()` receives the current deployment's artifact".
  const currentArtifact = () => JSON.parse(artifact) as Json;

  function install(connection: Connection, id: string): Live {
    let closed: Promise<void> | undefined;
    const close = () =>
      (closed ??= Promise.resolve(connection.close?.()).catch((error: unknown) => {
        closed = undefined;
        throw error;
      }));
    const session: RuntimeSession = {
      ...derive(connection),
      // "`sandbox.stop()`: `connection.stop()`, then `connection.close()`".
      async stop() {
        await connection.stop();
        await close();
        if (live.get(id)?.connection === connection) live.delete(id);
      },
      // "`sandbox.delete()`: `connection.close()`, then `onSessionEnd(ctx, state, { reason: "deleted" })`", "and
      // the caller's `abortSignal`". "A failed `close()` never prevents `onSessionEnd()` from deleting the sandbox."
      async delete(options = {}) {
        await close().catch((error: unknown) => logged.push(error));
        const state = stateOf(id);
        await implementation.onSessionEnd(context(id), state, { reason: "deleted", ...options });
        records.delete(id);
        if (live.get(id)?.connection === connection) live.delete(id);
      },
    };
    return { connection, session, close };
  }

  function stateOf(id: string): Json {
    const record = records.get(id);
    return record === undefined ? null : (JSON.parse(record.state) as Json);
  }

  /** "The first sandbox access in a session: `start(ctx, options, artifact)` from `environment.open(options)` in the selector". */
  async function start(id: string, kind?: ConnectionContext["kind"]): Promise<Live> {
    let opened: Live | undefined;
    const runtime = async (chosen: Environment, options: unknown) => {
      if (chosen !== environment) throw new Error("the selector opened a different environment");
      const { connection, state } = await implementation.start(context(id, kind), options, currentArtifact());
      const written = serialized(state);
      if (kind === undefined) records.set(id, { provider, protocol, state: written });
      opened = install(connection, id);
      return opened.session;
    };
    const session = await selecting.run(runtime, selector ?? (() => environment.open()));
    if (session !== opened?.session) throw new Error("the selector must return the sandbox it opens");
    return opened;
  }

  async function reach(id: string): Promise<Live> {
    const record = records.get(id);
    // "state recorded under another version starts a fresh sandbox instead of reaching `resume()`."
    if (record === undefined || record.provider !== provider || record.protocol !== protocol) return await start(id);
    try {
      // "A later workflow step or process: `resume(ctx, artifact, state)`".
      return install(await implementation.resume(context(id), currentArtifact(), JSON.parse(record.state)), id);
    } catch (error) {
      // "throw `SandboxSessionGoneError`: eve clears the session's state and reruns the selector […]. Let other
      // failures, such as an outage, surface unchanged."
      if (!(error instanceof SandboxSessionGoneError)) throw error;
      records.delete(id);
      return await start(id);
    }
  }

  async function access(id: string): Promise<RuntimeSession> {
    const one = live.get(id) ?? (await reach(id));
    live.set(id, one);
    return one.session;
  }

  return {
    logged,
    access,
    endStep: (id) => void live.delete(id),

    async accessAsChild(parentId) {
      // "A subagent that shares its parent's sandbox can open it before the parent does": without the selector,
      // and what it recorded is not the parent's record.
      const { connection } = await implementation.start(context(parentId), undefined, currentArtifact());
      const child = install(connection, parentId);
      children.set(parentId, [...(children.get(parentId) ?? []), child]);
      return {
        ...child.session,
        // "A subagent that shares its parent's sandbox never calls it, because cleanup belongs to the parent."
        async delete() {
          throw new Error("Only the owning session can delete this sandbox.");
        },
      };
    },

    async end(id, reason) {
      // "`connection.close()` on this process's connections for the session, then `onSessionEnd(ctx, state, {
      // reason })`". "`state` is `null` when the session never recorded it".
      const mine = [live.get(id), ...(children.get(id) ?? [])].filter((one) => one !== undefined);
      for (const one of mine) await one.close().catch((error: unknown) => logged.push(error));
      live.delete(id);
      children.delete(id);
      try {
        await implementation.onSessionEnd(context(id), stateOf(id), { reason });
      } catch {
        // "must be idempotent, because eve retries the cleanup step. eve logs an exhausted failure without
        // replacing the session's outcome."
        await implementation
          .onSessionEnd(context(id), stateOf(id), { reason })
          .catch((error: unknown) => logged.push(error));
      }
      records.delete(id);
    },

    async invokeTool(key, tool) {
      if (key === undefined) {
        // "An `invokeTool` call without a key calls it when the call ends if the tool requested the sandbox."
        const id = `invocation-${Math.random()}`;
        const one = await start(id);
        try {
          return await tool(one.session);
        } finally {
          await one.close().catch((error: unknown) => logged.push(error));
          await implementation.onSessionEnd(context(id), stateOf(id), { reason: "completed" });
          records.delete(id);
        }
      }
      if (implementation.toolSessions !== true) {
        throw new Error(
          `Sandbox provider "${provider}" cannot keep a sandbox between invokeTool calls, so a call with a key cannot open one.`,
        );
      }
      // "A keyed call does not own its sandbox: eve runs the selector and `start()` on every call, calls
      // `connection.close()` when the call ends, and never calls `onSessionEnd()`."
      const one = await start(`tool-${key}`, "tool-session");
      try {
        return await tool(one.session);
      } finally {
        await one.close().catch((error: unknown) => logged.push(error));
      }
    },

    async shutdown() {
      // "`connection.stop()`, then `connection.close()`, on every open session connection; eve logs failures and
      // does not throw them".
      for (const one of [...live.values(), ...[...children.values()].flat()]) {
        try {
          await one.connection.stop();
          await one.close();
        } catch (error) {
          logged.push(error);
        }
      }
      live.clear();
      children.clear();
    },
  };
}
