import type { Environment, OpenSession } from "../environment.ts";
import type { Options } from "../options.ts";
import type { SandboxOperations } from "../session.ts";
import { opening, type Project } from "./opening.ts";

/** Which template to build, where, and how. */
export interface TemplatePlan {
  readonly project: Project;
  readonly templateKey: string;
  /** Fills the workspace that becomes the template. */
  readonly build: (staging: OpenSession) => void | Promise<void>;
}

/**
 * Builds a template unless it exists. It is published at once when `build` is
 * done, or not at all. What was made for the staging session is closed either way.
 */
export async function buildTemplate(
  environment: Environment,
  options: Options,
  { project, templateKey, build }: TemplatePlan,
): Promise<{ reused: boolean }> {
  const { ok } = await environment.call("prewarmBegin", { ...opening(options, project), templateKey });
  if (ok.reused) return { reused: true };

  const open = environment.adopt(ok.session, options.onEvent);
  try {
    await build(open);
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

/** One file of a template; `$HOME/` begins the sandbox's home. */
export interface TemplateFile {
  readonly path: string;
  readonly content: string | Uint8Array;
}

const homes = { workspace: "/workspace", separate: "/home/sandbox" } as const;

/** Writes files into a template that is being built. */
export async function writeTemplateFiles(
  session: SandboxOperations,
  { home }: Options,
  files: readonly TemplateFile[],
): Promise<void> {
  for (const { path: unexpanded, content } of files) {
    const path = unexpanded.replace(/^\$HOME(?=\/|$)/, homes[home]);
    if (typeof content === "string") await session.writeTextFile({ path, content });
    else await session.writeBinaryFile({ path, content });
  }
}
