import { defineTool } from "eve/tools";
import { z } from "zod";

export default defineTool({
  description: "Stops the sandbox's processes. Files stay.",
  inputSchema: z.object({}),
  async execute(_input, ctx) {
    const sandbox = await ctx.getSandbox();
    // Authored stop() came with eve 0.32.
    if (!("stop" in sandbox)) return { stopped: false };
    await sandbox.stop();
    return { stopped: true };
  },
});
