import type {
  BwrapSandboxCreateOptions,
  BwrapSandboxUseOptions,
  BwrapSeedFile,
  SandboxOperations,
} from "../../lib/index.ts";
import type { Cases } from "./suite.ts";

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
  readonly bootstrap?: (session: SandboxOperations) => void | Promise<void>;
}

export interface SessionInput {
  readonly key: string;
  /** Left out, the session begins empty. */
  readonly templateKey?: string;
  readonly tags?: Readonly<Record<string, string>>;
}

/** An open session and what its owner can do with it. */
export interface Opened {
  readonly session: SandboxOperations;
  use(options?: BwrapSandboxUseOptions): Promise<SandboxOperations>;
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
  /** The tags that a session's events carry. */
  tagsOf(input: SessionInput): Readonly<Record<string, string>>;
  /** What eve knows a missing template's error by. */
  missing(templateKey: string): Readonly<Record<string, string>> | Promise<Readonly<Record<string, string>>>;
  /** Cases that are not true here, by name, each with the reason. */
  readonly except?: Readonly<Record<string, string>>;
  /** What holds in place of other cases, by their area and name. */
  readonly instead?: Readonly<Record<string, Cases>>;
  /** The module that exports this factory as its default, for processes that a test starts. */
  readonly module: string;
  make(options: AdapterOptions): Adapter;
}
