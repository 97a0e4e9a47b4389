// Opens a session, runs a command and prints what it writes to stdout: for tests
// about several processes.

import type { Factory, AdapterOptions, SessionInput } from "../adapter.ts";

const { factory, options, input, command, stream } = JSON.parse(process.argv[2]!) as {
  readonly factory: string;
  readonly options: AdapterOptions;
  readonly input: SessionInput;
  readonly command: string;
  /** Prints as the command writes, for a process that is going to be killed. */
  readonly stream?: boolean;
};
const { default: make } = (await import(factory)) as { readonly default: Factory };
const { session, shutdown } = await make.make(options).open(input);
if (stream) {
  const { stdout } = await session.spawn({ command });
  for await (const chunk of stdout) process.stdout.write(chunk);
} else {
  const { stdout, stderr } = await session.run({ command });
  process.stdout.write(stdout);
  process.stderr.write(stderr);
}
await shutdown();
