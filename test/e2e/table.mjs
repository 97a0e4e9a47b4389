// table.mjs puts the table of the end-to-end tests' results into README.md. It
// refuses when a test has not run on the package in build/, or has failed.

import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { root } from "./driver.mjs";
import { read, rows, table, versionsOf } from "./matrix.mjs";

const [begin, end] = ["<!-- eve-matrix -->\n", "<!-- /eve-matrix -->\n"];

const results = await read();
const lacking = Object.keys(rows).flatMap((row) =>
  versionsOf(row)
    .filter((eve) => !["yes", "absent"].includes(results.versions[eve]?.[row]))
    .map((eve) => `eve ${eve}: ${rows[row].says}: ${results.versions[eve]?.[row] ?? "not run"}`),
);
if (lacking.length > 0) {
  console.error(`no table without a whole run of \`make test-eve\`:\n${lacking.join("\n")}`);
  process.exit(1);
}

const readme = join(root, "README.md");
const text = await readFile(readme, "utf8");
const [from, to] = [text.indexOf(begin), text.indexOf(end)];
if (from < 0 || to < from) throw new Error(`${readme} has no place for the table: ${begin.trim()} … ${end.trim()}`);
await writeFile(readme, `${text.slice(0, from + begin.length)}\n${table(results)}\n${text.slice(to)}`);
console.log(`${readme}: the table is that of package ${results.package.slice(0, 12)}`);
