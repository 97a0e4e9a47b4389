import { BwrapSandbox } from "@evelandhq/sandbox-bwrap/provider";
import { defineSandbox } from "eve/sandbox";

export const environment = BwrapSandbox.environment({
  async prepare(sandbox) {
    await sandbox.run({
      command: 'echo "built on a seed that says: $(cat seed.txt)" > bootstrap.txt; date +%s%N > built-at.txt',
    });
  },
});

export default defineSandbox(async () => {
  const sandbox = await environment.open({ networkPolicy: "deny-all" });
  await sandbox.writeTextFile({ path: "session.txt", content: "a new session began\n" });
  return sandbox;
});
