// Starts a session of the handle-based provider and stays, to be killed: for
// tests about several processes.

import type { AdapterOptions } from "../adapter.ts";
import type { handles as Handles } from "../handles.ts";

const { factory, options, id, open, artifact } = JSON.parse(process.argv[2]!) as {
  readonly factory: string;
  readonly options: AdapterOptions;
  readonly id: string;
  readonly open: object;
  readonly artifact: unknown;
};
const { handles } = (await import(factory)) as { readonly handles: typeof Handles };
const { implementation, context } = handles(options);
await implementation().start(context(id), open, artifact);
process.stdout.write("started\n");
setInterval(() => {}, 60_000);
