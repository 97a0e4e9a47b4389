import { BwrapSandbox } from "@evelandhq/sandbox-bwrap/provider";
import { defineSandbox } from "eve/sandbox";

// Not an option of open(): a subagent that opens the sandbox first does not run what is below.
export const environment = BwrapSandbox.environment({ networkPolicy: "deny-all" });

export default defineSandbox(async () => {
  const sandbox = await environment.open();
  await sandbox.writeTextFile({ path: "session.txt", content: "a new session began\n" });
  return sandbox;
});
