import { test } from "node:test";

import backend from "./backend.ts";
import { suite } from "./suite.ts";

test("bwrap()", async (t) => {
  await suite(t, backend);
});
