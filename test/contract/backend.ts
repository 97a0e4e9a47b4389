import { dirname } from "node:path";

import { bwrap } from "../../lib/index.ts";
import type { Factory } from "./adapter.ts";

/** The backend object of eve 0.27 to 0.63. */
const backend: Factory = {
  module: import.meta.url,
  tagsOf: ({ tags }) => tags ?? {},
  missing: (templateKey) => ({ backendName: "bwrap", templateKey }),
  make(options) {
    const made = bwrap(options);
    const runtimeContext = { appRoot: dirname(options.cacheDir) };
    return {
      prewarm: ({ key, seeds = [], bootstrap }) =>
        made.prewarm({
          templateKey: key,
          seedFiles: seeds,
          runtimeContext,
          ...(bootstrap && { bootstrap: async ({ use }) => await bootstrap(await use()) }),
        }),
      async open({ key, templateKey, tags }) {
        const handle = await made.create({
          sessionKey: key,
          templateKey: templateKey ?? null,
          runtimeContext,
          ...(tags && { tags }),
        });
        return {
          session: handle.session,
          use: (use) => handle.useSessionFn(use),
          stop: () => handle.stop(),
          shutdown: () => handle.shutdown(),
          delete: () => handle.delete(),
        };
      },
    };
  },
};

export default backend;
