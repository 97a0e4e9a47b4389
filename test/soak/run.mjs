// Keeps one Node process under load and then asserts that nothing of it is left:
// no process, descriptor, goroutine or memory, and that the events add up.
//
//   node --expose-gc --max-semi-space-size=1 test/soak/run.mjs [--seed N] [--scale F]
//
// Ends with 1 and what failed if anything is. The scale makes it shorter, for a
// look; the seed, which is printed, decides what is run and when it is aborted.
// The young generation of V8, which grows by 16 MB on the way, is kept small so
// that it does not hide what else grows.

import { randomInt, randomUUID } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: { seed: { type: "string", default: String(randomInt(2 ** 31)) }, scale: { type: "string", default: "1" } },
});
const scale = Number(options.scale);
const [short, aborted, timedOut] = [10_000, 1_000, 200].map((n) => Math.ceil(n * scale));
const atOnce = 64;
const rounds = 5;
const MB = 2 ** 20;

/** What may be left is nothing; these bound what may grow. */
const limits = { rssBytes: 8 * MB, initRssBytes: 8 * MB, threads: 64 };

// Mulberry32: small, and the same numbers everywhere.
let state = Number(options.seed);
function random() {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}
const pick = (list) => list[Math.floor(random() * list.length)];

// The build with the exports that only tests have, one of which counts goroutines.
// Its requests have numbers of their own on the one line to the core.
const addonPath = resolve(import.meta.dirname, "../../build/test/intact/sandbox.node");
process.env.SANDBOX_BWRAP_NATIVE = addonPath;
const addon = createRequire(import.meta.url)(addonPath);
const openCore = addon.open;
const own = new Map();
let nextOwn = 2 ** 50;
addon.open = (onReply) =>
  openCore((call, json, data) => {
    if (!own.has(call)) return onReply(call, json, data);
    own.get(call)(JSON.parse(json).ok);
    own.delete(call);
  });
const census = () =>
  new Promise((resolve) => {
    const call = nextOwn++;
    own.set(call, resolve);
    addon.testCensus(call, "{}");
  });
const { bwrap, SandboxError } = await import("../../dist/index.js");

// --- The load -----------------------------------------------------------------

const marker = `SOAK_${randomUUID().replaceAll("-", "")}`;
const env = { [marker]: "1" };
const scratch = mkdtempSync(join(tmpdir(), "sandbox-bwrap-soak-"));
const failures = [];
const fail = (message) => {
  if (failures.length < 20) failures.push(message);
};

const events = { started: 0, finished: {}, alive: new Set(), most: 0 };
function onEvent(event) {
  if (event.type === "command.started") {
    events.started++;
    if (events.alive.has(event.commandId)) fail(`${event.commandId} was started twice`);
    events.alive.add(event.commandId);
  } else if (event.type === "command.finished") {
    events.finished[event.reason] = (events.finished[event.reason] ?? 0) + 1;
    if (!events.alive.delete(event.commandId)) fail(`${event.commandId} was finished and had not been started`);
  } else if (event.type === "generation.started") {
    events.generations = (events.generations ?? 0) + 1;
    return;
  } else {
    return;
  }
  events.most = Math.max(events.most, event.liveProcesses);
  if (event.liveProcesses !== events.alive.size) {
    fail(`${event.type} tells of ${event.liveProcesses} live processes, there are ${events.alive.size}`);
  }
}

const cacheDir = join(scratch, "cache");
const open = (backend) =>
  backend.create({ templateKey: null, sessionKey: "soak", runtimeContext: { appRoot: scratch } });
const handle = await open(bwrap({ cacheDir, onEvent }));
// The same sandbox, with a time limit.
const limitedHandle = await open(bwrap({ cacheDir, onEvent, runTimeoutMs: 250 }));
const [session, limited] = [handle.session, limitedHandle.session];

/**
 * Short scripts, with the exit code and the number of bytes of stdout that each has.
 * Not many bytes: how V8 and malloc fare with large ones would drown what may leak.
 */
const scripts = [
  ["true", 0, 0],
  ["exit 3", 3, 0],
  ["kill -9 $$", 137, 0],
  ["echo out; echo err >&2", 0, 4],
  ["echo $$ | cat | wc -l", 0, 2],
  ["(setsid true &); (setsid sh -c 'true & true' &); true", 0, 0],
  ["head -c 2000 /dev/zero", 0, 2000],
];
/** Trees that nothing but us ends. */
const endless = [
  "sleep 1000",
  "trap '' TERM INT HUP; (setsid sleep 1000 &); (setsid bash -c 'sleep 1000; true' &); sleep 1000; true",
  "while :; do (true &); done",
  "kill -STOP $$; sleep 1000",
  "yes | head -c 100000; sleep 1000",
];
const outcomes = { exit: 0, abort: 0, timeout: 0, killed: 0 };

