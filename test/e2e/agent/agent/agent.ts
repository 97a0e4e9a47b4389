import { defineAgent } from "eve";
import { mockModel } from "eve/evals";

interface ScriptedCall {
  readonly name: string;
  readonly input: unknown;
}

/** The calls a message carries: a JSON list after its first line. */
function scriptedCalls(message: string): readonly ScriptedCall[] {
  const newline = message.indexOf("\n");
  return newline < 0 ? [] : (JSON.parse(message.slice(newline + 1)) as ScriptedCall[]);
}

// A model without a provider: it makes the calls the user's message lists, one
// per model call. Ids carry the message's number, because tool results of
// earlier messages stay in the prompt.
const model = mockModel(({ lastUserMessage, toolResults, userMessageCount }) => {
  const calls = scriptedCalls(lastUserMessage ?? "");
  const prefix = `m${userMessageCount}-`;
  const done = toolResults.filter((result) => result.id.startsWith(prefix)).length;
  const next = calls[done];
  return next === undefined ? "Done." : { toolCalls: [{ ...next, id: `${prefix}${done}` }] };
});

// eve before 0.77 cannot look up the context window of a mock model.
export default defineAgent({ model, modelContextWindowTokens: 200_000 });
