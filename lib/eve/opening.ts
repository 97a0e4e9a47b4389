import { join, resolve } from "node:path";

import type { Environment, OpenSession } from "../environment.ts";
import { SandboxError } from "../errors.ts";
import type { Options } from "../options.ts";
import type { SandboxShape } from "../requests.ts";

/** The name that eve knows us by: part of its keys and states, so it never changes. */
export const BWRAP_BACKEND_NAME = "bwrap";

/** Where the application is. */
export interface Project {
  readonly appRoot: string;
  /** Where eve keeps what sandboxes need. Default `<appRoot>/.eve/sandbox-cache`. */
  readonly storagePath?: string;
}

/** Returns what `create` and `prewarmBegin` have in common. */
export function opening(options: Options, { appRoot, storagePath }: Project) {
  const { templateRevision } = options;
  const sandbox: SandboxShape = {
    cacheDir: options.cacheDir ?? join(storagePath ?? join(appRoot, ".eve", "sandbox-cache"), "bwrap"),
    appRoot: resolve(appRoot),
    bwrapPath: options.bwrapPath,
    hidePaths: options.hidePaths,
    home: options.home,
    path: process.env["PATH"] ?? "",
    nodePath: process.execPath,
    processes: options.processes,
  };
  return {
    sandbox,
    networkPolicy: options.networkPolicy,
    ...(options.idleTimeoutMs !== null && { idleTimeoutMs: options.idleTimeoutMs }),
    ...(options.standby && { standby: true }),
    ...(options.maxLiveGenerations !== null && { maxLiveGenerations: options.maxLiveGenerations }),
    ...(templateRevision !== undefined && { templateRevision }),
    ...(options.onEvent && { events: true }),
  };
}

/** Ends all commands of a session. */
export async function stopSession(environment: Environment, open: OpenSession): Promise<void> {
  if (!open.closed) await environment.call("sessionStop", { session: open.handle });
}

/** Ends all commands of a session and every object that was made for it. */
export async function closeSession(environment: Environment, open: OpenSession): Promise<void> {
  if (open.closed) return;
  // At once, so that a second call does not meet a number that is gone; events
  // of the clean-up still find their sink.
  open.closed = true;
  try {
    await environment.call("sessionClose", { session: open.handle });
  } finally {
    environment.forget(open);
  }
}

/** Ends all commands of a session and removes its files. */
export async function deleteSession(
  environment: Environment,
  open: OpenSession,
  signal: AbortSignal | undefined,
): Promise<void> {
  if (open.closed) throw new SandboxError("ERR_CLOSED", "the session was closed", { op: "delete" });
  await environment.call("sessionDelete", { session: open.handle }, { signal });
}

/** Tells an error by its member: it may be of another copy's class. */
export function isCode(error: unknown, code: string): boolean {
  return error instanceof Error && "code" in error && error.code === code;
}
