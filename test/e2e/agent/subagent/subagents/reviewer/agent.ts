import { defineAgent } from "eve";
import { scriptedModel } from "../../lib/model";

export default defineAgent({
  description: "Looks at the work of another agent.",
  model: scriptedModel,
  modelContextWindowTokens: 200_000,
});
