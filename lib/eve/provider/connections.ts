import type { Environment, OpenSession } from "../../environment.ts";
import {
  type BwrapNetworkPolicy,
  type EnvironmentOptions,
  parseEnvironmentOptions,
  parseUseOptions,
} from "../../options.ts";
import type { SandboxProcess, WritableSandboxProcess } from "../../process.ts";
import { createOperations, type SandboxOperations } from "../../session.ts";
import { BWRAP_BACKEND_NAME, opening, type Project, stopSession } from "../opening.ts";
import { buildTemplate } from "../template.ts";
import type {
  Artifact,
  Connection,
  ConnectionContext,
  ConnectionFile,
  ConnectionPrepareContext,
  ConnectionProvider,
  ProviderModule,
} from "./eve.ts";
import { artifactOf, nameOf, sessionName, stateOf, templateIdentity } from "./records.ts";
import { createSessions, type Failures } from "./sessions.ts";

/** What this generation's module exports and the one before it does not. */
export type ConnectionErrors = Required<
  Pick<ProviderModule, "SandboxSessionGoneError" | "SandboxTemplateNotProvisionedError">
>;

type Options = EnvironmentOptions<never>;

/** A link to one sandbox, with what eve merges into the session. */
export type BwrapConnection = Connection<
  SandboxProcess | WritableSandboxProcess,
  { setNetworkPolicy(policy: BwrapNetworkPolicy): Promise<void> }
>;

/** The sandboxes that nobody ends, which therefore have an age. */
const toolSession = { name: "kind", value: "tool-session" };

/** Makes the provider of eve from 0.81, which makes its sessions from connections. */
export function connectionProvider(
  connect: () => Environment,
  errors: ConnectionErrors,
  input: unknown,
): ConnectionProvider {
  // Never with `prepare`: eve keeps it to itself and runs it in `populate`.
  const options: Options = parseEnvironmentOptions<never>(input);
  const sessions = createSessions(connect, options, failuresOf(errors));
  const links = new WeakMap<OpenSession, number>();
  return {
    toolSessions: true,
    async prepare(context) {
      return await prepare(connect, options, context);
    },
    async start(context, open, artifact) {
      const networkPolicy = parseUseOptions(open ?? undefined, "open");
      const { id } = context.session;
      const ofTool = context.kind === toolSession.value;
      // Before the sandbox is opened: one that is too old begins anew, also when it is this one.
      if (ofTool) await pruneToolSessions(connect(), options, project(context));
      const opened = await sessions.upsert(project(context), {
        sessionId: id,
        artifact,
        networkPolicy,
        ...(ofTool && { tags: { [toolSession.name]: toolSession.value } }),
      });
      const close = ofTool ? lastLink(links, connect(), opened) : undefined;
      return { connection: createConnection(connect(), opened, options, close), state: stateOf(sessionName(id)) };
    },
    async resume(context, _artifact, state) {
      const opened = await sessions.attach(project(context), nameOf(state));
      return createConnection(connect(), opened, options);
    },
    async onSessionEnd(context, state, { abortSignal }) {
      // Nothing is on record where a step failed before it was written down.
      const name = state === null ? sessionName(context.session.id) : nameOf(state);
      await sessions.remove(project(context), name, abortSignal);
    },
  };
}

// eve's classes, told apart by eve; `code` is for those who know ours.
function failuresOf({ SandboxSessionGoneError, SandboxTemplateNotProvisionedError }: ConnectionErrors): Failures {
  return {
    gone: (message, cause) => Object.assign(new SandboxSessionGoneError(message), { code: "ERR_SESSION_GONE", cause }),
    templateMissing(templateKey, cause) {
      const reason = "It is not in this server's cacheDir.";
      const error = new SandboxTemplateNotProvisionedError({ providerName: BWRAP_BACKEND_NAME, reason, templateKey });
      return Object.assign(error, { code: "ERR_TEMPLATE_NOT_FOUND", cause });
    },
  };
}

function project(context: Pick<ConnectionContext, "resolveProjectPath">): Project {
  return { appRoot: context.resolveProjectPath(".") };
}

async function prepare(
  connect: () => Environment,
  options: Options,
  context: ConnectionPrepareContext,
): Promise<Artifact> {
  if (context.isEmpty) return artifactOf(null, options);
  const key = context.templateKey(templateIdentity(options));
  await buildTemplate(connect(), options, {
    project: project(context),
    templateKey: key,
    // Without a mounted directory of resources: eve writes the files instead.
    build: async (staging) => await context.populate(createConnection(connect(), staging, options)),
  });
  return artifactOf(key, options);
}

async function pruneToolSessions(environment: Environment, options: Options, where: Project): Promise<void> {
  const { toolSessionMaxAgeMs: maxAgeMs } = options;
  if (maxAgeMs === null) return;
  const { cacheDir } = opening(options, where).sandbox;
  // The call is not about them: what could not be removed now is tried again at the next one.
  await environment.call("cachePrune", { cacheDir, tag: toolSession, maxAgeMs }).catch(() => {});
}

/** Makes a link to an open sandbox; others may lead to the same one. */
function createConnection(
  environment: Environment,
  open: OpenSession,
  options: Options,
  close: () => Promise<void> = async () => {},
): BwrapConnection {
  const session = createOperations(environment, open, options);
  return {
    spawn: (call) => session.spawn(call),
    readFile: (call) => session.readFile(call),
    async writeFiles({ files, abortSignal }) {
      // In their order: of two with one path the last one stays.
      for (const file of files) await writeOne(session, file, abortSignal);
    },
    removePath: (call) => session.removePath(call),
    stop: () => stopSession(environment, open),
    close,
    extensions: { setNetworkPolicy: session.setNetworkPolicy },
  };
}

/**
 * Returns what lets go of a keyed call's sandbox. eve stops such a sandbox never,
 * and while it lives it cannot be removed: with this process's last link to it
 * its commands end. Its files stay.
 */
function lastLink(links: WeakMap<OpenSession, number>, environment: Environment, open: OpenSession) {
  let held = true;
  links.set(open, (links.get(open) ?? 0) + 1);
  return async () => {
    if (!held) return;
    held = false;
    const left = (links.get(open) ?? 0) - 1;
    links.set(open, left);
    if (left === 0) await stopSession(environment, open);
  };
}

async function writeOne(
  session: SandboxOperations,
  { path, content }: ConnectionFile,
  abortSignal: AbortSignal | undefined,
): Promise<void> {
  if (typeof content === "string") await session.writeTextFile({ path, content, abortSignal });
  else if (content instanceof Uint8Array) await session.writeBinaryFile({ path, content, abortSignal });
  else await session.writeFile({ path, content, abortSignal });
}
