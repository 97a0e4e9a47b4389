import { defineTool } from "eve/tools";
import { z } from "zod";

export default defineTool({
  description: "Deletes the sandbox and its files.",
  inputSchema: z.object({}),
  async execute(_input, ctx) {
    const sandbox = await ctx.getSandbox();
    // Authored delete() came with eve 0.47.
    if (!("delete" in sandbox)) return { deleted: false };
    await sandbox.delete();
    return { deleted: true };
  },
});
