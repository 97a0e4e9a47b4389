import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { promisify } from "node:util";

import { explainAvailability } from "../../lib/availability.ts";
import { coreVersion } from "../../lib/native.ts";
import { fakeNative } from "./fake.ts";

const root = join(import.meta.dirname, "..", "..");
const platform = `${process.platform}-${process.arch}`;

/** An addon in JavaScript: Node tells by the name only what to do with a file it does not know. */
const addon = (version: string, name: string) => `
  module.exports = {
    load() {},
    open() {},
    version: () => ${JSON.stringify(version)},
    probe: () => JSON.stringify({ ok: { available: false, findings: [{ code: "loaded", severity: "fatal", title: ${JSON.stringify(name)} }] } }),
  };`;

interface Scene {
  /** Contents by path. */
  readonly files?: Readonly<Record<string, string>>;
  /** Where the package's code lies. */
  readonly lib?: string;
  /** Where it lies, too. */
  readonly copies?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
}

/** Runs a script that may import "#lib" in a process of its own, in which .node files are JavaScript. */
async function runScript(
  context: TestContext,
  script: string,
  { files = {}, lib = "lib", copies = [], env = {}, cwd = "." }: Scene = {},
): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "sandbox-bwrap-loader-"));
  context.after(() => rm(directory, { recursive: true, force: true }));
  for (const copy of [lib, ...copies]) await cp(join(root, "lib"), join(directory, copy), { recursive: true });
  const preload = `
    import { createRequire } from "node:module";
    const { Module } = createRequire(import.meta.url)("node:module");
    Module._extensions[".node"] = Module._extensions[".js"];`;
  const all: Record<string, string> = {
    "preload.mjs": preload,
    "main.mjs": script.replace("#lib", `./${lib}/index.ts`),
    ...files,
  };
  for (const [path, content] of Object.entries(all)) {
    await mkdir(join(directory, path, ".."), { recursive: true });
    await writeFile(join(directory, path), content);
  }
  const { SANDBOX_BWRAP_NATIVE: _, ...inherited } = process.env;
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ["--import", join(directory, "preload.mjs"), join(directory, "main.mjs")],
    { cwd: join(directory, cwd), env: { ...inherited, ...env } },
  );
  return stdout.trim();
}

const explain = `
  import { explainBwrapAvailability } from "#lib";
  const { available, findings: [finding] } = explainBwrapAvailability();
  console.log(available, finding.code, finding.title, finding.remedy ?? "");`;

const packageJson = '{ "name": "@evelandhq/sandbox-bwrap", "exports": { "./package.json": "./package.json" } }';

const installed = (prefix: string) => ({
  [`${prefix}node_modules/@evelandhq/sandbox-bwrap/package.json`]: packageJson,
  [`${prefix}node_modules/@evelandhq/sandbox-bwrap/prebuilds/${platform}/sandbox.node`]: addon(coreVersion, prefix),
});

test("version: the code and the package agree", async () => {
  const { version } = JSON.parse(await readFile(join(root, "package.json"), "utf8")) as { version: string };
  assert.equal(coreVersion, version);
});

test("loading: importing the package loads nothing", async (context) => {
  const script = `
    import { bwrap } from "#lib";
    bwrap({ env: { A: "1" } });
    console.log(process.report.getReport().sharedObjects.some((path) => /sandbox\\.(node|so)/.test(path)));`;
  assert.equal(
    await runScript(context, script, { files: { [`prebuilds/${platform}/sandbox.node`]: "throw 1" } }),
    "false",
  );
});

test("loading: the environment variable goes first", async (context) => {
  const files = {
    "elsewhere/x.node": addon(coreVersion, "override"),
    [`prebuilds/${platform}/sandbox.node`]: addon(coreVersion, "prebuild"),
  };
  const env = { SANDBOX_BWRAP_NATIVE: "elsewhere/x.node" };
  assert.equal(await runScript(context, explain, { files, env }), "false loaded override");
});

test("loading: a checkout's own build goes before its prebuild, in a package it does not count", async (context) => {
  const files = {
    "build/Release/sandbox.node": addon(coreVersion, "build"),
    [`prebuilds/${platform}/sandbox.node`]: addon(coreVersion, "prebuild"),
  };
  assert.equal(await runScript(context, explain, { files }), "false loaded prebuild");
  assert.equal(await runScript(context, explain, { files: { ...files, "binding.gyp": "{}" } }), "false loaded build");
});

test("loading: bundled code finds the package above it, or where the process was started", async (context) => {
  const lib = ".output/server/chunks";
  assert.equal(await runScript(context, explain, { files: installed(""), lib }), "false loaded");
  assert.equal(await runScript(context, explain, { files: installed("app/"), lib, cwd: "app" }), "false loaded app/");
});

