import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";

import { decodeError, SandboxError } from "../../lib/errors.ts";
import { bytes, ran } from "./fake.ts";

test("errors: a code of ours is a SandboxError with what the core said", () => {
  const error = decodeError({
    code: "ERR_UNAVAILABLE",
    message: "create: no user namespaces",
    op: "create",
    remedy: "load the AppArmor profile",
    detail: "bwrap: setting up uid map: Permission denied",
  });
  assert.ok(error instanceof SandboxError && error instanceof Error);
  assert.deepEqual(
    { ...error },
    {
      name: "SandboxError",
      code: "ERR_UNAVAILABLE",
      op: "create",
      remedy: "load the AppArmor profile",
      detail: "bwrap: setting up uid map: Permission denied",
    },
  );
  assert.equal(error.message, "create: no user namespaces");
  assert.equal(error.retryable, false);
});

test("errors: members that say nothing are absent", () => {
  const error = decodeError({ code: "ERR_CLOSED", message: "closed", op: "", path: "", remedy: "" });
  assert.deepEqual(Object.keys(error).toSorted(), ["code", "name"]);
  assert.doesNotMatch(inspect(error), /undefined/);
});

test("errors: what a command had written is told, with its time", () => {
  const output = Buffer.concat([bytes("par"), Uint8Array.of(0xff), bytes("err")]);
  const error = decodeError(
    { code: "ERR_TIMEOUT", message: "run: timed out" },
    { ...ran, stdoutLength: 4, stdoutBytes: 400, stdoutTruncated: true, stderrBytes: 3, durationMs: 700 },
    output,
  );
  assert.ok(error instanceof SandboxError);
  assert.deepEqual([error.stdout, error.stderr, error.durationMs], ["par\ufffd", "err", 700]);
  assert.deepEqual([error.stdoutBytes, error.stdoutTruncated], [400, true]);
  assert.deepEqual([error.stderrBytes, error.stderrTruncated], [3, false]);
  assert.equal("exitCode" in error || "stdoutLength" in error, false);
});

test("errors: only a limit that passes is retryable", () => {
  assert.equal((decodeError({ code: "ERR_BUSY", message: "" }) as SandboxError).retryable, true);
  assert.equal((decodeError({ code: "ERR_TIMEOUT", message: "" }) as SandboxError).retryable, false);
});

test("errors: a POSIX name is an error as Node's own", () => {
  const error = decodeError({
    code: "EISDIR",
    message: "read: /workspace/d: is a directory",
    op: "read",
    path: "/workspace/d",
  });
  assert.equal(error instanceof SandboxError, false);
  assert.equal(error.message, "EISDIR: read: /workspace/d: is a directory");
  assert.deepEqual({ ...error }, { code: "EISDIR", errno: -21, syscall: "read", path: "/workspace/d" });
});

test("errors: a POSIX name that Node does not know has no number", () => {
  assert.deepEqual({ ...decodeError({ code: "EHWPOISON", message: "x" }) }, { code: "EHWPOISON" });
});

test("errors: the cause is kept", () => {
  const cause = new Error("why");
  assert.equal(new SandboxError("ERR_INTERNAL", "x", { cause }).cause, cause);
  assert.equal("cause" in new SandboxError("ERR_INTERNAL", "x"), false);
});
