// Opens sessions as an eve server does, on the word of the process that started
// it: opener.mjs backend|provider CACHEDIR, from an installed project.

import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [generation, cacheDir] = process.argv.slice(2);
const host = { resolveProjectPath: (path) => join(process.cwd(), path) };
const place = { host, storagePath: join(process.cwd(), ".eve/sandbox-cache") };

/** One shape for both generations: prepare() a template, open() a session, close() what open() gave. */
const generations = {
  async backend() {
    const { bwrap } = await import("@evelandhq/sandbox-bwrap");
    const backend = bwrap({ cacheDir });
    const runtimeContext = { appRoot: process.cwd() };
    return {
      async prepare(files) {
        const seedFiles = files.map(({ path, content }) => ({ path: `/workspace/${path}`, content }));
        await backend.prewarm({ templateKey: "race", seedFiles, runtimeContext });
        return "race";
      },
      async open(id, templateKey) {
        const handle = await backend.create({ templateKey, sessionKey: id, runtimeContext });
        return { session: handle.session, close: () => handle.shutdown() };
      },
    };
  },
  async provider() {
    const { BwrapSandbox } = await import("@evelandhq/sandbox-bwrap/provider");
    // eve's own way from an environment to its provider; it is not exported.
    const internal = pathToFileURL(join(process.cwd(), "node_modules/eve/dist/src/shared/sandbox-environment.js"));
    const { getSandboxEnvironmentRuntime } = await import(internal);
    const { implementation } = getSandboxEnvironmentRuntime(BwrapSandbox.environment({ cacheDir }));
    return {
      async prepare(files) {
        const workspace = {
          key: "race",
          mountPath: "/eve/resources/workspace",
          targetPath: "/workspace",
          files: files.map(({ path, content }) => ({ relativePath: path, content })),
        };
        const resources = { source: { kind: "inline", key: "race" }, workspace };
        return await implementation.prepare({ ...place, sourceRevision: "race", resources });
      },
      async open(id, artifact) {
        const { handle } = await implementation.start({ ...place, session: { id } }, undefined, artifact);
        return { session: handle.sandbox, close: () => handle.onRuntimeShutdown() };
      },
    };
  },
};

const { prepare, open } = await generations[generation]();
let opened;
const requests = {
  prepare: ({ files }) => prepare(files),
  /** Opens, writes one file of this process, and says what of the template is there. */
  async open({ id, artifact, own }) {
    opened = await open(id, artifact);
    await opened.session.writeTextFile({ path: own, content: own });
    return await requests.run({
      command: 'find seeds -type f | wc -l; find seeds -type f | sort | xargs cat | sha256sum | cut -d" " -f1',
    });
  },
  async run({ command }) {
    const { exitCode, stdout, stderr } = await opened.session.run({ command });
    if (exitCode !== 0) throw new Error(`${command}: ${exitCode}: ${stderr}`);
    return stdout;
  },
  read: async ({ path }) => await opened.session.readTextFile({ path }),
  close: () => opened.close(),
};

process.on("message", async ({ name, ...request }) => {
  try {
    process.send({ answer: (await requests[name](request)) ?? null });
  } catch (error) {
    process.send({ error: `${name}: ${error.stack}` });
  }
});
