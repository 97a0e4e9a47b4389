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
  const connection = (open: OpenSession) => createConnection(connect(), open, options);
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
      return { connection: connection(opened), state: stateOf(sessionName(id)) };
    },
    async resume(context, _artifact, state) {
      return connection(await sessions.attach(project(context), nameOf(state)));
    },
    async onSessionEnd(context, state, { abortSignal }) {
      // Nothing is on record where a step failed before it was written down.
      const name = state === null ? sessionName(context.session.id) : nameOf(state);
      await sessions.remove(project(context), name, abortSignal);
    },
  };
}

function failuresOf({ SandboxSessionGoneError, SandboxTemplateNotProvisionedError }: ConnectionErrors): Failures {
  return {
    gone: (message, cause) => Object.assign(new SandboxSessionGoneError(message), { cause }),
    templateMissing: (templateKey, cause) => {
      const reason = "It is not in this server's cacheDir.";
      return Object.assign(
        new SandboxTemplateNotProvisionedError({ providerName: BWRAP_BACKEND_NAME, reason, templateKey }),
        { cause },
      );
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
export function createConnection(environment: Environment, open: OpenSession, options: Options): BwrapConnection {
  let closed = false;
  const session = createOperations(environment, open, options, () => closed || open.closed);
  return {
    spawn: (call) => session.spawn(call),
    readFile: (call) => session.readFile(call),
    async writeFiles({ files, abortSignal }) {
      // In their order: of two with one path the last one stays.
      for (const file of files) await writeOne(session, file, abortSignal);
    },
    removePath: (call) => session.removePath(call),
    stop: () => stopSession(environment, open),
    async close() {
      // Nothing is held for one link: the sandbox belongs to all that lead to it.
      closed = true;
    },
    extensions: { setNetworkPolicy: session.setNetworkPolicy },
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
