// What the end-to-end tests saw, release by release: build/eve-matrix.json, and
// the table made of it in build/eve-matrix.md. Results of another package are
// forgotten, so that all of a table is of one build.

import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { eveVersions, generationOf, packedTarball, root } from "./driver.mjs";

const jsonFile = join(root, "build/eve-matrix.json");

/**
 * The table's rows: what each says, which is its test's name too, and the
 * releases it is run on where that is not all of them.
 */
export const rows = {
  start: { says: "`eve build` and `eve start`, nothing configured" },
  template: { says: "the template is built once, then reused" },
  seeds: { says: "a session begins with seeds, skill, and what `bootstrap` or `prepare` made" },
  output: { says: "exit code and both streams arrive as they are" },
  files: { says: "file tools and bash see the same files" },
  host: { says: "the file tools never reach the host's files" },
  background: { says: "the next command reaches what an earlier one left running" },
  network: { says: "`deny-all` keeps the host's servers out of reach" },
  attachment: { says: "an attachment arrives byte for byte" },
  cancel: { says: "cancelling a turn ends its command's tree and nothing else" },
  stop: { says: "`stop()` ends the processes, keeps the files, and the next command works" },
  second: { says: "a second session has its own copy of the template" },
  delete: { says: "`delete()` removes the files, and the next command begins anew" },
  restart: { says: "SIGTERM leaves no process, and a restart finds files and attachment" },
  end: { says: "the end of a session removes its sandbox, open or not" },
  kill: { says: "SIGKILL leaves no process either" },
  bundledAndMoved: { says: "`.output` moved away: the error says what to do" },
  moved: { says: "the same with `build.externalDependencies`: a turn passes" },
  subagent: { says: "a subagent shares its parent's sandbox and never ends it", only: ["0.80.1"] },
  slow: { says: "a slow command goes on in the background, can be read and killed", only: ["0.80.1"] },
  handedOver: { says: "cancelling leaves alone what was handed over", only: ["0.80.1"] },
  race: { says: "two processes open one session at once, 50 times", only: ["0.63.0", "0.80.1"] },
  dev: { says: "`eve dev`: source edited under a live session, exit, resume", only: ["0.44.4", "0.80.1"] },
};

/** The releases a row's test runs on. */
export function versionsOf(row) {
  return rows[row].only ?? eveVersions;
}

/** Those of the releases that EVE_VERSION lets run: all, or the one it names. */
export function chosen(versions) {
  const only = process.env.EVE_VERSION;
  if (!only) return versions;
  if (!eveVersions.includes(only)) throw new Error(`EVE_VERSION is ${only}, not one of ${eveVersions.join(", ")}`);
  return versions.filter((eve) => eve === only);
}

/**
 * Runs a step and records what came of it: "yes"; "absent" when this release
 * has no such thing, which the step has to have checked; "no" when it threw.
 */
export async function record(eve, row, step, isAbsent = false) {
  if (!versionsOf(row).includes(eve)) throw new Error(`row ${row} has no cell for eve ${eve}`);
  let outcome = "no";
  try {
    await step();
    outcome = isAbsent ? "absent" : "yes";
  } finally {
    const results = await read();
    (results.versions[eve] ??= {})[row] = outcome;
    await write(results);
  }
}

/** What was recorded of the package that is in build/ now. */
export async function read() {
  const digest = await packageDigest();
  const results = JSON.parse(await readFile(jsonFile, "utf8").catch(() => "{}"));
  return results.package === digest ? results : { package: digest, versions: {} };
}

/** The digest of all that runs: not of the README, which has the table in it. */
async function packageDigest() {
  const code = ["package/package.json", "package/dist", "package/prebuilds"];
  const options = { encoding: "buffer", maxBuffer: 1 << 30 };
  const { stdout } = await promisify(execFile)("tar", ["-xzOf", await packedTarball(), ...code], options);
  return createHash("sha256").update(stdout).digest("hex");
}

async function write(results) {
  await mkdir(dirname(jsonFile), { recursive: true });
  for (const [name, text] of [
    [jsonFile, `${JSON.stringify(results, null, 2)}\n`],
    [jsonFile.replace(/json$/, "md"), table(results)],
  ]) {
    await writeFile(`${name}.new`, text);
    await rename(`${name}.new`, name);
  }
}

const signs = { yes: "✓", absent: "–", no: "✗" };

/** The results as a table in Markdown: a row for each step, a column for each release. */
export function table({ versions }) {
  const line = (cells) => `| ${cells.join(" | ")} |\n`;
  const body = Object.entries(rows).map(([row, { says }]) =>
    line([says, ...eveVersions.map((eve) => signs[versions[eve]?.[row]] ?? "")]),
  );
  return [
    line(["eve", ...eveVersions]),
    line(["---", ...eveVersions.map(() => ":-:")]),
    line(["takes a sandbox from", ...eveVersions.map(generationOf)]),
    ...body,
  ].join("");
}
