import type { Native } from "./environment.ts";
import { decodeError, SandboxError } from "./errors.ts";
import type { WireError } from "./requests.ts";

/** One thing that is wrong with a host. */
export interface BwrapFinding {
  /** Names it; stable, where the texts are not. `"native-core"`: the native part could not be loaded or asked. */
  readonly code: string;
  /** What is wrong, in one line. */
  readonly title: string;
  /** `"fatal"`: no sandbox can be built. `"warning"`: it may be the reason. */
  readonly severity: "fatal" | "warning";
  /** The evidence: a setting's value, what bwrap wrote. */
  readonly detail?: string;
  /** What the owner of the host can do, often a command. */
  readonly remedy?: string;
}

/** Whether this host can build a sandbox, and what was found. */
export interface BwrapAvailability {
  readonly available: boolean;
  /** Why not; empty when it can. */
  readonly findings: readonly BwrapFinding[];
}

interface ProbeReply {
  readonly ok?: { readonly available: boolean; readonly findings: readonly BwrapFinding[] | null };
  readonly error?: WireError;
}

/** Asks the core to build a sandbox; every failure to do so is a finding, never thrown. */
export function explainAvailability(load: () => Native, bwrapPath = "bwrap"): BwrapAvailability {
  try {
    const request = { bwrapPath, path: process.env["PATH"] ?? "" };
    const { ok, error } = JSON.parse(load().probe(JSON.stringify(request))) as ProbeReply;
    if (error) throw decodeError(error);
    return { available: ok?.available === true, findings: ok?.findings ?? [] };
  } catch (error) {
    return { available: false, findings: [asFinding(error)] };
  }
}

function asFinding(error: unknown): BwrapFinding {
  const { remedy, detail } = error instanceof SandboxError ? error : {};
  return {
    code: "native-core",
    title: error instanceof Error ? error.message : String(error),
    severity: "fatal",
    ...(detail !== undefined && { detail }),
    ...(remedy !== undefined && { remedy }),
  };
}
