import type { SandboxCommandOptions, SandboxSession } from "../session.ts";

/** How much of a failed command's output an error shows, in characters from its end. */
const tailLength = 4096;

/**
 * Returns the session that an author's bootstrap gets. As with eve's own
 * backends its commands are logged, and `run()` throws when a command exits
 * with 1: authors do not look at the result, and a half-made template would be
 * published. Other statuses are answers that a bootstrap may want to see.
 */
export function bootstrapSession(
  session: SandboxSession,
  log: ((message: string) => void) | undefined,
): SandboxSession {
  const tell = (verb: string, command: unknown) => log?.(`bootstrap ${verb}: ${firstLine(String(command))}`);
  return {
    ...session,
    async run(options) {
      tell("run", options.command);
      const result = await session.run(options);
      if (result.exitCode === 1) throw bootstrapFailure(options, result);
      return result;
    },
    spawn: (async (options: SandboxCommandOptions) => {
      tell("spawn", options.command);
      return await session.spawn(options);
    }) as SandboxSession["spawn"],
  };
}

function bootstrapFailure(
  { command }: SandboxCommandOptions,
  output: { readonly stdout: string; readonly stderr: string },
) {
  const shown = output.stderr.trim() === "" ? output.stdout : output.stderr;
  return new Error(`a command of bootstrap exited with 1: ${command}\n${shown.slice(-tailLength)}`.trimEnd());
}

function firstLine(command: string): string {
  const line = command.trim().split("\n", 1)[0] ?? "";
  return line.length > 200 || line.length < command.trim().length ? `${line.slice(0, 200)} …` : line;
}
