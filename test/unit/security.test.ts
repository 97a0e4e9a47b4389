import assert from "node:assert/strict";
import { globSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

const root = join(import.meta.dirname, "..", "..");
const read = (pattern: string) =>
  globSync(pattern, { cwd: root }).map((file) => readFileSync(join(root, file), "utf8"));

/** The second column of the promises: what fails when a promise is broken. */
function namedTests(document: string): { promise: string; names: string[] }[] {
  const promised = document.split("## What is promised")[1]!.split("## What is not promised")[0]!;
  return promised
    .split("\n")
    .map((line) => line.match(/^\| (?<promise>.+) \| (?<tests>[^|]+) \|$/)?.groups)
    .filter((row) => row !== undefined && row["promise"] !== "promise" && row["promise"] !== "---")
    .map((row) => ({
      promise: row!["promise"]!,
      names: [...row!["tests"]!.matchAll(/`(Test\w+)`|"([^"]+)"/g)].map(([, go, sentence]) => go ?? sentence!),
    }));
}

test("every promise of SECURITY.md names tests, and every test it names exists", () => {
  const sources = [...read("core/**/*_test.go"), ...read("test/{contract,addon}/**/*.{ts,mjs}")].join("\n");
  const promises = namedTests(readFileSync(join(root, "docs", "SECURITY.md"), "utf8"));
  assert.ok(promises.length > 20, `${promises.length} promises found`);
  for (const { promise, names } of promises) {
    assert.notEqual(names.length, 0, `no test is named for: ${promise}`);
    for (const name of names) {
      // A name that a test computes is written with "…" in the place of what varies.
      for (const part of name.split("…")) assert.ok(sources.includes(part), `no test ${name}, named for: ${promise}`);
    }
  }
});
