import type { Environment, OpenSession } from "../../environment.ts";
import type { BwrapNetworkPolicy, Options } from "../../options.ts";
import { deleteSession, isCode, opening, type Project } from "../opening.ts";
import { sessionName, templateOf } from "./records.ts";

/** The errors of one generation of eve. */
export interface Failures {
  /** The session is not there any more. */
  gone(message: string, cause: unknown): Error;
  /** The template is not there. */
  templateMissing(templateKey: string, cause: unknown): Error;
}

/** The sessions of one environment of the author's, whichever generation eve is of. */
export interface Sessions {
  /**
   * Opens the sandbox of a session of eve's, and makes it if there is none.
   * What it is made of and its network count only then.
   */
  upsert(project: Project, wanted: Wanted): Promise<OpenSession>;
  /** Opens a sandbox if it is there: starts no process and makes nothing. */
  attach(project: Project, name: string): Promise<OpenSession>;
  /** Ends a sandbox and removes its files, wherever they were used. Nothing there is success. */
  remove(project: Project, name: string, signal?: AbortSignal): Promise<void>;
}

/** Which sandbox is wanted, and how it is made. */
export interface Wanted {
  readonly sessionId: string;
  readonly artifact: unknown;
  readonly networkPolicy: BwrapNetworkPolicy | undefined;
  /** Kept with the session, beside its id. */
  readonly tags?: Readonly<Record<string, string>>;
}

/** Makes them; `connect` is not called before the first use. */
export function createSessions(connect: () => Environment, options: Options, failures: Failures): Sessions {
  async function upsert(project: Project, wanted: Wanted): Promise<OpenSession> {
    const { networkPolicy } = wanted;
    const { template, revision } = templateOf(wanted.artifact);
    const environment = connect();
    const { templateRevision: _, ...shared } = opening(options, project);
    const { ok } = await environment
      .call("create", {
        ...shared,
        sessionKey: sessionName(wanted.sessionId),
        templateKey: template,
        ...(revision !== undefined && { templateRevision: revision }),
        // With the same request: whoever opens the sandbox at this moment, and
        // whoever finds it after this process died, gets no other network.
        ...(networkPolicy !== undefined && { initialNetworkPolicy: networkPolicy }),
        tags: { sessionId: wanted.sessionId, ...wanted.tags },
      })
      .catch((error: unknown) => {
        if (template === null || !isCode(error, "ERR_TEMPLATE_NOT_FOUND")) throw error;
        throw failures.templateMissing(template, error);
      });
    return environment.adopt(ok.session, options.onEvent);
  }

  /** Calls `gone` where there is no such session. */
  async function find<Gone>(
    project: Project,
    name: string,
    gone: (error: unknown) => Gone,
  ): Promise<OpenSession | Gone> {
    const environment = connect();
    const request = { ...opening(options, project), sessionKey: name, templateKey: null, existingOnly: true };
    try {
      const { ok } = await environment.call("create", request);
      return environment.adopt(ok.session, options.onEvent);
    } catch (error) {
      if (isCode(error, "ERR_SESSION_GONE")) return gone(error);
      throw error;
    }
  }

  async function attach(project: Project, name: string): Promise<OpenSession> {
    return await find(project, name, (error) => {
      throw failures.gone(`the sandbox ${JSON.stringify(name)} is gone`, error);
    });
  }

  async function remove(project: Project, name: string, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    const open = await find(project, name, () => null);
    if (open !== null) await deleteSession(connect(), open, signal);
  }

  return { upsert, attach, remove };
}
