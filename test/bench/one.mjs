// Runs one measure in this process and sends what it found to the parent.
//
//   fork("one.mjs", [NAME, ROUNDS])

import { monitorEventLoopDelay, performance } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";
import { measures } from "./measures.mjs";
import { openStage } from "./stage.mjs";

const [, , name, rounds] = process.argv;
const measure = measures[name];

/** Fills this process up, in blocks that the kernel does not make huge pages of. */
function fillUp(residentBytes) {
  const block = 1 << 20;
  const ballast = [];
  while (process.memoryUsage.rss() < residentBytes) ballast.push(Buffer.alloc(block, 1));
  return ballast;
}

/** The sampling interval of the lag, in milliseconds: Node counts it in. */
const lagResolution = 1;

/** Runs one variant once and returns what it took. What it returns to clean up is not in it. */
async function sample(run) {
  const lag = measure.watchLag && monitorEventLoopDelay({ resolution: lagResolution });
  if (lag) lag.enable();
  const loop = performance.eventLoopUtilization();
  const begun = performance.now();
  const { samples, cleanUp } = (await run()) ?? {};
  const wallMs = performance.now() - begun;
  const loopMs = performance.eventLoopUtilization(loop).active;
  if (lag) lag.disable();
  await cleanUp?.();
  return { wallMs, loopMs, ...(lag && { lagMs: Math.max(0, lag.max / 1e6 - lagResolution) }), ...samples };
}

/**
 * In random order, so that each follows each of the others as often: a sandbox of
 * its own for a command is still being taken down while the next one runs.
 */
function shuffled(list) {
  return list
    .map((item) => ({ item, at: Math.random() }))
    .toSorted((a, b) => a.at - b.at)
    .map(({ item }) => item);
}

/** Returns the median and the 99th percentile of each quantity. */
function summary(samples) {
  const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))];
  return Object.fromEntries(
    Object.keys(samples[0]).map((quantity) => {
      const sorted = samples.map((each) => each[quantity]).toSorted((a, b) => a - b);
      return [quantity, { median: quantile(sorted, 0.5), p99: quantile(sorted, 0.99) }];
    }),
  );
}

const stage = await openStage(measure.options);
try {
  const variants = await measure.variants(stage);
  const samples = Object.fromEntries(Object.keys(variants).map((variant) => [variant, []]));
  const ballast = fillUp(measure.residentBytes ?? 0);
  const warmUpRounds = measure.warmUpRounds ?? Math.ceil(rounds / 10);
  for (let round = -warmUpRounds; round < rounds; round++) {
    for (const variant of shuffled(Object.keys(variants))) {
      if (measure.pauseMs) await sleep(measure.pauseMs);
      const took = await sample(variants[variant]);
      if (round >= 0) samples[variant].push(took);
    }
  }
  process.send({
    residentBytes: process.memoryUsage.rss(),
    ballastBytes: ballast.reduce((sum, block) => sum + block.length, 0),
    variants: Object.fromEntries(Object.entries(samples).map(([variant, list]) => [variant, summary(list)])),
  });
} finally {
  await stage.close();
}
process.disconnect();
