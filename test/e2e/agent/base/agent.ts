import { defineAgent } from "eve";
import { externalDependencies } from "./lib/build";
import { scriptedModel } from "./lib/model";

// eve before 0.77 cannot look up the context window of a mock model.
export default defineAgent({
  model: scriptedModel,
  modelContextWindowTokens: 200_000,
  build: { externalDependencies: [...externalDependencies] },
});
