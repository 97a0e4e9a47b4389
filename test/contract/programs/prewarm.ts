// Builds a template whose bootstrap leaves a line in a file of the host: for
// tests about several processes.

import { appendFileSync } from "node:fs";

import type { AdapterOptions, Factory } from "../adapter.ts";

const { factory, options, key, log, command } = JSON.parse(process.argv[2]!) as {
  readonly factory: string;
  readonly options: AdapterOptions;
  readonly key: string;
  readonly log: string;
  readonly command: string;
};
const { default: make } = (await import(factory)) as { readonly default: Factory };
const { reused } = await make.make(options).prewarm({
  key,
  bootstrap: async (session) => {
    appendFileSync(log, "bootstrap\n");
    await session.run({ command });
  },
});
process.stdout.write(`${reused}\n`);
