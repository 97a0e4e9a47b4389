import { test } from "node:test";

import factory from "./handles.ts";
import { suite } from "./suite.ts";

test("the provider of eve 0.64 to 0.80", async (t) => {
  await suite(t, factory);
});
