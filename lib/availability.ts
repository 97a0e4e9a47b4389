import type { Native } from "./environment.ts";
import { decodeError, SandboxError } from "./errors.ts";
import type { WireError } from "./requests.ts";

/** One thing that stands between this host and a sandbox. */
export interface BwrapFinding {
  /** What was looked at, as a short stable name. */
  readonly check: string;
  /** `"error"` means that no sandbox can be built. */
  readonly severity: "error" | "warning" | "info";
  /** What was found. */
  readonly message: string;
  /** What the person who runs the host can do. */
  readonly remedy?: string;
  /** The evidence, such as what bwrap wrote. */
  readonly detail?: string;
}

/** Whether this host can build a sandbox, and what was found. */
export interface BwrapAvailability {
  readonly available: boolean;
  /** Why not, and what else is worth knowing. */
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
  const message = error instanceof Error ? error.message : String(error);
  const { remedy, detail } = error instanceof SandboxError ? error : {};
  return {
    check: "native",
    severity: "error",
    message,
    ...(remedy !== undefined && { remedy }),
    ...(detail !== undefined && { detail }),
  };
}
