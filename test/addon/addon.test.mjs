// The addon without a sandbox: what it answers, and how a process with it ends.

import fs from "node:fs";
import { constants } from "node:os";
import { test } from "node:test";
import assert from "node:assert/strict";
import { clean, play, requireAddon } from "./native.mjs";

test("every request of the header is a method, and nothing else is", () => {
  const header = fs.readFileSync(new URL("../../capi/sandbox.h", import.meta.url), "utf8");
  const requests = [...header.matchAll(/^SBX_REQUEST\(sbx_(\w+)\);$/gm)].map(([, name]) =>
    name.replace(/_(.)/g, (_, letter) => letter.toUpperCase()),
  );
  assert.ok(requests.length > 20);
  const methods = Object.keys(requireAddon()).filter((name) => !name.startsWith("test"));
  assert.deepEqual(methods.toSorted(), [...requests, "load", "open", "probe", "version"].toSorted());
});

test("mistakes of the caller are exceptions, and bytes arrive as they were sent", async () => {
  assert.deepEqual(await play("basics", { execArgv: ["--expose-gc"] }), clean);
});

test("what the reply callback throws is an uncaught exception", async () => {
  assert.deepEqual(await play("callback-throws"), clean);
});

test("loading leaves the application's signals alone", async () => {
  assert.deepEqual(await play("signals"), clean);
});

for (const who of ["all", "workers"]) {
  test(`a hundred environments leave no descriptor and no thread: ${who} load the addon`, async () => {
    assert.deepEqual(await play("many-workers", { args: [who] }), clean);
  });
}

// How a process ends has nothing to do with the addon being open or busy; and
// nothing but a request under way keeps it alive.
const ways = {
  natural: { code: 0, signal: null },
  exit: { code: 7, signal: null },
  throw: { code: 1, signal: null },
  SIGTERM: { code: null, signal: "SIGTERM" },
  SIGKILL: { code: null, signal: "SIGKILL" },
};
for (const state of ["open", "busy", "closed"]) {
  for (const [way, expected] of Object.entries(ways)) {
    if (state === "busy" && way === "natural") {
      continue; // is tested below: it does not end by itself
    }
    test(`a process that is ${state} ends by ${way}`, async () => {
      const { code, signal, stdout, stderr } = await play("ends", {
        args: [state, way],
        during: (child) => way in constants.signals && child.kill(way),
      });
      assert.deepEqual({ code, signal, stdout }, { ...expected, stdout: "" });
      assert.match(stderr, way === "throw" ? /Error: on purpose/ : /^$/);
    });
  }
}

test("a request under way keeps the process alive", async () => {
  const { signal } = await play("ends", { args: ["busy", "natural"], timeoutMs: 3000 });
  assert.equal(signal, "SIGKILL"); // the time ran out
});
