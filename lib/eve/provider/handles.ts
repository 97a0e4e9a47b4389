import type { Environment, OpenSession } from "../../environment.ts";
import { SandboxError } from "../../errors.ts";
import { type EnvironmentOptions, parseEnvironmentOptions, parseUseOptions } from "../../options.ts";
import { createOperations, type SandboxOperations } from "../../session.ts";
import { bootstrapSession } from "../bootstrap.ts";
import { templateNotProvisioned } from "../errors.ts";
import { BWRAP_BACKEND_NAME, closeSession, deleteSession, type Project, stopSession } from "../opening.ts";
import { buildTemplate, writeTemplateFiles } from "../template.ts";
import type { Artifact, Handle, HandleContext, HandlePrepareContext, HandleProvider, ResourceTree } from "./eve.ts";
import { artifactOf, nameOf, sessionName, stateOf, templateKey } from "./records.ts";
import { createSessions, type Failures } from "./sessions.ts";

type Prepare = (sandbox: SandboxOperations) => void | Promise<void>;

const failures: Failures = {
  // A class for it comes with the next generation.
  gone: (message, cause) => new SandboxError("ERR_SESSION_GONE", message, { op: "resume", cause }),
  templateMissing: (templateKey, cause) =>
    templateNotProvisioned({
      kind: "provider",
      name: BWRAP_BACKEND_NAME,
      templateKey,
      remedy: "run `eve build`, which builds it, where the server finds its .eve directory",
      cause,
    }),
};

/** Makes the provider of eve 0.64 to 0.80, whose sessions are handles. */
export function handleProvider(connect: () => Environment, input: unknown): HandleProvider<SandboxOperations> {
  const options = parseEnvironmentOptions<Prepare>(input);
  const sessions = createSessions(connect, options, failures);
  const handle = (open: OpenSession) => sessionHandle(connect(), open, options);
  return {
    async prepare(context) {
      return await prepare(connect, options, context);
    },
    async start(context, open, artifact) {
      const networkPolicy = parseUseOptions(open ?? undefined, "open");
      const { id } = context.session;
      const opened = await sessions.upsert(project(context), { sessionId: id, artifact, networkPolicy });
      return { handle: handle(opened), state: stateOf(sessionName(id)) };
    },
    async resume(context, _artifact, state) {
      return handle(await sessions.attach(project(context), nameOf(state)));
    },
    async onSessionEnd(context, _artifact, state) {
      await sessions.remove(project(context), nameOf(state));
    },
  };
}

function project({ host, storagePath }: Pick<HandleContext, "host" | "storagePath">): Project {
  return { appRoot: host.resolveProjectPath("."), storagePath };
}

async function prepare(
  connect: () => Environment,
  options: EnvironmentOptions<Prepare>,
  context: HandlePrepareContext,
): Promise<Artifact> {
  const { log, resources, sourceRevision } = context;
  const files = [resources.workspace, resources.skills].flatMap(targetFiles);
  if (files.length === 0 && options.prepare === undefined) return artifactOf(null, options);

  const key = templateKey(options, { resources, sourceRevision, prepare: options.prepare });
  const { reused } = await buildTemplate(connect(), options, {
    project: project(context),
    templateKey: key,
    async build(staging) {
      const session = createOperations(connect(), staging, options);
      if (files.length > 0) log?.(`writing ${files.length} workspace and skill files`);
      await writeTemplateFiles(session, options, files);
      await options.prepare?.(bootstrapSession(session, { name: "prepare", log }));
    },
  });
  if (reused) log?.(`reusing template ${JSON.stringify(key)}`);
  return artifactOf(key, options);
}

function targetFiles(tree: ResourceTree | undefined) {
  if (tree === undefined) return [];
  return tree.files.map(({ content, relativePath }) => ({ content, path: `${tree.targetPath}/${relativePath}` }));
}

function sessionHandle(
  environment: Environment,
  open: OpenSession,
  options: EnvironmentOptions<Prepare>,
): Handle<SandboxOperations> {
  const stop = () => stopSession(environment, open);
  const remove = ({ abortSignal }: { readonly abortSignal?: AbortSignal | undefined } = {}) =>
    deleteSession(environment, open, abortSignal);
  return {
    sandbox: createOperations(environment, open, options),
    onRuntimeShutdown: () => closeSession(environment, open),
    onSessionStop: stop,
    onSessionDelete: remove,
    onSandboxStop: stop,
    onSandboxDelete: remove,
  };
}
