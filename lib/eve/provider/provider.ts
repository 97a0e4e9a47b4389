import type { SandboxEnvironment, SandboxSession as EveSandboxSession } from "eve/sandbox";

import type { Environment } from "../../environment.ts";
import type { BwrapNetworkPolicy, BwrapSandboxCreateOptions, BwrapSandboxUseOptions } from "../../options.ts";
import { BWRAP_BACKEND_NAME } from "../opening.ts";
import { type ConnectionErrors, connectionProvider } from "./connections.ts";
import type { ProviderModule } from "./eve.ts";
import { handleProvider } from "./handles.ts";
import { stateProtocolVersion } from "./records.ts";

/** A sandbox session as eve gives it to authors, and what only this provider can do. */
export type BwrapSandboxSession = EveSandboxSession & {
  /** Changes the network of later commands, for as long as the session exists. */
  setNetworkPolicy(policy: BwrapNetworkPolicy): Promise<void>;
};

/** Options of `BwrapSandbox.environment()`: those of `bwrap()`, and two more. Each may be left out. */
export interface BwrapSandboxEnvironmentOptions extends BwrapSandboxCreateOptions {
  /**
   * Sets a template up, run once when it is built and its files are in place. A
   * command of `run()` that exits with 1 fails it.
   */
  readonly prepare?: ((sandbox: BwrapSandboxSession) => void | Promise<void>) | undefined;
  /**
   * How long the sandbox of a keyed tool call is kept after its last use, in
   * milliseconds; `null` keeps it for ever. Default seven days. Nobody else ever
   * ends such a sandbox.
   */
  readonly toolSessionMaxAgeMs?: number | null | undefined;
}

/** Options of `environment.open()`. They count when the sandbox is made, and not for one that exists. */
export interface BwrapSandboxOpenOptions extends BwrapSandboxUseOptions {}

/** The provider, for eve from 0.64. */
export interface BwrapSandboxProvider {
  readonly name: string;
  /**
   * Makes the environment for a sandbox file to export and to open.
   *
   * Errors: `ERR_INVALID_ARGUMENT` and `ERR_UNSUPPORTED` for the options.
   */
  environment(
    options?: BwrapSandboxEnvironmentOptions,
  ): SandboxEnvironment<BwrapSandboxOpenOptions, BwrapSandboxSession>;
}

/** Makes the provider for the generation of eve whose `eve/sandbox/provider` is given. */
export function defineBwrapSandbox(eve: ProviderModule, connect: () => Environment): BwrapSandboxProvider {
  return eve.defineSandboxProvider({
    name: BWRAP_BACKEND_NAME,
    stateProtocolVersion,
    environment: isConnectionBased(eve)
      ? (options) => connectionProvider(connect, eve, options)
      : (options) => handleProvider(connect, options),
  }) as BwrapSandboxProvider;
}

// By what it exports, never by a version number. `in` survives bundlers, which
// a named import of what is not there does not.
function isConnectionBased(eve: ProviderModule): eve is ProviderModule & ConnectionErrors {
  return "SandboxSessionGoneError" in eve;
}
