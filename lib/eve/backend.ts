import { join, resolve } from "node:path";

import type { Environment, OpenSession } from "../environment.ts";
import { SandboxError } from "../errors.ts";
import {
  type BwrapSandboxCreateOptions,
  type BwrapSandboxUseOptions,
  type Options,
  parseOptions,
  parseUseOptions,
} from "../options.ts";
import type { SandboxShape } from "../requests.ts";
import { createSession, type SandboxSession } from "../session.ts";
import { bootstrapSession } from "./bootstrap.ts";
import { templateNotProvisioned } from "./errors.ts";

/** The backend's name: part of eve's keys, so it never changes. */
export const BWRAP_BACKEND_NAME = "bwrap";

/**
 * Opens the session inside `bootstrap` or `onSession`, with options applied
 * before it resolves. The empty record is what eve's own backends take: with it
 * TypeScript finds one type for `isBwrapAvailable() ? bwrap() : defaultBackend()`.
 */
export type BwrapSandboxUse = (options?: BwrapSandboxUseOptions | Record<string, never>) => Promise<SandboxSession>;

/** One file that eve wants in a template; `$HOME/` begins the sandbox's home. */
export interface BwrapSeedFile {
  readonly path: string;
  readonly content: string | Uint8Array;
}

/** What eve asks with to have a template built. */
export interface BwrapPrewarmInput {
  /** Names the template. */
  readonly templateKey: string;
  /** The author's set-up, run once the seeds are in place. */
  readonly bootstrap?: ((context: { readonly use: BwrapSandboxUse }) => void | Promise<void>) | undefined;
  /** Receives progress, a line at a time. */
  readonly log?: ((message: string) => void) | undefined;
  readonly runtimeContext: { readonly appRoot: string };
  readonly seedFiles: readonly BwrapSeedFile[];
}

/** What eve asks with for a session. */
export interface BwrapCreateInput {
  /** The template to begin from; `null` begins empty. */
  readonly templateKey: string | null;
  /** Names the session. */
  readonly sessionKey: string;
  /** What `captureState()` gave; the session's own files know everything. */
  readonly existingMetadata?: Readonly<Record<string, unknown>> | undefined;
  /** Appear in events and in the cache's metadata. */
  readonly tags?: Readonly<Record<string, string>> | undefined;
  readonly runtimeContext: { readonly appRoot: string };
}

/** What eve keeps to find a session again. */
export interface BwrapSessionState {
  readonly backendName: string;
  readonly metadata: Record<string, unknown>;
  readonly sessionKey: string;
}

/** An open session as eve handles it. */
export interface BwrapSandboxHandle {
  readonly session: SandboxSession;
  /** Applies options to the session and returns it. */
  readonly useSessionFn: BwrapSandboxUse;
  /** Returns what eve keeps. */
  captureState(): Promise<BwrapSessionState>;
  /** Ends all commands; files stay, `/tmp` goes, and the session starts anew when it is used. */
  stop(): Promise<void>;
  /** Ends all commands and the session object; a later `create()` opens it again. */
  shutdown(): Promise<void>;
  /** Ends all commands and removes the session's files; its template stays. */
  delete(options?: { readonly abortSignal?: AbortSignal | undefined }): Promise<void>;
}

/** The backend object of eve 0.27 to 0.63. */
export interface BwrapSandboxBackend {
  readonly name: string;
  /**
   * Opens a session, made on first use. Cheap, and may be called for every
   * step: all its handles lead to one session.
   *
   * Errors: one that eve recognises as its SandboxTemplateNotProvisionedError.
   */
  create(input: BwrapCreateInput): Promise<BwrapSandboxHandle>;
  /** Builds a template unless it exists: seeds, then bootstrap, then published at once or not at all. */
  prewarm(input: BwrapPrewarmInput): Promise<{ readonly reused: boolean }>;
}

/** Makes a backend; `connect` is not called before the backend is used. */
export function createBackend(
  createOptions: BwrapSandboxCreateOptions | undefined,
  connect: () => Environment,
): BwrapSandboxBackend {
  const options = parseOptions(createOptions);
  return {
    name: BWRAP_BACKEND_NAME,
    create: async (input) => await create(connect(), options, input),
    prewarm: async (input) => await prewarm(connect(), options, input),
  };
}

