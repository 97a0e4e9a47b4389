import { dirname } from "node:path";

import type { Handle, HandleProvider } from "../../lib/eve/provider/eve.ts";
import { defineBwrapSandbox } from "../../lib/eve/provider/provider.ts";
import { artifactOf, templateKey } from "../../lib/eve/provider/records.ts";
import { parseEnvironmentOptions } from "../../lib/options.ts";
import { connect } from "../../lib/native.ts";
import type { SandboxOperations } from "../../lib/session.ts";
import type { AdapterOptions, Factory, Opened, TemplateInput } from "./adapter.ts";

/** What `eve/sandbox/provider` is in 0.64 to 0.80, without the wrapping. */
const eve = { defineSandboxProvider: (definition: object) => definition };
const provider = defineBwrapSandbox(eve, connect) as unknown as {
  environment(options: object): HandleProvider<SandboxOperations>;
};

/** What eve 0.64 to 0.80 ask of an environment, with the contexts they give. */
export function handles(options: AdapterOptions) {
  const appRoot = dirname(options.cacheDir);
  const host = { resolveProjectPath: () => appRoot };
  const storagePath = `${appRoot}/storage`;
  const context = (id: string) => ({ host, storagePath, session: { id } });
  return {
    storagePath,
    context,
    implementation: (more: object = {}) => provider.environment({ ...options, ...more }),
    prepareContext: (sourceRevision: string, files: TemplateInput["seeds"] = []) => ({
      host,
      storagePath,
      sourceRevision,
      resources: {
        source: { kind: "inline", key: "resources" },
        workspace: {
          key: "resources:workspace",
          mountPath: "/eve/resources/workspace",
          targetPath: "/workspace",
          files: files
            .filter(({ path }) => !path.startsWith("$HOME/"))
            .map(({ path, content }) => ({ content, relativePath: path.replace(/^\/workspace\//, "") })),
        },
        skills: {
          key: "resources:skills",
          mountPath: "/eve/resources/skills",
          targetPath: "$HOME/.agents/skills",
          files: files
            .filter(({ path }) => path.startsWith("$HOME/"))
            .map(({ path, content }) => ({ content, relativePath: path.replace("$HOME/.agents/skills/", "") })),
        },
      },
    }),
  };
}

/** One text for all templates: it is part of their keys, and the suite names them itself. */
const preparing = (bootstrap: TemplateInput["bootstrap"]) => async (session: SandboxOperations) => {
  await bootstrap?.(session);
};

function artifact(options: AdapterOptions, key: string) {
  const { resources } = handles(options).prepareContext(key);
  const prepare = preparing(undefined);
  return artifactOf(
    templateKey(parseEnvironmentOptions(options), { resources, sourceRevision: key, prepare }),
    parseEnvironmentOptions(options),
  );
}

function opened({ sandbox, ...handle }: Handle<SandboxOperations>): Opened {
  return {
    session: sandbox,
    async use({ networkPolicy } = {}) {
      if (networkPolicy !== undefined) await sandbox.setNetworkPolicy(networkPolicy);
      return sandbox;
    },
    stop: handle.onSandboxStop,
    shutdown: handle.onRuntimeShutdown,
    delete: handle.onSandboxDelete,
  };
}

/** The provider of eve 0.64 to 0.80. */
const factory: Factory = {
  module: import.meta.url,
  tagsOf: ({ key }) => ({ sessionId: key }),
  missing: (key) => ({
    providerName: "bwrap",
    templateKey: artifact({ cacheDir: "/" }, key).template!,
  }),
  make(options) {
    const { context, implementation, prepareContext } = handles(options);
    return {
      async prewarm({ key, seeds, bootstrap }) {
        const told: string[] = [];
        const made = await implementation({ prepare: preparing(bootstrap) }).prepare({
          ...prepareContext(key, seeds),
          log: (line) => told.push(line),
        });
        const { template } = artifact(options, key);
        if (made.template !== template) throw new Error(`the template is ${made.template}, not ${template}`);
        return { reused: told.some((line) => line.startsWith("reusing template")) };
      },
      async open({ key, templateKey }) {
        const from =
          templateKey === undefined ? artifactOf(null, parseEnvironmentOptions()) : artifact(options, templateKey);
        const { handle } = await implementation().start(context(key), undefined, from);
        return opened(handle);
      },
    };
  },
};

export default factory;
