/**
 * The sandbox provider for eve from 0.64. It imports eve, which the package's
 * root entry never does.
 *
 * @packageDocumentation
 */
// A namespace: a name that this eve does not export would be an error of its own.
import * as eve from "eve/sandbox/provider";

import { connect } from "../../native.ts";
import { type BwrapSandboxProvider, defineBwrapSandbox } from "./provider.ts";

/**
 * The provider. `export const environment = BwrapSandbox.environment({…})` in a
 * sandbox file, whose default export opens it in `defineSandbox()`.
 */
export const BwrapSandbox: BwrapSandboxProvider = defineBwrapSandbox(eve, connect);

export { DEFAULT_TOOL_SESSION_MAX_AGE_MS } from "../../options.ts";
export type {
  BwrapSandboxEnvironmentOptions,
  BwrapSandboxOpenOptions,
  BwrapSandboxProvider,
  BwrapSandboxSession,
} from "./provider.ts";