async function create(
  environment: Environment,
  options: Options,
  input: BwrapCreateInput,
): Promise<BwrapSandboxHandle> {
  const { sessionKey, templateKey, tags, runtimeContext } = input;
  const request = { ...shared(options, runtimeContext.appRoot), sessionKey, templateKey, ...(tags && { tags }) };
  const { ok } = await environment.call("create", request).catch((error: unknown) => {
    throw templateKey !== null && isCode(error, "ERR_TEMPLATE_NOT_FOUND")
      ? templateNotProvisioned(BWRAP_BACKEND_NAME, templateKey, error)
      : error;
  });
  const open = environment.adopt(ok.session, options.onEvent);
  const session = createSession(environment, open, sessionKey, options);
  return sessionHandle(environment, open, session);
}

function sessionHandle(environment: Environment, open: OpenSession, session: SandboxSession): BwrapSandboxHandle {
  return {
    session,
    useSessionFn: useSession(session),
    async captureState() {
      return { backendName: BWRAP_BACKEND_NAME, metadata: {}, sessionKey: session.id };
    },
    async stop() {
      if (!open.closed) await environment.call("sessionStop", { session: open.handle });
    },
    async shutdown() {
      if (open.closed) return;
      // At once, so that a second shutdown does not meet a number that is gone;
      // events of the clean-up still find their sink.
      open.closed = true;
      try {
        await environment.call("sessionClose", { session: open.handle });
      } finally {
        environment.forget(open);
      }
    },
    async delete({ abortSignal } = {}) {
      if (open.closed) throw new SandboxError("ERR_CLOSED", "the session was closed", { op: "delete" });
      await environment.call("sessionDelete", { session: open.handle }, { signal: abortSignal });
    },
  };
}

async function prewarm(
  environment: Environment,
  options: Options,
  input: BwrapPrewarmInput,
): Promise<{ reused: boolean }> {
  const { templateKey, bootstrap, log, seedFiles, runtimeContext } = input;
  const { ok } = await environment.call("prewarmBegin", { ...shared(options, runtimeContext.appRoot), templateKey });
  if (ok.reused) return { reused: true };

  const open = environment.adopt(ok.session, options.onEvent);
  const session = createSession(environment, open, templateKey, options);
  try {
    if (seedFiles.length > 0) log?.(`write ${seedFiles.length} seed files`);
    for (const { path, content } of seedFiles) await writeSeed(session, path, content);
    await bootstrap?.({ use: useSession(bootstrapSession(session, log)) });
    // The author may have kept the session: from here on it is nobody's.
    open.closed = true;
    await environment.call("prewarmCommit", { session: open.handle });
  } catch (error) {
    open.closed = true;
    // The template is not published either way; the first failure is the one to tell.
    await environment.call("prewarmAbort", { session: open.handle }).catch(() => {});
    throw error;
  } finally {
    environment.forget(open);
  }
  return { reused: false };
}

async function writeSeed(session: SandboxSession, seedPath: string, content: string | Uint8Array): Promise<void> {
  // The home is the workspace.
  const path = seedPath.replace(/^\$HOME(?=\/|$)/, session.resolvePath(""));
  if (typeof content === "string") await session.writeTextFile({ path, content });
  else await session.writeBinaryFile({ path, content });
}

function useSession(session: SandboxSession): BwrapSandboxUse {
  return async (options) => {
    const policy = parseUseOptions(options);
    if (policy !== undefined) await session.setNetworkPolicy(policy);
    return session;
  };
}

/** What `create` and `prewarmBegin` have in common. */
function shared(options: Options, appRoot: string) {
  const { templateRevision } = options;
  const sandbox: SandboxShape = {
    cacheDir: options.cacheDir ?? join(appRoot, ".eve", "sandbox-cache", "bwrap"),
    appRoot: resolve(appRoot),
    bwrapPath: options.bwrapPath,
    hidePaths: options.hidePaths,
    path: process.env["PATH"] ?? "",
    nodePath: process.execPath,
  };
  return {
    sandbox,
    networkPolicy: options.networkPolicy,
    ...(templateRevision !== undefined && { templateRevision }),
    ...(options.onEvent && { events: true }),
  };
}

// By the member: the error may be of another copy's class.
function isCode(error: unknown, code: string): boolean {
  return error instanceof Error && "code" in error && error.code === code;
}
