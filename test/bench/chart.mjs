// Draws a benchmark's results as an SVG bar chart, without any library.

const bars = [
  { variant: "ours", label: "this package", colour: "#2f6f4f" },
  { variant: "host", label: "bash on the host", colour: "#9aa5b1" },
  { variant: "bwrapEach", label: "one bwrap per command", colour: "#c98a3d" },
];
const width = 720;
const left = 170;
const barHeight = 18;
const groupGap = 44;

/**
 * One group of bars for each result. Lengths compare within a group only: the
 * longest bar of each has the full width.
 */
export function chart(results) {
  const groupHeight = bars.length * (barHeight + 4) + groupGap;
  const groups = results.map((result, index) => group(result, 16 + index * groupHeight));
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${16 + results.length * groupHeight}"
  font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#fff"/>
${groups.join("\n")}
</svg>
`;
}

function group(result, top) {
  const longest = Math.max(...bars.map(({ variant }) => result[variant].medianMs));
  const lines = [`<text x="12" y="${top + 12}" font-weight="bold">${result.title}</text>`];
  for (const [index, { variant, label, colour }] of bars.entries()) {
    const { medianMs } = result[variant];
    const y = top + 20 + index * (barHeight + 4);
    const length = Math.max(1, (medianMs / longest) * (width - left - 190));
    const ratio = variant === "ours" ? "" : ` (ours is ${(result.ours.medianMs / medianMs).toFixed(2)} of it)`;
    lines.push(
      `<text x="${left - 8}" y="${y + 13}" text-anchor="end">${label}</text>`,
      `<rect x="${left}" y="${y}" width="${length.toFixed(1)}" height="${barHeight}" fill="${colour}"/>`,
      `<text x="${(left + length + 6).toFixed(1)}" y="${y + 13}">${medianMs.toFixed(2)} ms${ratio}</text>`,
    );
  }
  return lines.join("\n");
}
