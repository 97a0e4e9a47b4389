import type {
  BwrapSandboxCreateOptions,
  BwrapSandboxUseOptions,
  BwrapSeedFile,
  SandboxSession,
} from "../../lib/index.ts";

/** What a suite opens sessions through: one of our ways into eve, with its options applied. */
export interface Adapter {
  /** Builds a template unless it exists. */
  prewarm(input: TemplateInput): Promise<{ readonly reused: boolean }>;
  /** Opens a session, made on first use. */
  open(input: SessionInput): Promise<Opened>;
}

export interface TemplateInput {
  readonly key: string;
  readonly seeds?: readonly BwrapSeedFile[];
  readonly bootstrap?: (session: SandboxSession) => void | Promise<void>;
}

export interface SessionInput {
  readonly key: string;
  /** Left out, the session begins empty. */
  readonly templateKey?: string;
  readonly tags?: Readonly<Record<string, string>>;
}

/** An open session and what its owner can do with it. */
export interface Opened {
  readonly session: SandboxSession;
  use(options?: BwrapSandboxUseOptions): Promise<SandboxSession>;
  stop(): Promise<void>;
  shutdown(): Promise<void>;
  delete(): Promise<void>;
}

/** Options of an adapter; a suite always says where its files are. */
export interface AdapterOptions extends BwrapSandboxCreateOptions {
  readonly cacheDir: string;
}

/** Makes adapters. */
export interface Factory {
  /** The module that exports this factory as its default, for processes that a test starts. */
  readonly module: string;
  make(options: AdapterOptions): Adapter;
}
