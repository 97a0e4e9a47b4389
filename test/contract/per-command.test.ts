import { test } from "node:test";

import perCommand from "./per-command.ts";
import { suite } from "./suite.ts";

test('bwrap({ processes: "command" })', async (t) => {
  await suite(t, perCommand);
});