async function runShort() {
  const [command, exitCode, bytes] = pick(scripts);
  let result;
  if (random() < 0.1) {
    const process = await session.spawn({ command, env });
    const stdout = await new Response(process.stdout).arrayBuffer();
    result = { exitCode: (await process.wait()).exitCode, stdout: { length: stdout.byteLength } };
  } else {
    result = await session.run({ command, env });
  }
  outcomes.exit++;
  if (result.exitCode !== exitCode || result.stdout.length !== bytes) {
    fail(`${command}: exit code ${result.exitCode}, ${result.stdout.length} bytes`);
  }
}

async function runAborted() {
  const controller = new AbortController();
  const reason = new Error("enough");
  const command = random() < 0.7 ? pick(endless) : pick(scripts)[0];
  // While it waits, starts, runs, and after its end: how long that takes depends on the host.
  const timer = setTimeout(() => controller.abort(reason), random() ** 2 * 600);
  try {
    await session.run({ command, env, abortSignal: controller.signal });
    outcomes.exit++; // it was faster
  } catch (error) {
    if (error !== reason) fail(`aborted ${command}: ${error}`);
    outcomes.abort++;
  }
  clearTimeout(timer);
}

async function runTimedOut() {
  const command = pick(endless);
  try {
    await limited.run({ command, env });
    fail(`${command}: it did not time out`);
  } catch (error) {
    if (!(error instanceof SandboxError) || error.code !== "ERR_TIMEOUT") fail(`timed out ${command}: ${error}`);
    outcomes.timeout++;
  }
}

async function runKilled() {
  const process = await session.spawn({ command: "sleep 1000", env });
  await process.kill();
  outcomes.killed++;
  const { exitCode } = await process.wait();
  if (exitCode !== 137) fail(`killed: exit code ${exitCode}`);
}

/** Runs jobs, as many at once as the sandbox takes. */
async function load(jobs) {
  const next = jobs[Symbol.iterator]();
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      for (let job = next.next(); !job.done; job = next.next()) {
        await job.value().catch((error) => fail(`${job.value.name}: ${error?.stack ?? error}`));
      }
    }),
  );
}

function jobs(part) {
  const list = [
    ...Array(Math.ceil(short / part)).fill(runShort),
    ...Array(Math.ceil(aborted / part)).fill(runAborted),
    ...Array(Math.ceil(timedOut / part)).fill(runTimedOut),
    ...Array(Math.ceil(aborted / part / 10)).fill(runKilled),
  ];
  for (let i = list.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [list[i], list[j]] = [list[j], list[i]];
  }
  return list;
}

// --- What is there ------------------------------------------------------------

const text = (path) => {
  try {
    return readFileSync(path, "latin1");
  } catch {
    return "";
  }
};
const number = (status, field) => Number(status.match(new RegExp(`^${field}:\\s+(\\d+)`, "m"))?.[1] ?? NaN);
const descriptors = (pid) => {
  try {
    return readdirSync(`/proc/${pid}/fd`).length;
  } catch {
    return undefined; // init shows its own to root alone
  }
};

/** All processes under one, by what the kernel has as their parents. */
function descendants(of) {
  const all = readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map((name) => ({ pid: Number(name), stat: text(`/proc/${name}/stat`) }))
    .filter(({ stat }) => stat !== "")
    .map(({ pid, stat }) => {
      const [state, parent] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
      return { pid, state, parent: Number(parent), name: stat.slice(stat.indexOf("(") + 1, stat.lastIndexOf(")")) };
    });
  const found = [];
  for (let layer = [of]; layer.length > 0;) {
    const children = all.filter(({ parent }) => layer.includes(parent));
    found.push(...children);
    layer = children.map(({ pid }) => pid);
  }
  return found;
}

/** Processes on the host that come from one of the commands, whoever is their parent. */
const marked = () =>
  readdirSync("/proc").filter((name) => /^\d+$/.test(name) && text(`/proc/${name}/environ`).includes(marker));

async function measure() {
  const tree = descendants(process.pid);
  // The session's sandbox, and for a while one that is kept ready for the next session.
  const bwraps = tree.filter(({ parent }) => parent === process.pid);
  const inits = tree.filter(({ parent }) => bwraps.some(({ pid }) => pid === parent));
  const most = (list, of) => list.map(of).reduce((a, b) => (a === undefined || b > a ? b : a), undefined);
  const status = text("/proc/self/status");
  const ofInits = (field) => most(inits, ({ pid }) => number(text(`/proc/${pid}/status`), field));
  return {
    processes: tree.length,
    zombies: tree.filter(({ state }) => state === "Z").length,
    marked: marked().length,
    descriptors: descriptors("self"),
    bwrapDescriptors: most(bwraps, ({ pid }) => descriptors(pid)),
    initDescriptors: most(inits, ({ pid }) => descriptors(pid)),
    ...(await census()),
    threads: number(status, "Threads"),
    initThreads: ofInits("Threads"),
    rssBytes: number(status, "VmRSS") * 1024,
    jsHeapBytes: process.memoryUsage().heapTotal,
    initRssBytes: ofInits("VmRSS") * 1024,
  };
}

