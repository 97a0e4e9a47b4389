import type { Environment, OpenSession } from "../environment.ts";
import {
  type BwrapSandboxCreateOptions,
  type BwrapSandboxUseOptions,
  type Options,
  parseOptions,
  parseUseOptions,
} from "../options.ts";
import { createOperations, type SandboxSession } from "../session.ts";
import { bootstrapSession } from "./bootstrap.ts";
import { templateNotProvisioned } from "./errors.ts";
import { BWRAP_BACKEND_NAME, closeSession, deleteSession, isCode, opening, stopSession } from "./opening.ts";
import { buildTemplate, type TemplateFile, writeTemplateFiles } from "./template.ts";

export { BWRAP_BACKEND_NAME };

/**
 * Opens the session inside `bootstrap` or `onSession`, with options applied
 * before it resolves. The empty record is what eve's own backends take: with it
 * TypeScript finds one type for `isBwrapAvailable() ? bwrap() : defaultBackend()`.
 */
export type BwrapSandboxUse = (options?: BwrapSandboxUseOptions | Record<string, never>) => Promise<SandboxSession>;

/** One file that eve wants in a template; `$HOME/` begins the sandbox's home. */
export type BwrapSeedFile = TemplateFile;

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
  const request = { ...opening(options, runtimeContext), sessionKey, templateKey, ...(tags && { tags }) };
  const { ok } = await environment.call("create", request).catch((error: unknown) => {
    if (templateKey === null || !isCode(error, "ERR_TEMPLATE_NOT_FOUND")) throw error;
    throw templateNotProvisioned({
      kind: "backend",
      name: BWRAP_BACKEND_NAME,
      templateKey,
      remedy: "start the server with `eve start`, which builds it",
      cause: error,
    });
  });
  const open = environment.adopt(ok.session, options.onEvent);
  return sessionHandle(environment, open, { id: sessionKey, ...createOperations(environment, open, options) });
}

function sessionHandle(environment: Environment, open: OpenSession, session: SandboxSession): BwrapSandboxHandle {
  return {
    session,
    useSessionFn: useSession(session),
    async captureState() {
      return { backendName: BWRAP_BACKEND_NAME, metadata: {}, sessionKey: session.id };
    },
    stop: () => stopSession(environment, open),
    shutdown: () => closeSession(environment, open),
    delete: ({ abortSignal } = {}) => deleteSession(environment, open, abortSignal),
  };
}

async function prewarm(
  environment: Environment,
  options: Options,
  { templateKey, bootstrap, log, seedFiles, runtimeContext }: BwrapPrewarmInput,
): Promise<{ reused: boolean }> {
  return await buildTemplate(environment, options, {
    project: runtimeContext,
    templateKey,
    async build(staging) {
      const session = { id: templateKey, ...createOperations(environment, staging, options) };
      if (seedFiles.length > 0) log?.(`write ${seedFiles.length} seed files`);
      await writeTemplateFiles(session, options, seedFiles);
      await bootstrap?.({ use: useSession(bootstrapSession(session, { name: "bootstrap", log })) });
    },
  });
}

function useSession(session: SandboxSession): BwrapSandboxUse {
  return async (options) => {
    const policy = parseUseOptions(options);
    if (policy !== undefined) await session.setNetworkPolicy(policy);
    return session;
  };
}
