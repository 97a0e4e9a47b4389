// Drives real eve agents: installs and builds a project, starts its server,
// talks to it over HTTP, and looks for processes it left behind. The demo and
// the end-to-end tests share it. It knows nothing of node:test and prints
// nothing.

import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { access, cp, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { dirname, join, resolve } from "node:path";
import { setTimeout as delay } from "node:timers/promises";

const here = import.meta.dirname;

/** The repository. */
export const root = resolve(here, "../..");

/** The eve releases the tests run against, each with a lockfile of its own. */
export const eveVersions = ["0.27.13", "0.32.0", "0.44.4", "0.56.0", "0.63.0", "0.64.0", "0.70.3", "0.76.3", "0.80.1"];

/** Whether a release is the given one or newer. */
export function isSince(version, since) {
  const [left, right] = [version, since].map((text) => text.split(".").map(Number));
  const first = left.findIndex((part, index) => part !== right[index]);
  return first < 0 || left[first] > right[first];
}

/** How a release takes a sandbox: as a backend object, or from a provider. */
export function generationOf(eve) {
  return isSince(eve, "0.64.0") ? "provider" : "backend";
}

/** How long an install, a build or a start may take, in milliseconds. */
const stepTimeoutMs = 180_000;
/** How long one turn of a conversation may take, in milliseconds. */
const turnTimeoutMs = 120_000;

/** The calls of eve's own tools, for a message to list. */
export const bash = (command) => ({ name: "bash", input: { command } });
export const read = (filePath) => ({ name: "read_file", input: { filePath } });
export const write = (filePath, content) => ({ name: "write_file", input: { filePath, content } });

/** A message that has the model make these calls, one after another. */
export function scriptOf(text, calls) {
  // eve may join what it says of a message's files to the last line.
  return `${text}\ncalls: ${JSON.stringify(calls)}\n---`;
}

/** Children that are still running, each the leader of its own process group. */
const children = new Set();

/**
 * Kills every process this module started, with its process group. Safe in a
 * signal handler and when nothing runs.
 */
export function endChildren() {
  for (const child of children) killGroup(child, "SIGKILL");
}

/**
 * Ends every process of this module when this one is told to end or ends
 * without having cleaned up; cleanUp, which must be synchronous, is called too.
 */
export function cleanUpAtExit(cleanUp = () => {}) {
  process.once("exit", () => {
    endChildren();
    cleanUp();
  });
  for (const [signal, status] of Object.entries({ SIGHUP: 129, SIGINT: 130, SIGTERM: 143 })) {
    process.once(signal, () => process.exit(status));
  }
}

function killGroup(child, signal) {
  try {
    process.kill(-child.pid, signal);
  } catch (error) {
    if (error.code !== "ESRCH") throw error;
  }
}

/** Starts Node-based tools with this very Node first on PATH. */
function start(command, args, cwd, env = {}) {
  const child = spawn(command, args, {
    cwd,
    // A group of its own, so that nothing of it outlives endChildren().
    detached: true,
    env: {
      ...process.env,
      PATH: `${dirname(process.execPath)}:${process.env.PATH}`,
      EVE_TELEMETRY_DISABLED: "1",
      NO_COLOR: "1",
      ...env,
    },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const output = [];
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding("utf8").on("data", (text) => output.push(text));
  }
  children.add(child);
  const exited = once(child, "exit").finally(() => children.delete(child));
  exited.catch(() => {}); // a child that could not start: whoever waits for it hears
  return { child, exited, output: () => output.join("") };
}

/** Runs a command to its end; a status other than 0 rejects with its output. */
async function complete(command, args, cwd) {
  const run = start(command, args, cwd);
  const timer = setTimeout(() => killGroup(run.child, "SIGKILL"), stepTimeoutMs);
  try {
    const [code, signal] = await run.exited;
    if (code === 0) return run.output();
    throw new Error(`${command} ${args.join(" ")}: ${signal ?? `status ${code}`}\n${run.output()}`);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Polls until check() answers something truthy, and returns that. Rejects
 * after timeoutMs milliseconds with what was waited for.
 */
export async function until(what, check, timeoutMs = 10_000) {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const answer = await check();
    if (answer) return answer;
    if (performance.now() > deadline) throw new Error(`${what}: not within ${timeoutMs} ms`);
    await delay(20);
  }
}

/**
 * The packed package, as `make pack` leaves it in build/, or the file that
 * SANDBOX_BWRAP_TARBALL names.
 */
export async function packedTarball() {
  if (process.env.SANDBOX_BWRAP_TARBALL) return resolve(process.env.SANDBOX_BWRAP_TARBALL);
  const { name, version } = JSON.parse(await readFile(join(root, "package.json"), "utf8"));
  const tarball = join(root, "build", `${name.replace("@", "").replace("/", "-")}-${version}.tgz`);
  await access(tarball).catch((cause) => {
    throw new Error(`${tarball} is not there: run \`make pack\``, { cause });
  });
  return tarball;
}

/** Makes dir an agent project, as layOutProject() does, and builds it. */
export async function prepareProject(options) {
  const project = await layOutProject(options);
  await build(project);
  return project;
}

/**
 * Makes dir an agent project on the given eve release with the packed package
 * in it. node_modules is kept while lockfile and tarball are the same;
 * everything an earlier agent left is removed. The agent is made of layers,
 * folders of agent/ that are copied one over the other.
 */
export async function layOutProject({ dir, eve, tarball, layers = ["base", "full", generationOf(eve)] }) {
  if (Number(process.versions.node.split(".")[0]) < 24) {
    throw new Error(`eve needs Node 24 or newer, this is ${process.version}`);
  }
  await mkdir(dir, { recursive: true });
  await installPackages({ dir, eve, tarball });
  for (const name of await readdir(dir)) {
    if (!["node_modules", "package.json", "package-lock.json", "installed"].includes(name)) {
      await rm(join(dir, name), { recursive: true, force: true });
    }
  }
  const project = { dir, eve };
  for (const layer of layers) await addLayer(project, layer);
  return project;
}

/** Copies a layer of the agent over what a project has; build() makes it count. */
export async function addLayer({ dir }, layer) {
  await cp(join(here, "agent", layer), join(dir, "agent"), { recursive: true });
}

/** Builds a prepared project, a second time if it was built. */
export async function build({ dir }) {
  await complete(process.execPath, ["node_modules/eve/bin/eve.js", "build"], dir);
}

async function installPackages({ dir, eve, tarball }) {
  const locked = join(here, "versions", eve);
  const digest = createHash("sha256");
  for (const file of [join(locked, "package-lock.json"), tarball]) digest.update(await readFile(file));
  const wanted = digest.digest("hex");
  const stamp = join(dir, "installed");
  if ((await readFile(stamp, "utf8").catch(() => "")) === wanted) return;

  await rm(stamp, { force: true });
  await cp(locked, dir, { recursive: true });
  const quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"];
  await complete("npm", ["install", ...quiet, tarball], dir);
  await writeFile(stamp, wanted);
}

/**
 * Starts `eve start` on a free port and waits until it listens.
 *
 * The server has: url; prepared, the line eve printed about its templates; pid
 * of the process that serves; stop(), which sends SIGTERM to the command as a
 * supervisor does, waits for its end and returns [status, signal]; kill(),
 * which sends SIGKILL to the serving process.
 */
export function startServer(project) {
  const options = ["start", "--host", "127.0.0.1", "--port", "0"];
  return serve(project, ["node_modules/eve/bin/eve.js", ...options]);
}

/** Starts `eve dev` without its terminal interface, as startServer() does; with the conversations it had. */
export function startDevServer(project) {
  const options = ["dev", "--no-ui", "--host", "127.0.0.1", "--port", "0"];
  // Its extensions would install packages, for which there may be no network.
  if (isSince(project.eve, "0.80.0")) options.push("--resume", "--no-default-extensions");
  return serve(project, ["node_modules/eve/bin/eve.js", ...options]);
}

/** Starts a project's built server where its `.output` was moved to, without eve's command. */
export async function startMovedServer(project) {
  // eve calls itself at the port it was told, so that 0 will not do.
  return await serve(project, [".output/server/index.mjs"], { HOST: "127.0.0.1", PORT: String(await freePort()) });
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

async function serve(project, args, env) {
  const run = start(process.execPath, args, project.dir, env);
  let ended = false;
  const exited = run.exited.finally(() => (ended = true));
  exited.catch(() => {});

  const url = await until(
    `${args.join(" ")} listens`,
    async () => {
      if (ended) throw new Error(`${args.join(" ")} ended`);
      const found = /(?:server listening at|Listening on:?) (http:\/\/\S+?)\/?\s/i.exec(run.output())?.[1];
      return found && (await fetch(`${found}/eve/v1/health`).catch(() => null))?.ok ? found : null;
    },
    stepTimeoutMs,
  ).catch((error) => {
    killGroup(run.child, "SIGKILL");
    throw new Error(`${error.message}\n${run.output()}`);
  });
  // `eve start` serves from a child; the built server is itself what serves.
  const serving =
    (await descendants(run.child.pid)).find(({ cmdline }) => cmdline.includes("server/index.mjs")) ??
    (await readProcess(run.child.pid));

  return {
    url,
    pid: serving.pid,
    prepared: /initialized .*template.*/.exec(run.output())?.[0] ?? "",
    output: run.output,
    async stop() {
      try {
        await atRest(project);
      } finally {
        run.child.kill("SIGTERM");
        const timer = setTimeout(() => killGroup(run.child, "SIGKILL"), 30_000);
        await exited.finally(() => clearTimeout(timer));
      }
      return await exited;
    },
    async kill() {
      process.kill(serving.pid, "SIGKILL");
      await until("the server is gone", async () => !(await isAlive(serving)));
      run.child.kill("SIGKILL");
      await exited;
    },
  };
}

/**
 * Waits until eve has written down all that its last turn did, which goes on
 * after the turn's last event. A session that is cut off in between may never
 * go on: seen with eve 0.27 and 0.44 at every fifth restart.
 */
async function atRest(project) {
  const data = join(project.dir, ".eve/.workflow-data");
  const list = (folder) => readdir(join(data, folder)).catch(() => []);
  const hasRunning = async (folder, kind) => {
    const names = await list(folder);
    const records = await Promise.all(names.map((name) => readFile(join(data, folder, name), "utf8").catch(() => "")));
    return records.some((record) => record.includes(kind) && record.includes('"status": "running"'));
  };

  let events = -1;
  let since = 0;
  await until("eve is at rest", async () => {
    const { length } = await list("events");
    const open = (await hasRunning("runs", "//turnWorkflow")) || (await hasRunning("steps", "stepId"));
    if (open || length !== events) {
      events = length;
      since = performance.now();
    }
    // What comes between two steps is milliseconds.
    return performance.now() - since > 300;
  });
}

/**
 * Opens a conversation, or one of a session that is there: a subagent's.
 * Nothing is sent before the first message. It outlives its server: give the
 * next one to moveTo().
 */
export function openConversation(server, sessionId) {
  let { url } = server;
  let continuationToken;
  let eventsRead = 0;

  async function post(path, body) {
    const address = `${url}/eve/v1/session${sessionId ? `/${sessionId}` : ""}${path}`;
    const response = await fetch(address, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`${address}: ${response.status} ${await response.text()}`);
    return response.json();
  }

  /** The session's events from where the last turn ended. */
  async function* events() {
    const address = `${url}/eve/v1/session/${sessionId}/stream?startIndex=${eventsRead}`;
    const response = await fetch(address, { signal: AbortSignal.timeout(turnTimeoutMs) });
    if (!response.ok) throw new Error(`${address}: ${response.status} ${await response.text()}`);
    let rest = "";
    for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      for (const line of lines.filter((candidate) => candidate.trim() !== "")) {
        eventsRead++;
        yield JSON.parse(line);
      }
    }
  }

  /** Reads to the end of the running turn. */
  async function turnEnd() {
    const turn = { results: [], text: "", cancelled: false, children: [] };
    for await (const { type, data } of events()) {
      if (type.endsWith(".failed")) throw new Error(`${type}: ${JSON.stringify(data)}`);
      if (type === "turn.cancelled") turn.cancelled = true;
      if (type === "agent.started") turn.children.push(data.sessionId);
      if (type === "message.completed") turn.text = data.message ?? "";
      if (type === "action.result") {
        turn.results.push({ output: data.result.output, isError: data.status !== "completed" });
      }
      if (type !== "session.waiting") continue;
      if (continuationToken) continuationToken = data.continuationToken ?? continuationToken;
      return turn;
    }
    throw new Error(`session ${sessionId}: the stream ended in the middle of a turn`);
  }

  return {
    /** eve's name for the session; none before the first message. */
    get id() {
      return sessionId;
    },
    moveTo(next) {
      url = next.url;
    },
    /**
     * Sends scriptOf() this; files are file parts as eve's HTTP channel takes them.
     * Answers once eve has it; end() is the conversation's.
     */
    async begin(text, calls, files = []) {
      const script = scriptOf(text, calls);
      const message = files.length === 0 ? script : [{ type: "text", text: script }, ...files];
      const answer = await post("", { message, ...(continuationToken && { continuationToken }) });
      sessionId ??= answer.sessionId;
      // Only eve before 0.31 hands one out, and wants the newest one back.
      continuationToken ??= answer.continuationToken;
      return { end: turnEnd };
    },
    /**
     * Waits for the end of the turn that runs or comes next, and returns what
     * it made: results, each tool's output and whether it was an error; text,
     * the model's last words; whether it was cancelled; children, the sessions
     * of the subagents it called.
     */
    end: turnEnd,
    /** begin() and its end, which must be that of a whole turn; returns the results. */
    async say(text, calls, files) {
      const turn = await this.begin(text, calls, files);
      const { results, cancelled } = await turn.end();
      if (cancelled || results.length !== calls.length) {
        throw new Error(`the model made ${results.length} of ${calls.length} calls: ${JSON.stringify(results)}`);
      }
      return results;
    },
    /** Asks eve to cancel the running turn, whose end tells. */
    cancel: () => post("/cancel", {}),
    /** Ends the session for good. */
    reset: () => post("/reset", {}),
  };
}

/** Every process that /proc shows: pid, ppid, start time, command line. */
async function processes() {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const found = await Promise.all(pids.map((pid) => readProcess(Number(pid))));
  return found.filter((candidate) => candidate !== null);
}

async function readProcess(pid) {
  try {
    const stat = await readFile(`/proc/${pid}/stat`, "utf8");
    const cmdline = await readFile(`/proc/${pid}/cmdline`, "latin1");
    // The name in parentheses may hold anything, so count from its end.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    if (fields[0] === "Z" || fields[0] === "X") return null;
    return { pid, ppid: Number(fields[1]), startTime: fields[19], cmdline };
  } catch (error) {
    if (error.code === "ENOENT" || error.code === "ESRCH") return null;
    throw error;
  }
}

async function isAlive({ pid, startTime }) {
  return (await readProcess(pid))?.startTime === startTime;
}

/** The processes whose command line holds the marker. */
export async function markedProcesses(marker) {
  return (await processes()).filter((candidate) => candidate.cmdline.includes(marker));
}

/** The processes whose command line begins with the name, as `exec -a` gives it. */
export async function namedProcesses(name) {
  return (await processes()).filter((candidate) => candidate.cmdline.startsWith(`${name}\0`));
}

/** Every descendant of a process, whatever session or group it moved to. */
export async function descendants(pid) {
  const all = await processes();
  const found = [];
  const queue = [pid];
  while (queue.length > 0) {
    const parent = queue.shift();
    for (const candidate of all.filter((process) => process.ppid === parent)) {
      found.push(candidate);
      queue.push(candidate.pid);
    }
  }
  return found;
}

/** Those of the given processes that still run. */
export async function survivors(list) {
  const alive = await Promise.all(list.map(isAlive));
  return list.filter((_, index) => alive[index]);
}
