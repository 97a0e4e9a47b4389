// Draws the figures of docs/bench.json, a committed report of run.mjs, as
// docs/bench.svg, without any library.

import { readFile, writeFile } from "node:fs/promises";
import { resolve } from "node:path";
import { others, quantities } from "./measures.mjs";

const docs = resolve(import.meta.dirname, "../../docs");
const width = 800;
const left = 360;
const fullLength = 300;
const rowHeight = 24;
const titleHeight = 30;
const colours = { met: "#2f6f4f", missed: "#b5532a", free: "#5b7f95", whole: "#e4e8ec", limit: "#1c2530" };

const report = JSON.parse(await readFile(resolve(docs, "bench.json"), "utf8"));
const parts = [];
let y = 34;
for (const { title, figures } of report.measures) {
  parts.push(`<text x="12" y="${y + 18}" font-weight="bold">${title}</text>`);
  y += titleHeight;
  for (const figure of figures) {
    parts.push(row(figure, y));
    y += rowHeight;
  }
}
const footer = `Node ${report.node}, Linux ${report.kernel}, ${report.cores} cores, uid ${report.uid}`;
await writeFile(
  resolve(docs, "bench.svg"),
  `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${y + 34}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#fff"/>
<text x="12" y="20">The whole bar is what the same work takes with Node alone; the filled part is what it takes here.</text>
${parts.join("\n")}
<text x="12" y="${y + 22}" fill="#66727e">The mark is what a figure may be at most. ${footer}.</text>
</svg>
`,
);

/** A ratio's whole bar is 1, and what is more ends there; without another to compare with it is the limit. */
function row({ of, to, value, atMost, met }, top) {
  const scale = to ? 1 : atMost;
  const length = (amount) => (Math.min(1, amount / scale) * fullLength).toFixed(1);
  const fill = met === undefined ? colours.free : met ? colours.met : colours.missed;
  const limit = (left + Number(length(atMost))).toFixed(1);
  return [
    `<text x="${left - 8}" y="${top + 13}" text-anchor="end">${quantities[of]}${to ? ` / ${others[to]}` : ""}</text>`,
    `<rect x="${left}" y="${top}" width="${fullLength}" height="17" fill="${colours.whole}"/>`,
    `<rect x="${left}" y="${top}" width="${length(value)}" height="17" fill="${fill}"/>`,
    atMost === undefined ? "" : `<rect x="${limit}" y="${top - 2}" width="2" height="21" fill="${colours.limit}"/>`,
    `<text x="${left + fullLength + 8}" y="${top + 13}">${value.toFixed(2)}${atMost === undefined ? "" : ` (at most ${atMost})`}</text>`,
  ]
    .filter(Boolean)
    .join("\n");
}
