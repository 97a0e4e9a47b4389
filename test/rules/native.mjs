// Breaks each of the five rules of the boundary on purpose and shows that the
// rule's test fails then, and passes with the rule kept. Prints how often.
//
// Usage: tools/with-node.sh node test/rules/native.mjs [ROUNDS]

import { execFileSync, spawnSync } from "node:child_process";
import path from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));
const rounds = Number(process.argv[2] ?? 3);

// What is broken, and which of the rule's tests must notice. A crash test of a
// race may miss it at times: at least one failure in all rounds is asked for,
// where "always" does not say that each round must fail.
const variants = [
  { variant: "1", test: "rule 1: children", always: false },
  { variant: "1", test: "rule 1: SIGCHLD stays", always: true },
  { variant: "1", test: "rule 1: SIGCHLD hits", always: false },
  { variant: "2", test: "rule 2: an application's own", always: false },
  { variant: "2", test: "rule 2: an application's signal is", always: false },
  { variant: "2", test: "rule 2: the threads", always: true },
  { variant: "3", test: "rule 3: what a Worker", always: true },
  { variant: "3.mask", test: "rule 3: a child", always: true },
  { variant: "4", test: "rule 4", always: false },
  { variant: "5", test: "rule 5", always: true },
];

function build(variant) {
  const directory = path.join(root, "build/test", variant);
  execFileSync("sh", [path.join(root, "test/addon/build.sh"), directory, variant], {
    stdio: ["ignore", "inherit", "inherit"],
  });
  return directory;
}

/** Runs the tests that match and returns how many passed and failed. */
function run(directory, pattern) {
  const args = ["--test", "--test-reporter=tap", `--test-name-pattern=^${pattern}`];
  const { stdout } = spawnSync(process.execPath, [...args, path.join(root, "test/addon/rules.test.mjs")], {
    encoding: "utf8",
    env: { ...process.env, SBX_TEST_ADDON: directory },
  });
  const count = (word) => Number(new RegExp(`^# ${word} (\\d+)$`, "m").exec(stdout)?.[1]);
  return { passed: count("pass"), failed: count("fail") };
}

let unnoticed = 0;
const intact = build("intact");
for (const { variant, test, always } of variants) {
  const kept = { passed: 0, failed: 0 };
  const broken = { passed: 0, failed: 0 };
  const directory = build(variant);
  for (let round = 0; round < rounds; round++) {
    for (const [total, from] of [
      [kept, intact],
      [broken, directory],
    ]) {
      const { passed, failed } = run(from, test);
      total.passed += passed;
      total.failed += failed;
    }
  }
  const good =
    kept.failed === 0 && kept.passed > 0 && (always ? broken.passed === 0 && broken.failed > 0 : broken.failed > 0);
  if (!good) {
    unnoticed++;
  }
  const of = ({ passed, failed }) => `${failed} of ${passed + failed} failed`;
  console.log(`${good ? "ok    " : "NOT OK"} ${test.padEnd(34)} broken (${variant}): ${of(broken)}, kept: ${of(kept)}`);
}
process.exit(unnoticed === 0 ? 0 : 1);
