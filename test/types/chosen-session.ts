// The session of an environment of ours, asked for by that: as the README says it,
// and from eve 0.66 on. It is compiled, and never run.
import { BwrapSandbox } from "@evelandhq/sandbox-bwrap/provider";
import type { ToolContext } from "eve/tools";

const environment = BwrapSandbox.environment();

export async function online(ctx: ToolContext): Promise<void> {
  await (await ctx.getSandbox(environment)).setNetworkPolicy("allow-all");
  // @ts-expect-error what cannot be enforced is refused
  await (await ctx.getSandbox(environment)).setNetworkPolicy({ allow: [] });
}
