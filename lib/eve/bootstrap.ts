import type { SandboxCommandOptions, SandboxOperations } from "../session.ts";

/** How much of a failed command's output an error shows, in characters from its end. */
const tailLength = 4096;

/** Which of an author's callbacks a session is for, and where its progress goes, a line at a time. */
export interface Bootstrap {
  readonly name: "bootstrap" | "prepare";
  readonly log: ((message: string) => void) | undefined;
}

/**
 * Returns the session that an author's bootstrap gets. As with eve's own
 * backends its commands are logged, and `run()` throws when a command exits
 * with 1: authors do not look at the result, and a half-made template would be
 * published. Other statuses are answers that a bootstrap may want to see.
 */
export function bootstrapSession<Session extends SandboxOperations>(
  session: Session,
  { name, log }: Bootstrap,
): Session {
  const tell = (verb: string, command: unknown) => log?.(`${name} ${verb}: ${firstLine(String(command))}`);
  return {
    ...session,
    async run(options) {
      tell("run", options.command);
      const result = await session.run(options);
      if (result.exitCode === 1) throw commandFailure(name, options, result);
      return result;
    },
    spawn: (async (options: SandboxCommandOptions) => {
      tell("spawn", options.command);
      return await session.spawn(options);
    }) as SandboxOperations["spawn"],
  };
}

function commandFailure(
  name: string,
  { command }: SandboxCommandOptions,
  output: { readonly stdout: string; readonly stderr: string },
) {
  const shown = output.stderr.trim() === "" ? output.stdout : output.stderr;
  return new Error(`a command of ${name} exited with 1: ${command}\n${shown.slice(-tailLength)}`.trimEnd());
}

function firstLine(command: string): string {
  const line = command.trim().split("\n", 1)[0] ?? "";
  return line.length > 200 || line.length < command.trim().length ? `${line.slice(0, 200)} …` : line;
}
