import assert from "node:assert/strict";
import { test } from "node:test";

import {
  type BwrapSandboxCreateOptions,
  bwrap,
  createBwrapSandboxBackend,
  DEFAULT_MAX_CONCURRENT_PROCESSES,
  DEFAULT_MAX_OUTPUT_BYTES,
  DEFAULT_RUN_TIMEOUT_MS,
  SandboxError,
} from "../../lib/index.ts";
import { parseOptions, parseUseOptions } from "../../lib/options.ts";

const rejected: Readonly<Record<string, { options: object; code?: string; names: RegExp }>> = {
  "a misspelt option": { options: { runTimeout: 1 }, names: /^runTimeout: / },
  "a list instead of options": { options: [], names: /^createOptions: / },
  "a timeout of 0": { options: { runTimeoutMs: 0 }, names: /^runTimeoutMs: / },
  "a negative timeout": { options: { runTimeoutMs: -1 }, names: /^runTimeoutMs: / },
  "half a millisecond": { options: { runTimeoutMs: 0.5 }, names: /^runTimeoutMs: / },
  "an unsafe integer": { options: { maxOutputBytes: 2 ** 53 }, names: /^maxOutputBytes: / },
  "a standby that is neither": { options: { standby: 1 }, names: /^standby: / },
  "no idle time": { options: { idleTimeoutMs: 0 }, names: /^idleTimeoutMs: / },
  "no live sandbox": { options: { maxLiveGenerations: 0 }, names: /^maxLiveGenerations: / },
  "unknown processes": { options: { processes: "job" }, names: /^processes: / },
  "an infinite limit": { options: { maxOutputBytes: Infinity }, names: /^maxOutputBytes: / },
  "a limit as text": { options: { maxConcurrentProcesses: "64" }, names: /^maxConcurrentProcesses: / },
  "a word for a flag": { options: { queue: "no" }, names: /^queue: / },
  NaN: { options: { maxConcurrentProcesses: NaN }, names: /^maxConcurrentProcesses: / },
  "a policy of another kind": {
    options: { networkPolicy: { allow: { "example.com": [] } } },
    code: "ERR_UNSUPPORTED",
    names: /^networkPolicy: /,
  },
  "a policy of another name": {
    options: { networkPolicy: "deny" },
    code: "ERR_UNSUPPORTED",
    names: /^networkPolicy: /,
  },
  "a relative cacheDir": { options: { cacheDir: "cache" }, names: /^cacheDir: / },
  "a NUL in cacheDir": { options: { cacheDir: "/a\0b" }, names: /^cacheDir: / },
  "another home": { options: { home: "/root" }, names: /^home: / },
  "hidePaths as text": { options: { hidePaths: "/srv" }, names: /^hidePaths: / },
  "a relative path to hide": { options: { hidePaths: ["/srv", "etc"] }, names: /^hidePaths\[1\]: / },
  "an empty bwrapPath": { options: { bwrapPath: "" }, names: /^bwrapPath: / },
  "an empty templateRevision": { options: { templateRevision: "" }, names: /^templateRevision: / },
  "env as a list": { options: { env: ["A=1"] }, names: /^env: / },
  "a variable without a name": { options: { env: { "": "x" } }, names: /^env: / },
  "a name with =": { options: { env: { "A=B": "x" } }, names: /^env: "A=B"/ },
  "a name with NUL": { options: { env: { "A\0": "x" } }, names: /^env: / },
  "a value with NUL": { options: { env: { A: "x\0" } }, names: /^env\.A: / },
  "a number as a value": { options: { env: { A: 1 } }, names: /^env\.A: / },
  "a sink that is none": { options: { onEvent: "log" }, names: /^onEvent: / },
};

for (const [name, { options, code = "ERR_INVALID_ARGUMENT", names }] of Object.entries(rejected)) {
  test(`options: ${name} is rejected at construction`, () => {
    assert.throws(
      () => bwrap(options as BwrapSandboxCreateOptions),
      (error: unknown) => {
        assert.ok(error instanceof SandboxError);
        assert.equal(error.code, code);
        assert.match(error.message, names);
        return true;
      },
    );
  });
}

test("options: what is left out or undefined has its default", () => {
  const expected = {
    env: {},
    networkPolicy: "allow-all",
    hidePaths: [],
    home: "workspace",
    bwrapPath: "bwrap",
    runTimeoutMs: DEFAULT_RUN_TIMEOUT_MS,
    maxConcurrentProcesses: DEFAULT_MAX_CONCURRENT_PROCESSES,
    queue: true,
    maxOutputBytes: DEFAULT_MAX_OUTPUT_BYTES,
    idleTimeoutMs: 900_000,
    standby: true,
    maxLiveGenerations: 256,
    processes: "session",
    onEvent: undefined,
  };
  assert.deepEqual(parseOptions(), expected);
  assert.deepEqual(parseOptions({ env: undefined, cacheDir: undefined, runTimeoutMs: undefined }), expected);
  assert.deepEqual(
    [DEFAULT_RUN_TIMEOUT_MS, DEFAULT_MAX_CONCURRENT_PROCESSES, DEFAULT_MAX_OUTPUT_BYTES],
    [600_000, 64, 16_777_216],
  );
});

test("options: null takes a limit away, and a revision", () => {
  const options = parseOptions({
    runTimeoutMs: null,
    maxConcurrentProcesses: null,
    maxOutputBytes: null,
    idleTimeoutMs: null,
    templateRevision: null,
  });
  assert.deepEqual(
    [options.runTimeoutMs, options.maxConcurrentProcesses, options.maxOutputBytes, options.idleTimeoutMs],
    [null, null, null, null],
  );
  assert.equal("templateRevision" in options, false);
});

test("options: an undefined variable and a newline in a value are fine", () => {
  assert.deepEqual(parseOptions({ env: { A: undefined, B: "1\n2" } }).env, { A: undefined, B: "1\n2" });
});

test("options: the original's test doubles are refused by name", () => {
  for (const name of ["runner", "copyDirectory"]) {
    assert.throws(() => createBwrapSandboxBackend({ [name]: () => {} }), { code: "ERR_INVALID_ARGUMENT", op: name });
  }
  assert.throws(() => createBwrapSandboxBackend({ options: {} } as object), { message: /^options: is not an option/ });
  assert.throws(() => createBwrapSandboxBackend({ createOptions: { cacheDir: "x" } }), { op: "cacheDir" });
  assert.equal(createBwrapSandboxBackend().name, "bwrap");
  assert.equal(createBwrapSandboxBackend({ createOptions: { runTimeoutMs: 1 } }).name, "bwrap");
});

test("options: use() takes a policy and nothing else", () => {
  assert.equal(parseUseOptions(), undefined);
  assert.equal(parseUseOptions({}), undefined);
  assert.equal(parseUseOptions({ networkPolicy: "deny-all" }), "deny-all");
  assert.throws(() => parseUseOptions({ network: "x" } as object), { code: "ERR_INVALID_ARGUMENT", op: "network" });
  assert.throws(() => parseUseOptions({ networkPolicy: "none" } as object), { code: "ERR_UNSUPPORTED" });
});
