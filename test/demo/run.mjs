// Runs a real eve agent in the sandbox and prints what it did, so that a
// person can follow. Ends with status 0 only when every step held.

import { randomUUID } from "node:crypto";
import { rmSync } from "node:fs";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  cleanUpAtExit,
  descendants,
  endChildren,
  markedProcesses,
  openConversation,
  packedTarball,
  prepareProject,
  startServer,
  survivors,
  until,
} from "../e2e/driver.mjs";

const eve = "0.44.4";
const url = "http://127.0.0.1:8000/primes.txt";
// In the command line of what the model leaves running, to find it on the host.
const marker = `demo-${randomUUID()}`;

const coloured = process.stdout.isTTY && !process.env.NO_COLOR;
const paint = (code) => (text) => (coloured ? `\x1b[${code}m${text}\x1b[0m` : text);
const [bold, dim, green, red] = [1, 2, 32, 31].map(paint);

const bash = (command) => ({ name: "bash", input: { command } });

let steps = 0;
/** Begins a step of the transcript. */
function step(title) {
  steps++;
  console.log(`\n${bold(`${String(steps).padStart(2)}  ${title}`)}`);
}

/** Prints what somebody said, each line under the other. */
function line(who, text) {
  for (const [index, part] of text.trimEnd().split("\n").entries()) {
    console.log(`    ${dim((index === 0 ? who : "").padEnd(6))} ${part}`);
  }
}

/** States a fact that must hold; the demo ends with the first that does not. */
function held(holds, fact, seen = "") {
  if (holds) return console.log(`    ${green("✓")} ${fact}`);
  throw new Error(`${fact}: it is not so${seen && `\n${seen}`}`);
}

/** One message and the model's calls, printed as they went. Returns the tools' outputs. */
async function say(conversation, text, calls) {
  line("you", text);
  const results = await conversation.say(text, calls);
  for (const [index, { output }] of results.entries()) {
    const { name, input } = calls[index];
    line("model", name === "bash" ? `${name}: ${input.command}` : `${name}: ${Object.values(input).join("\n")}`);
    const shown = typeof output?.stdout === "string" ? output.stdout + output.stderr : JSON.stringify(output);
    line("tool", shown.trim() === "" ? dim("(no output)") : shown);
    if (output?.exitCode) line("", `exit code ${output.exitCode}`);
  }
  return results.map(({ output }) => output);
}

/** A program that prints the primes below 60, for whatever language the sandbox has. */
function primes(has) {
  if (has("python3")) {
    return {
      path: "/workspace/primes.py",
      content: "print(*[n for n in range(2, 60) if all(n % d for d in range(2, n))])\n",
      command: "python3 primes.py",
    };
  }
  if (has("gcc")) {
    return {
      path: "/workspace/primes.c",
      content: `#include <stdio.h>
int main(void) {
  for (int n = 2, d; n < 60; n++) {
    for (d = 2; d < n && n % d; d++);
    if (d == n) printf("%d%c", n, n == 59 ? '\\n' : ' ');
  }
}
`,
      command: "gcc -o /tmp/primes primes.c && /tmp/primes",
    };
  }
  throw new Error("the host has neither python3 nor gcc for the sandbox to run");
}

/** A command that serves /workspace on port 8000 of the session's own loopback. */
function serve(has) {
  const program = has("python3")
    ? "python3 -m http.server 8000 --bind 127.0.0.1"
    : `${process.execPath} -e 'require("http").createServer((q, r) => require("fs")
  .createReadStream("/workspace" + q.url).pipe(r)).listen(8000, "127.0.0.1")'`;
  return `(exec -a ${marker} ${program}) >server.log 2>&1 &`;
}

/** A command that fetches url once it answers, within ten seconds. */
function fetchIt(has) {
  const once = has("curl")
    ? `curl -sf ${url}`
    : `(exec 3<>/dev/tcp/127.0.0.1/8000 && printf 'GET /primes.txt HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3) 2>/dev/null`;
  return `for _ in $(seq 100); do ${once} && exit; sleep 0.1; done; exit 1`;
}

