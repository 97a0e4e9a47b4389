import { bwrap } from "@evelandhq/sandbox-bwrap";
import { defineSandbox } from "eve/sandbox";

export default defineSandbox({
  backend: () => bwrap(),
  revalidationKey: () => "1",
  async bootstrap({ use }) {
    const sandbox = await use();
    await sandbox.run({
      command: 'echo "built on a seed that says: $(cat seed.txt)" > bootstrap.txt; date +%s%N > built-at.txt',
    });
  },
  async onSession({ use }) {
    const sandbox = await use({ networkPolicy: "deny-all" });
    await sandbox.writeTextFile({ path: "session.txt", content: "a new session began\n" });
  },
});
