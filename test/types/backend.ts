// Our values where eve and the AI SDK expect theirs. It is compiled against each
// eve release of package.json, and never run.
import type { Experimental_SandboxProcess, Experimental_SandboxSession } from "ai";
import {
  type BwrapSandboxHandle,
  type BwrapSandboxUseOptions,
  bwrap,
  createBwrapSandboxBackend,
  isBwrapAvailable,
  type SandboxProcess,
  type SandboxSession,
} from "@evelandhq/sandbox-bwrap";
import {
  defaultBackend,
  defineSandbox,
  type SandboxBackend,
  type SandboxBackendCreateInput,
  type SandboxBackendHandle,
  type SandboxBackendPrewarmInput,
  type SandboxSession as EveSandboxSession,
} from "eve/sandbox";

type Use = BwrapSandboxUseOptions;

export const backend: SandboxBackend<Use, Use> = bwrap({ networkPolicy: "deny-all" });
export const sameBackend: SandboxBackend<Use, Use> = createBwrapSandboxBackend({ createOptions: {} });

export async function takesWhatEvePasses(
  create: SandboxBackendCreateInput,
  prewarm: SandboxBackendPrewarmInput<Use>,
): Promise<SandboxBackendHandle<Use>> {
  const { reused }: { readonly reused: boolean } = await bwrap().prewarm(prewarm);
  void reused;
  return await bwrap().create(create);
}

// What eve 0.47 to 0.63 add to a handle is there for all.
export const handleMembers = (handle: BwrapSandboxHandle): readonly (() => Promise<void>)[] => [
  handle.stop,
  handle.shutdown,
  () => handle.delete({ abortSignal: new AbortController().signal }),
];

export const asEveSession = (session: SandboxSession): EveSandboxSession => session;

type IoMethods = Pick<
  Experimental_SandboxSession,
  "run" | "spawn" | "readFile" | "readBinaryFile" | "readTextFile" | "writeFile" | "writeBinaryFile" | "writeTextFile"
>;
export const asAiSession = (session: SandboxSession): IoMethods => session;
export const asAiProcess = (process: SandboxProcess): Experimental_SandboxProcess => process;

// The two ways to write it that the documentation shows.
export default defineSandbox({
  backend: () => (isBwrapAvailable() ? bwrap() : defaultBackend()),
});

export const whole = defineSandbox({
  backend: () => bwrap({ cacheDir: "/var/cache/agent" }),
  revalidationKey: () => "1",
  async bootstrap({ use }) {
    const session = await use({ networkPolicy: "allow-all" });
    await session.run({ command: "npm ci" });
  },
  async onSession({ use }) {
    await use({ networkPolicy: "deny-all" });
    // @ts-expect-error eve's types carry our options: another name is refused.
    await use({ network: "deny-all" });
  },
});