test(
  "loading: nothing to be found names what to do",
  { skip: process.platform !== "linux" && "needs Linux" },
  async (context) => {
    const output = await runScript(context, explain);
    assert.match(output, /^false native-core .*not to be found/);
    assert.match(output, /build\.externalDependencies: \["@evelandhq\/sandbox-bwrap"\]/);
  },
);

test("loading: several copies of the code in one JavaScript environment share one conversation", async (context) => {
  const once = `
    let opened = 0;
    ${addon(coreVersion, "")}
    module.exports.open = (onReply) => {
      if (opened++) throw new Error("open() was called before");
      module.exports.create = (call) => setImmediate(onReply, call, '{"ok":{"session":1}}');
    };`;
  const script = `
    import * as one from "#lib";
    const two = await import("./copy/index.ts");
    for (const { bwrap } of [one, two]) {
      await bwrap().create({ templateKey: null, sessionKey: "s", runtimeContext: { appRoot: "/" } });
    }
    console.log(one.bwrap !== two.bwrap);`;
  const files = { [`prebuilds/${platform}/sandbox.node`]: once };
  assert.equal(await runScript(context, script, { files, copies: ["copy"] }), "true");
});

test("loading: another version is refused by both names", async (context) => {
  const files = { [`prebuilds/${platform}/sandbox.node`]: addon("0.0.1", "old") };
  assert.match(
    await runScript(context, explain, { files }),
    /^false native-core .*0\.0\.1, not \d+\.\d+\.\d+ install /,
  );
});

test("loading: an addon that does not load says why", async (context) => {
  const files = { [`prebuilds/${platform}/sandbox.node`]: 'throw new Error("wrong ELF class")' };
  assert.equal(
    await runScript(context, explain, { files }),
    "false native-core load the native addon: wrong ELF class",
  );
});

const elsewhere: Readonly<Record<string, { change: string; says: RegExp }>> = {
  macOS: {
    change: 'Object.defineProperty(process, "platform", { value: "darwin" });',
    says: /needs Linux, this is darwin/,
  },
  "another architecture": {
    change: 'Object.defineProperty(process, "arch", { value: "riscv64" });',
    says: /not for riscv64/,
  },
  musl: { change: "process.report.getReport = () => ({ header: {} });", says: /glibc.*musl/ },
};

for (const [name, { change, says }] of Object.entries(elsewhere)) {
  test(`loading: on ${name} the import works, and the answer is no with a reason`, async (context) => {
    const script = `
      if (process.platform !== "linux") Object.defineProperty(process, "platform", { value: "linux" });
      ${change}
      const { bwrap, explainBwrapAvailability, isBwrapAvailable } = await import("#lib");
      const error = await bwrap().create({ templateKey: null, sessionKey: "s", runtimeContext: { appRoot: "/" } }).catch((e) => e);
      console.log(isBwrapAvailable(), error.code, explainBwrapAvailability().findings[0].title);`;
    const files = { [`prebuilds/${platform}/sandbox.node`]: 'throw new Error("loaded")' };
    const output = await runScript(context, script, { files });
    assert.match(output, /^false ERR_UNAVAILABLE /);
    assert.match(output, says);
  });
}

test("availability: what the core finds is passed on", () => {
  const { native } = fakeNative();
  const requests: unknown[] = [];
  const answering = (reply: object) => () => ({
    ...native,
    probe(json: string) {
      requests.push(JSON.parse(json));
      return JSON.stringify(reply);
    },
  });
  const findings = [{ code: "userns-refused", severity: "fatal" as const, title: "refused", remedy: "do" }];
  assert.deepEqual(explainAvailability(answering({ ok: { available: false, findings } }), "/opt/bwrap"), {
    available: false,
    findings,
  });
  assert.deepEqual(explainAvailability(answering({ ok: { available: true, findings: null } })), {
    available: true,
    findings: [],
  });
  assert.deepEqual(
    explainAvailability(
      answering({ error: { code: "ERR_INTERNAL", message: "panic", remedy: "report it", detail: "stack" } }),
    ),
    {
      available: false,
      findings: [{ code: "native-core", severity: "fatal", title: "panic", remedy: "report it", detail: "stack" }],
    },
  );
  assert.deepEqual(requests[0], { bwrapPath: "/opt/bwrap", path: process.env["PATH"] });
  assert.equal((requests[1] as { bwrapPath: string }).bwrapPath, "bwrap");
});

test("availability: an answer that is none is a no", () => {
  const { native } = fakeNative();
  const { available, findings } = explainAvailability(() => ({ ...native, probe: () => "" }));
  assert.equal(available, false);
  assert.equal(findings.length, 1);
});
