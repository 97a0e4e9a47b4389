// Measures what a command costs in the sandbox beside what it costs without
// one, all in one run: on a shared machine only the ratios mean anything.
//
//   node test/bench/run.mjs [--rounds N]
//
// Prints a table, writes build/bench.json and build/bench.svg.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { availableParallelism, release, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { bwrap } from "../../dist/index.js";
import { chart } from "./chart.mjs";
import { sameMounts } from "./same-mounts.mjs";

const { values: options } = parseArgs({ options: { rounds: { type: "string", default: "200" } } });
const rounds = Number(options.rounds);
if (!Number.isSafeInteger(rounds) || rounds < 1) throw new Error(`--rounds ${options.rounds}: a positive whole number`);
const warmUpRounds = Math.ceil(rounds / 10);
const atOnce = 32;

const build = resolve(import.meta.dirname, "../../build");
const scratch = await mkdtemp(join(tmpdir(), "sandbox-bwrap-bench-"));
const workspace = join(scratch, "workspace");
await mkdir(workspace);

/** The environment the sandbox gives a command. */
const environment = (home) => ({
  PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
  HOME: home,
  LANG: "C.UTF-8",
  AI_AGENT: "eve",
});

/** Runs a program as Node does it, with its output collected. */
async function childProcess(file, args, env) {
  const child = spawn(file, args, { cwd: workspace, env, stdio: ["ignore", "pipe", "pipe"] });
  const output = [];
  child.stdout.on("data", (chunk) => output.push(chunk));
  child.stderr.on("data", (chunk) => output.push(chunk));
  const [code] = await once(child, "close");
  if (code !== 0) throw new Error(`${file}: status ${code}\n${Buffer.concat(output)}`);
}

const backend = bwrap({ cacheDir: join(scratch, "cache") });
let sessions = 0;
const newSession = () =>
  backend.create({
    templateKey: null,
    sessionKey: `bench-${sessions++}`,
    runtimeContext: { appRoot: scratch },
  });

async function inSandbox(session) {
  const { exitCode, stderr } = await session.run({ command: "true" });
  if (exitCode !== 0) throw new Error(`run("true"): status ${exitCode}\n${stderr}`);
}
const onHost = () => childProcess("bash", ["-lc", "true"], environment(workspace));
const times = (count, run) => Promise.all(Array.from({ length: count }, run));

const live = await newSession();
const sandboxArgs = await sameMounts(live.session, { workspace, scratch });
const inOwnSandbox = (...more) =>
  childProcess("bwrap", [...sandboxArgs, ...more, "--", "bash", "-lc", "true"], environment("/workspace"));

/** Each case measures ours beside the same work done by Node alone, and by one bwrap per command. */
const cases = {
  live: {
    title: "a command in a live session",
    ours: () => inSandbox(live.session),
    host: onHost,
    bwrapEach: () => inOwnSandbox(),
  },
  first: {
    title: "create() and the first command, deny-all",
    async ours() {
      const handle = await newSession();
      await inSandbox(await handle.useSessionFn({ networkPolicy: "deny-all" }));
      return () => handle.delete();
    },
    host: onHost,
    bwrapEach: () => inOwnSandbox("--unshare-net"),
  },
  many: {
    title: `${atOnce} commands at once in a live session`,
    ours: () => times(atOnce, () => inSandbox(live.session)),
    host: () => times(atOnce, onHost),
    bwrapEach: () => times(atOnce, () => inOwnSandbox()),
  },
};
const variants = ["ours", "host", "bwrapEach"];

/**
 * What a server has in memory beside Node itself: eve's own servers were seen at
 * 175 to 250 MB. Node's child_process copies the page tables of all of it for
 * every child; the launcher does not.
 */
const serverBytes = 150 << 20;
const ballast = [];
cases.server = {
  ...cases.live,
  get title() {
    return `the same in a process of ${Math.round(process.memoryUsage().rss / 1e6)} MB`;
  },
  prepare() {
    ballast.push(Buffer.alloc(serverBytes, 1));
  },
};

/** Times one call in milliseconds; what it returns to clean up is not in it. */
async function time(run) {
  const begun = performance.now();
  const cleanUp = await run();
  const took = performance.now() - begun;
  if (typeof cleanUp === "function") await cleanUp();
  return took;
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

async function measure(name) {
  cases[name].prepare?.();
  const samples = Object.fromEntries(variants.map((variant) => [variant, []]));
  for (let round = -warmUpRounds; round < rounds; round++) {
    for (const variant of shuffled(variants)) {
      const took = await time(cases[name][variant]);
      if (round >= 0) samples[variant].push(took);
    }
  }
  const result = { title: cases[name].title, residentBytes: process.memoryUsage().rss };
  for (const variant of variants) result[variant] = summary(samples[variant]);
  result.ratioToHost = result.ours.medianMs / result.host.medianMs;
  result.ratioToBwrapEach = result.ours.medianMs / result.bwrapEach.medianMs;
  return result;
}

function summary(samples) {
  const sorted = samples.toSorted((a, b) => a - b);
  const quantile = (q) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))];
  return { medianMs: quantile(0.5), p99Ms: quantile(0.99) };
}

const cell = ({ medianMs, p99Ms }) => `${medianMs.toFixed(2)} (${p99Ms.toFixed(1)})`.padStart(16);

function print(result) {
  console.log(
    result.title.padEnd(42) +
      variants.map((variant) => cell(result[variant])).join("") +
      result.ratioToHost.toFixed(2).padStart(9) +
      result.ratioToBwrapEach.toFixed(2).padStart(9),
  );
}

try {
  console.log(`${rounds} rounds, interleaved; median (p99) in ms; ratios of medians, lower is better\n`);
  console.log(
    `${"".padEnd(42)}${"ours".padStart(16)}${"(a) bash".padStart(16)}${"(b) bwrap each".padStart(16)}${"to (a)".padStart(9)}${"to (b)".padStart(9)}`,
  );
  const results = {};
  for (const name of Object.keys(cases)) {
    results[name] = await measure(name);
    print(results[name]);
  }
  const report = {
    node: process.version,
    kernel: release(),
    cores: availableParallelism(),
    uid: process.getuid(),
    rounds,
    results,
  };
  await mkdir(build, { recursive: true });
  await writeFile(join(build, "bench.json"), `${JSON.stringify(report, null, 2)}\n`);
  await writeFile(join(build, "bench.svg"), chart(Object.values(results)));
  console.log(`
(a) Node's child_process runs bash -lc true on the host
(b) Node's child_process runs one bwrap with the same mounts for every command
build/bench.json and build/bench.svg have the numbers`);
} finally {
  await live.shutdown();
  await rm(scratch, { recursive: true, force: true });
}