/** What there is once it does not get less any more: much ends a moment after its answer. */
async function settled() {
  let least = await measure();
  for (let quiet = 0; quiet < 10;) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    globalThis.gc?.();
    const now = await measure();
    const less = Object.keys(now).some((key) => !key.endsWith("Bytes") && now[key] < least[key]);
    quiet = less ? 0 : quiet + 1;
    least = now;
  }
  // init gives the marks of exited commands back once some thirty have come together.
  for (let i = 0; i < 40; i++) {
    await session.run({ command: "true", env });
    outcomes.exit++;
    const { initDescriptors } = await measure();
    least.initDescriptors = Math.min(least.initDescriptors ?? initDescriptors, initDescriptors) || undefined;
  }
  return least;
}

// --- The run ------------------------------------------------------------------

const began = Date.now();
console.log(
  `soak: ${short} short, ${aborted} aborted, ${timedOut} timed out, ${atOnce} at once, as uid ${process.getuid()}, seed ${options.seed}`,
);

// The search for what is left has to find what is there.
const probe = await session.spawn({ command: "sleep 1000; true", env });
while (!marked().length) await new Promise((resolve) => setTimeout(resolve, 10));
await probe.kill();
outcomes.killed++;

const samples = [];
let threads = 0;
const watch = setInterval(() => {
  threads = Math.max(threads, number(text("/proc/self/status"), "Threads"));
}, 50);
await load(jobs(25));
samples.push({ after: "the warm-up", ...(await settled()) });
for (let round = 1; round <= rounds; round++) {
  await load(jobs(rounds));
  samples.push({ after: `${(short * round) / rounds} short`, ...(await settled()) });
}
clearInterval(watch);

const show = (value, key) => (key.endsWith("Bytes") && value !== undefined ? `${(value / MB).toFixed(1)} MB` : value);
console.table(
  samples.map((sample) =>
    Object.fromEntries(Object.entries(sample).map(([k, v]) => [k.replace("Bytes", ""), show(v, k)])),
  ),
);

const [first, last] = [samples[1], samples.at(-1)];
for (const key of ["processes", "descriptors", "bwrapDescriptors", "initDescriptors", "goroutines"]) {
  // init has always some in its hands: the next mark, or the last command's.
  const passing = key === "initDescriptors" ? 4 : 0;
  const least = Math.min(...samples.map((sample) => sample[key]));
  if (last[key] > least + passing) fail(`${key}: ${last[key]} at the end, and ${least} before`);
}
for (const key of ["zombies", "marked"]) if (last[key] !== 0) fail(`${key}: ${last[key]} at the end`);
for (const key of ["rssBytes", "initRssBytes"]) {
  if (!(last[key] - first[key] <= limits[key])) {
    fail(
      `${key}: ${show(first[key], key)} after a fifth, ${show(last[key], key)} at the end, more than ${show(limits[key], key)} above`,
    );
  }
}
if (threads > limits.threads) fail(`threads: at most ${threads}, more than ${limits.threads}`);

await limitedHandle.shutdown();
await handle.shutdown();
for (let wait = 0; descendants(process.pid).length > 0; wait++) {
  if (wait === 50) fail(`${descendants(process.pid).length} processes outlive the sandbox`);
  if (wait === 50) break;
  await new Promise((resolve) => setTimeout(resolve, 100));
}
const finished = Object.values(events.finished).reduce((a, b) => a + b, 0);
if (events.started !== finished || events.alive.size !== 0) {
  fail(`${events.started} started, ${finished} finished, ${events.alive.size} alive`);
}
if (events.generations !== 1) fail(`${events.generations} sandboxes: none should have had to be ended`);
// A command that was aborted, or had no time left, before it started is told of by
// nobody; and the abort of one may overtake the news of its exit.
const told = (reason) => events.finished[reason] ?? 0;
const overtaken = told("exit") - outcomes.exit;
if (overtaken < 0 || told("abort") + overtaken > outcomes.abort) fail("events of exit and abort do not add up");
if (told("timeout") > outcomes.timeout) fail(`${outcomes.timeout} commands timed out, ${told("timeout")} events`);
if (told("killed") !== outcomes.killed) fail(`${outcomes.killed} commands were killed, ${told("killed")} events`);
for (const reason of Object.keys(events.finished)) {
  if (outcomes[reason] === undefined) fail(`${told(reason)} commands ended by ${reason}`);
}
console.log(
  "commands:",
  outcomes,
  "events:",
  { started: events.started, ...events.finished, mostLive: events.most },
  `threads at most ${threads}`,
);

rmSync(scratch, { recursive: true, force: true });
console.log(
  `soak: ${((Date.now() - began) / 1000).toFixed(0)} s, ${failures.length === 0 ? "nothing is left" : "failed"}`,
);
for (const failure of failures) console.error(`  ${failure}`);
process.exitCode = failures.length === 0 ? 0 : 1;
