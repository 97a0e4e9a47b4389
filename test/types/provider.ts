// Our values where eve expects its own, for the releases that take a provider. It
// is compiled against each of them in package.json, and never run.
import { type BwrapNetworkPolicy, type SandboxProcess, SandboxError } from "@evelandhq/sandbox-bwrap";
import {
  BwrapSandbox,
  type BwrapSandboxEnvironmentOptions,
  type BwrapSandboxOpenOptions,
  type BwrapSandboxSession,
} from "@evelandhq/sandbox-bwrap/provider";
import type { Experimental_SandboxProcess } from "ai";
import {
  defineParentSandbox,
  defineSandbox,
  type RuntimeSandboxSession,
  type RuntimeSandboxSessionFor,
  type SandboxEnvironment,
  type SandboxSession,
} from "eve/sandbox";
import { defineSandboxProvider, type SandboxProviderHandle } from "eve/sandbox/provider";

import type { Handle } from "../../dist/eve/provider/eve.js";
import type { handleProvider } from "../../dist/eve/provider/handles.js";
import type { SandboxOperations } from "../../dist/session.js";

// As the documentation shows it.
export const environment = BwrapSandbox.environment({
  networkPolicy: "deny-all",
  cacheDir: "/var/cache/agent",
  async prepare(sandbox) {
    await sandbox.setNetworkPolicy("allow-all");
    await sandbox.run({ command: "npm ci" });
  },
});
export default defineSandbox(() => environment.open({ networkPolicy: "deny-all" }));

export const bare = BwrapSandbox.environment();
export const plain = defineSandbox(() => bare.open());
export const chosen = defineSandbox(async ({ session }) => {
  const sandbox = await environment.open();
  if (session.auth.current === null) await sandbox.setNetworkPolicy("deny-all");
  return sandbox;
});
export const parent = defineParentSandbox();

export const asEveEnvironment: SandboxEnvironment<BwrapSandboxOpenOptions, BwrapSandboxSession> = environment;
export const opened = async (): Promise<RuntimeSandboxSessionFor<BwrapSandboxSession>> => await environment.open();
export const asRuntimeSession = async (): Promise<RuntimeSandboxSession> => await environment.open();
export const asEveSession = (session: BwrapSandboxSession): SandboxSession => session;

// What eve's types promise of the session is what our object has.
export const operations = (session: SandboxOperations): BwrapSandboxSession => session;
export const asAiProcess = (process: SandboxProcess): Experimental_SandboxProcess => process;
export const handle = (ours: Handle<SandboxOperations>): SandboxProviderHandle<BwrapSandboxSession> => ours;

// And what eve gives a provider is what ours takes.
export const sameProvider = defineSandboxProvider<
  BwrapSandboxEnvironmentOptions | undefined,
  BwrapSandboxOpenOptions,
  Awaited<ReturnType<ReturnType<typeof handleProvider>["prepare"]>>,
  Awaited<ReturnType<ReturnType<typeof handleProvider>["start"]>>["state"],
  BwrapSandboxSession
>({
  name: BwrapSandbox.name,
  environment: () => ({}) as ReturnType<typeof handleProvider>,
});

// eve's types carry our options: another name, another value is refused.
export async function refused(): Promise<void> {
  // @ts-expect-error no such option
  BwrapSandbox.environment({ network: "deny-all" });
  // @ts-expect-error no such option
  await environment.open({ prepare: () => {} });
  // @ts-expect-error a policy that cannot be enforced
  await environment.open({ networkPolicy: { allow: ["example.com"] } });
  const policy: BwrapNetworkPolicy = "deny-all";
  await (await environment.open({ networkPolicy: policy })).setNetworkPolicy(policy);
  throw new SandboxError("ERR_UNSUPPORTED", "never run");
}