let server;
async function demo(dir) {
  const tarball = await packedTarball();
  console.log(`eve ${eve}, Node ${process.version}, ${tarball.split("/").at(-1)}`);

  step("An agent is installed and built");
  const project = await prepareProject({ dir, eve, tarball });
  held(true, "npm install and eve build went through");

  step("Its server starts, and builds the sandbox's template first");
  server = await startServer(project);
  line("eve", server.prepared);
  held(server.prepared.includes("1 built"), `it listens on ${server.url}`, server.output());
  const conversation = openConversation(server);

  step("A session begins with what its author put there");
  const [files, skill, tools] = await say(conversation, "What do you have to work with?", [
    bash("id -un; pwd; cat seed.txt bootstrap.txt session.txt"),
    bash('cat "$HOME"/.agents/skills/greeting/SKILL.md'),
    bash("command -v python3 gcc curl; true"),
  ]);
  held(files.stdout.includes("hello from the seed"), "the seeded file");
  held(files.stdout.includes("built on a seed"), "what bootstrap made");
  held(files.stdout.includes("a new session began"), "what onSession wrote");
  held(skill.stdout.includes("good morning"), "the skill");
  const has = (tool) => tools.stdout.includes(`/${tool}\n`);

  step("The model writes a program and runs it with the host's own tools");
  const program = primes(has);
  const [, ran] = await say(conversation, "List the primes below 60.", [
    { name: "write_file", input: { filePath: program.path, content: program.content } },
    bash(`${program.command} | tee primes.txt`),
  ]);
  const expected = "2 3 5 7 11 13 17 19 23 29 31 37 41 43 47 53 59\n";
  held(ran.exitCode === 0 && ran.stdout === expected, "a real binary ran and its output is right");

  step("It leaves a server running, and the next command reaches it");
  const [left, fetched] = await say(conversation, "Serve the result, then fetch it.", [
    bash(serve(has)),
    bash(fetchIt(has)),
  ]);
  held(left.exitCode === 0, "the first command ended, its server did not");
  held(fetched.exitCode === 0 && fetched.stdout.includes(expected), "the next command fetched the file");
  held((await markedProcesses(marker)).length === 1, "one process on the host is that server");

  step("The sandbox ends at its walls");
  const eveAddress = `127.0.0.1/${new URL(server.url).port}`;
  const [outside, secrets, tree] = await say(conversation, "Look outside.", [
    bash(`exec 3<>/dev/tcp/${eveAddress}`),
    { name: "read_file", input: { filePath: join(dir, "package.json") } },
    bash("grep -E 'CapEff|NoNewPrivs' /proc/self/status; ls -d /proc/[0-9]* | wc -l"),
  ]);
  held(outside.exitCode !== 0, "deny-all: eve's own port is out of reach");
  held(!JSON.stringify(secrets).includes('"eve"'), "the agent's own files are not there");
  held(
    /CapEff:\s+0+\n/.test(tree.stdout) && /NoNewPrivs:\s+1\n/.test(tree.stdout),
    "no capabilities, no way to new ones",
  );

  step("eve's server is told to end, and nothing is left");
  const processes = await descendants(server.pid);
  line("host", `${processes.length} processes run below eve's server: SIGTERM`);
  await server.stop();
  await until(
    "every process of the sandbox ended",
    async () => (await survivors(processes)).length + (await markedProcesses(marker)).length === 0,
    2_000,
  );
  held(true, "no process of the sandbox survived");

  step("It starts again, and the same conversation goes on");
  server = await startServer(project);
  line("eve", server.prepared);
  held(server.prepared.includes("1 reused"), "the template is reused", server.output());
  conversation.moveTo(server);
  const [again] = await say(conversation, "Do you still have the primes?", [bash("cat primes.txt")]);
  held(again.stdout === expected, "the file is still there");
  await server.stop();
}

const began = performance.now();
const dir = await mkdtemp(join(tmpdir(), "sandbox-bwrap-demo-"));

cleanUpAtExit(() => rmSync(dir, { recursive: true, force: true, maxRetries: 10 }));

try {
  await demo(dir);
  console.log(`\n${green("Every step held")} in ${((performance.now() - began) / 1000).toFixed(0)} s.`);
} catch (error) {
  console.log(`    ${red("✗")} ${error.message}`);
  if (server) line("eve", server.output());
  process.exitCode = 1;
} finally {
  endChildren();
}
