/**
 * A bubblewrap sandbox for eve agents. Importing this loads no native code and
 * works on every platform; the first use loads it.
 *
 * @packageDocumentation
 */
import { type BwrapAvailability, explainAvailability } from "./availability.ts";
import { type BwrapSandboxBackend, createBackend } from "./eve/backend.ts";
import { connect, loadNative } from "./native.ts";
import { type BwrapSandboxCreateOptions, type CreateBwrapSandboxBackendInput, parseBackendInput } from "./options.ts";

/**
 * Makes the backend for `defineSandbox({ backend })`.
 *
 * Errors: `ERR_INVALID_ARGUMENT` and `ERR_UNSUPPORTED` for the options. Whether
 * the host can build a sandbox is not looked at before the backend is used.
 */
export function bwrap(options?: BwrapSandboxCreateOptions): BwrapSandboxBackend {
  return createBackend(options, connect);
}

/** The same as {@link bwrap}, with the options one level down. */
export function createBwrapSandboxBackend(input?: CreateBwrapSandboxBackendInput): BwrapSandboxBackend {
  return bwrap(parseBackendInput(input));
}

/**
 * Tells whether this host can build a sandbox, by building one: synchronous, up
 * to five seconds once, and instant after a yes. Never throws.
 */
export function isBwrapAvailable(bwrapPath?: string): boolean {
  return explainBwrapAvailability(bwrapPath).available;
}

/** The same as {@link isBwrapAvailable}, with what was found. */
export function explainBwrapAvailability(bwrapPath?: string): BwrapAvailability {
  return explainAvailability(loadNative, bwrapPath);
}

export type { BwrapAvailability, BwrapFinding } from "./availability.ts";
export { capturedOutput, SandboxError, type SandboxErrorCode, type SandboxErrorInfo } from "./errors.ts";
export {
  BWRAP_BACKEND_NAME,
  type BwrapCreateInput,
  type BwrapPrewarmInput,
  type BwrapSandboxBackend,
  type BwrapSandboxHandle,
  type BwrapSandboxUse,
  type BwrapSeedFile,
  type BwrapSessionState,
} from "./eve/backend.ts";
export type {
  BwrapCleanupReason,
  BwrapCommandFinishReason,
  BwrapSandboxEvent,
  BwrapSandboxEventSink,
} from "./events.ts";
export {
  type BwrapHome,
  type BwrapNetworkPolicy,
  type BwrapProcesses,
  type BwrapSandboxCreateOptions,
  type BwrapSandboxUseOptions,
  type CreateBwrapSandboxBackendInput,
  DEFAULT_IDLE_TIMEOUT_MS,
  DEFAULT_MAX_CONCURRENT_PROCESSES,
  DEFAULT_MAX_LIVE_GENERATIONS,
  DEFAULT_MAX_OUTPUT_BYTES,
  DEFAULT_RUN_TIMEOUT_MS,
} from "./options.ts";
export type { SandboxProcess, TerminalSandboxProcess, WritableSandboxProcess } from "./process.ts";
export type { TerminalSize } from "./requests.ts";
export type {
  SandboxCommandOptions,
  SandboxCommandResult,
  SandboxOperations,
  SandboxPathOptions,
  SandboxReadTextOptions,
  SandboxRemoveOptions,
  SandboxSession,
  SandboxSpawnOptions,
  SandboxWriteOptions,
  SandboxWriteTextOptions,
} from "./session.ts";
