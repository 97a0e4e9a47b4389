// Measures what a command costs in the sandbox beside what the same costs with
// Node alone, all in one run: on a shared machine only the ratios mean anything.
//
//   node test/bench/run.mjs [MEASURE...] [--rounds N]
//
// Without names it runs all measures of measures.mjs. Prints the figures and
// writes build/bench.json. A figure that is more than it should be is no failure.

import { fork } from "node:child_process";
import { once } from "node:events";
import { mkdir, writeFile } from "node:fs/promises";
import { availableParallelism, release } from "node:os";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { measures, others, quantities } from "./measures.mjs";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { rounds: { type: "string" } },
});
const onlyRounds = options.rounds === undefined ? undefined : Number(options.rounds);
if (onlyRounds !== undefined && !(Number.isSafeInteger(onlyRounds) && onlyRounds > 0)) {
  throw new Error(`--rounds ${options.rounds}: a positive whole number`);
}
const unknown = positionals.filter((name) => !(name in measures));
if (unknown.length > 0) throw new Error(`${unknown}: no measure; there are ${Object.keys(measures).join(", ")}`);
const names = positionals.length > 0 ? positionals : Object.keys(measures);

/** In a process of its own: what one measure leaves in memory would change the next. */
async function inOwnProcess(name, rounds) {
  const child = fork(join(import.meta.dirname, "one.mjs"), [name, String(rounds)]);
  let found;
  child.on("message", (message) => (found = message));
  const [code] = await once(child, "close");
  if (code !== 0 || !found) throw new Error(`${name}: the measuring process ended with ${code}`);
  return found;
}

function figure({ of, to, atMost }, variants) {
  const ours = variants.ours[of].median;
  const value = to ? ours / variants[to][of].median : ours;
  return { of, ...(to && { to }), value, ...(atMost !== undefined && { atMost, met: value <= atMost }) };
}

/** Medians are told in the unit of their quantity. */
function line({ of, to, value, atMost, met }, variants) {
  const cells = [`${quantities[of]}${to ? `, to ${others[to]}` : ""}`.padEnd(50), value.toFixed(3).padStart(7)];
  if (atMost === undefined) cells.push("".padEnd(23));
  else cells.push(`at most ${atMost.toFixed(2)}`.padStart(14), (met ? "met" : "MISSED").padEnd(8));
  if (to) cells.push(`${variants.ours[of].median.toFixed(2)} / ${variants[to][of].median.toFixed(2)} ms`);
  return `  ${cells.join(" ")}`.trimEnd();
}

const results = [];
for (const name of names) {
  const { title, figures, needsRoot, ...measure } = measures[name];
  if (needsRoot && process.getuid() !== 0) {
    console.log(`${title}: left out, ${needsRoot}\n`);
    continue;
  }
  const rounds = onlyRounds ?? measure.rounds;
  const found = await inOwnProcess(name, rounds);
  const result = { name, title, rounds, figures: figures.map((each) => figure(each, found.variants)), ...found };
  results.push(result);
  console.log(`${title} (${rounds} rounds in a process of ${Math.round(result.residentBytes / 1e6)} MB)`);
  for (const each of result.figures) console.log(line(each, result.variants));
  console.log();
}

const report = {
  node: process.version,
  kernel: release(),
  cores: availableParallelism(),
  uid: process.getuid(),
  measures: results,
};
const build = resolve(import.meta.dirname, "../../build");
await mkdir(build, { recursive: true });
await writeFile(join(build, "bench.json"), `${JSON.stringify(report, undefined, 2)}\n`);
const missed = results.flatMap((result) => result.figures).filter(({ met }) => met === false);
console.log(`${missed.length} figures missed what they may be at most; build/bench.json has the numbers`);
