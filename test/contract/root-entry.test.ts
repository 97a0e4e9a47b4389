// What importing the package does, and does not do, as it is shipped.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import type { BwrapFinding } from "../../lib/index.ts";

const dist = fileURLToPath(new URL("../../dist", import.meta.url));
const entry = join(dist, "index.js");

/** Runs a script in a Node of its own with what the package exports as `p`, and returns what it prints as JSON. */
async function importing(script: string, env: NodeJS.ProcessEnv = process.env): Promise<unknown> {
  const source = `
    const p = await import(${JSON.stringify(entry)});
    const maps = () => process.getBuiltinModule("node:fs").readFileSync("/proc/self/maps", "utf8");
    console.log(JSON.stringify((${script})()));`;
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", source], { env });
  return JSON.parse(stdout);
}

test("what is shipped imports Node's own modules and its own files; the provider's entry alone imports eve", () => {
  const files = readdirSync(dist, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".js"));
  assert.ok(files.length > 10);
  for (const name of files) {
    const source = readFileSync(join(dist, name), "utf8");
    for (const [, specifier = ""] of source.matchAll(/(?:\bfrom|\bimport\(|^import)\s*["']([^"']+)["']/gm)) {
      if (name === join("eve", "provider", "index.js") && specifier === "eve/sandbox/provider") continue;
      assert.match(specifier, /^(node:|\.{1,2}\/)/, `${name} imports ${specifier}`);
    }
  }
});

test("importing it, making a backend and looking at its options load no native code", async () => {
  const loaded = await importing(
    `() => { p.bwrap({ networkPolicy: "deny-all" }); return /sandbox\\.(node|so)|libsandbox/.test(maps()); }`,
  );
  assert.equal(loaded, false);
});

test("the first use loads it", async () => {
  const loaded = await importing(
    `() => { p.isBwrapAvailable(); return /sandbox\\.node/.test(maps()) && /libsandbox\\.so/.test(maps()); }`,
  );
  assert.equal(loaded, true);
});

test("a bwrap that is not there is no sandbox, with a reason and without a throw", async () => {
  const answer = (await importing(
    `() => ({ is: p.isBwrapAvailable("/nope/bwrap"), why: p.explainBwrapAvailability("/nope/bwrap"), name: p.isBwrapAvailable("no-such-bwrap") })`,
  )) as {
    is: boolean;
    why: { available: boolean; findings: BwrapFinding[] };
    name: boolean;
  };
  assert.equal(answer.is, false);
  assert.equal(answer.name, false);
  assert.equal(answer.why.available, false);
  const finding = answer.why.findings.find(({ severity }) => severity === "fatal");
  assert.ok(finding, JSON.stringify(answer.why));
  assert.equal(finding.code, "bwrap-missing");
  assert.match(finding.remedy ?? "", /install/);
});

test("a bwrap that is something else is no sandbox", async () => {
  assert.equal(await importing(`() => p.isBwrapAvailable("/bin/true")`), false);
  assert.equal(await importing(`() => p.isBwrapAvailable("/bin/false")`), false);
  assert.equal(await importing(`() => p.isBwrapAvailable("/etc/passwd")`), false);
});

test("this host can build a sandbox, and says so", async () => {
  assert.deepEqual(await importing(`() => [p.isBwrapAvailable(), p.explainBwrapAvailability("bwrap").available]`), [
    true,
    true,
  ]);
});

test("an addon that cannot be loaded is a reason, not a throw", async () => {
  const env = { ...process.env, SANDBOX_BWRAP_NATIVE: "/etc/passwd" };
  const answer = await importing(`() => p.explainBwrapAvailability()`, env);
  assert.equal((answer as { available: boolean }).available, false);
  assert.match(JSON.stringify(answer), /addon/);
});
