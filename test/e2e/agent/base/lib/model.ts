import { mockModel } from "eve/evals";

interface ScriptedCall {
  readonly name: string;
  readonly input: unknown;
}

const prefix = "calls: ";

/** The calls a message carries: a JSON list on a line of its own. */
function scriptedCalls(message: string): readonly ScriptedCall[] {
  const line = message.split("\n").find((candidate) => candidate.startsWith(prefix));
  return line === undefined ? [] : (JSON.parse(line.slice(prefix.length)) as ScriptedCall[]);
}

/**
 * A model without a provider: it makes the calls the user's message lists, one
 * per model call, and then says whether eve told it of a file that was lost.
 * Ids carry the message's number, because tool results of earlier messages stay
 * in the prompt.
 */
export const scriptedModel = mockModel(({ lastUserMessage, messages, toolResults, userMessageCount }) => {
  const calls = scriptedCalls(lastUserMessage ?? "");
  const ids = `m${userMessageCount}-`;
  const done = toolResults.filter((result) => result.id.startsWith(ids)).length;
  const next = calls[done];
  if (next !== undefined) return { toolCalls: [{ ...next, id: `${ids}${done}` }] };
  return messages.some(({ text }) => text.includes("FileNotFound")) ? "Done, but a file is lost." : "Done.";
});
