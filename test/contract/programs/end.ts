// Ends a session of the handle-based provider twice, as a server does that has
// been started since: for tests about several processes.

import type { AdapterOptions } from "../adapter.ts";
import type { handles as Handles } from "../handles.ts";

const { factory, options, id, artifact } = JSON.parse(process.argv[2]!) as {
  readonly factory: string;
  readonly options: AdapterOptions;
  readonly id: string;
  readonly artifact: unknown;
};
const { handles } = (await import(factory)) as { readonly handles: typeof Handles };
const { implementation, context } = handles(options);
const state = { version: 1, name: `eve-sbx-ses-bwrap-${id}` };
for (const reason of ["expired", "completed"] as const) {
  await implementation().onSessionEnd(context(id), artifact, state, { reason });
}
process.stdout.write("ended twice\n");
