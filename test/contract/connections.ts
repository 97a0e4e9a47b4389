import { dirname } from "node:path";

import type { Json } from "../../lib/eve/provider/eve.ts";
import { defineBwrapSandbox } from "../../lib/eve/provider/provider.ts";
import { artifactOf, templateIdentity } from "../../lib/eve/provider/records.ts";
import { connect } from "../../lib/native.ts";
import { parseOptions } from "../../lib/options.ts";
import type { SandboxOperations } from "../../lib/session.ts";
import type { AdapterOptions, Factory, TemplateInput } from "./adapter.ts";
import { terminal } from "./cases/terminal.ts";
import * as eve from "./harness.ts";

/** The provider as eve from 0.81 gets it. */
export const provider = defineBwrapSandbox(eve, connect) as unknown as ReturnType<typeof eve.defineSandboxProvider>;

/** eve's session has all that the suite asks of one: a type that says so, over eve's narrower ones. */
const asOperations = (session: eve.Session) => session as unknown as SandboxOperations;

/** What the suite wants in a template, as an agent. Its keys are the suite's, whatever is in the template. */
function agent(options: AdapterOptions, key: string): eve.Agent {
  return { appRoot: dirname(options.cacheDir), source: key };
}

function environment(options: AdapterOptions, { seeds = [], bootstrap }: Partial<TemplateInput> = {}): eve.Environment {
  return provider.environment({
    ...options,
    async prepare(session: eve.Session) {
      for (const { path, content } of seeds) {
        const to = path.replace("$HOME/", options.home === "separate" ? "/home/sandbox/" : "/workspace/");
        if (typeof content === "string") await session.writeTextFile({ path: to, content });
        else await session.writeBinaryFile({ path: to, content });
      }
      await bootstrap?.(asOperations(session));
    },
  });
}

/** Builds a template and tells whether the author's callback ran. */
async function build(options: AdapterOptions, { key, ...input }: TemplateInput) {
  let ran = false;
  const { seeds, bootstrap } = input;
  const made = environment(options, {
    ...(seeds && { seeds }),
    bootstrap: async (session) => {
      ran = true;
      await bootstrap?.(session);
    },
  });
  const artifact = await eve.build(made, agent(options, key));
  return { artifact, reused: !ran };
}

/** What `build` gives for the key, without building. */
async function artifactFor(options: AdapterOptions, key: string): Promise<string> {
  const made = environment(options);
  const implementation = {
    ...made.implementation,
    prepare: async ({ templateKey: keyOf }: { templateKey: (identity: Readonly<Record<string, Json>>) => string }) =>
      artifactOf(keyOf(templateIdentity(parseOptions(options))), parseOptions(options)),
  };
  return await eve.build({ ...made, implementation }, agent(options, key));
}

/** The provider of eve from 0.81. */
const factory: Factory = {
  module: import.meta.url,
  tagsOf: ({ key }) => ({ sessionId: key }),
  async missing(key) {
    const { template } = JSON.parse(await artifactFor({ cacheDir: "/" }, key)) as { readonly template: string };
    return { providerName: "bwrap", templateKey: template };
  },
  except: {
    "a timeout ends the whole tree and hands over what was captured": "eve's run() is a spawn(), which has no limit",
    "waiting for a turn counts in the time limit": "eve's run() is a spawn(), which has no limit",
    "the output limit ends the whole tree and keeps head and tail": "eve's run() is a spawn(), which has no limit",
    "the output limit cuts no character in two": "eve's run() is a spawn(), which has no limit",
    "aborted meanwhile: what was captured is found by the reason":
      "eve's run() is a spawn(), whose output eve has read",
    "a byte order mark is part of the output": "eve's run() decodes the streams itself",
    "reasons come from what happened, not from what a message says": "eve's run() is a spawn(), which has no limit",
    "the end of a run tells how much it has written":
      "eve's run() is a spawn(), whose end may be told before its output is read",
    "shutdown() ends session object and processes, twice is once, and files are found again":
      "eve lets go of a session by stopping it",
    ...Object.fromEntries(Object.keys(terminal).map((name) => [name, "eve's spawn() hands on no pty"])),
  },
  make(options) {
    const records: eve.Records = new Map();
    return {
      async prewarm(input) {
        const { artifact, reused } = await build(options, input);
        const expected = await artifactFor(options, input.key);
        if (artifact !== expected) throw new Error(`the artifact is ${artifact}, not ${expected}`);
        return { reused };
      },
      async open({ key, templateKey }) {
        const appRoot = dirname(options.cacheDir);
        const artifact =
          templateKey === undefined
            ? JSON.stringify(artifactOf(null, parseOptions()))
            : await artifactFor(options, templateKey);
        const server = eve.serve({ environment: provider.environment({ ...options }), artifact, appRoot, records });
        const session = await server.access(key);
        return {
          session: asOperations(session),
          async use({ networkPolicy } = {}) {
            if (networkPolicy !== undefined) await session.setNetworkPolicy(networkPolicy);
            return asOperations(session);
          },
          stop: session.stop,
          async shutdown() {
            await server.shutdown();
            // A session that was used after its stop() is none that eve still knows.
            await session.stop();
          },
          delete: session.delete,
        };
      },
    };
  },
};

export default factory;
