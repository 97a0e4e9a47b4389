import { test } from "node:test";

import connections from "./connections.ts";
import { suite } from "./suite.ts";

test("the provider of eve from 0.81, as documented", async (t) => {
  await suite(t, connections);
});
