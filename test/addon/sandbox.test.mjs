// Processes with a real sandbox: however they end, nothing of it is left.

import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { randomInt, randomUUID } from "node:crypto";
import { after, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import assert from "node:assert/strict";
import { clean, play } from "./native.mjs";

const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "sbx-addon-"));
after(() => fs.rmSync(scratch, { recursive: true, force: true }));

/** A project directory of its own. */
const project = () => fs.mkdtempSync(path.join(scratch, "app-"));

function read(file) {
  try {
    return fs.readFileSync(file, "utf8");
  } catch {
    return "";
  }
}

/** All processes of this machine: pid, parent, start time, command line. Zombies are none. */
function processes() {
  return fs
    .readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map((pid) => {
      const fields = read(`/proc/${pid}/stat`).split(") ").at(-1).split(" ");
      const command = read(`/proc/${pid}/cmdline`).replaceAll("\0", " ").trim();
      return { pid, state: fields[0], parent: fields[1], start: fields[19], command };
    })
    .filter(({ state }) => state !== "" && state !== "Z" && state !== "X");
}

/** Everything that descends from a process, the way it stands. */
function descendants(pid) {
  const all = processes();
  const found = new Set([String(pid)]);
  for (let size = 0; size !== found.size;) {
    size = found.size;
    for (const process of all) {
      if (found.has(process.parent)) {
        found.add(process.pid);
      }
    }
  }
  found.delete(String(pid));
  return all.filter((process) => found.has(process.pid));
}

/** Waits up to two seconds for the end of what is marked or listed; returns what is left. */
async function survivors(marker, listed) {
  const known = new Set(listed.map(({ pid, start }) => `${pid} ${start}`));
  let left;
  for (const end = Date.now() + 2000; ; await delay(20)) {
    left = processes().filter(
      ({ pid, start, command }) => known.has(`${pid} ${start}`) || (marker !== undefined && command.includes(marker)),
    );
    if (left.length === 0 || Date.now() > end) {
      return left;
    }
  }
}

const newMarker = () => `sbx-${randomUUID()}`;

const ways = {
  natural: { code: 0, signal: null },
  exit: { code: 7, signal: null },
  throw: { code: 1, signal: null },
  SIGTERM: { code: null, signal: "SIGTERM" },
  SIGKILL: { code: null, signal: "SIGKILL" },
  terminate: { code: 0, signal: null },
};
const shared = { open: 0, live: 1, running: 1, streaming: 1, starting: 0, stopped: 0 };
// Nothing is live between two commands that each have a sandbox.
const alone = { running: 1, streaming: 1, starting: 0 };
const all = [
  ["session", shared],
  ["command", alone],
].flatMap(([processes, states]) =>
  Object.entries(states).flatMap(([state, atLeast]) =>
    Object.entries(ways).map(([way, expected]) => ({ processes, state, atLeast, way, expected })),
  ),
);

for (const { processes, state, atLeast, way, expected } of all) {
  test(`a process whose session is ${state} ends by ${way}, processes: "${processes}"`, async () => {
    const marker = newMarker();
    let before = [];
    const { code, signal, stdout, stderr } = await play("session", {
      args: [state, way, marker, project(), processes],
      during: (child) => {
        before = descendants(child.pid);
        if (way.startsWith("SIG")) {
          child.kill(way);
        } else {
          child.send("go");
        }
      },
    });
    assert.deepEqual({ code, signal, stdout }, { ...expected, stdout: "" }, stderr);
    assert.match(stderr, way === "throw" ? /Error: on purpose/ : /^$/);
    assert.ok(before.length >= atLeast, "there was no sandbox to end");
    assert.deepEqual(await survivors(marker, before), []);
  });
}

test("Node killed while it starts thirty commands: none is left of hundreds", async (context) => {
  const left = [];
  const markers = [];
  let rounds = 0;
  let commands = 0;
  for (let round = 0; round < 12; round++) {
    const marker = newMarker();
    let before = [];
    const { signal } = await play("burst", {
      args: [marker, project(), ["live", "cold", "command"][round % 3]],
      during: async (child) => {
        child.send("go");
        await delay(randomInt(81));
        before = descendants(child.pid);
        child.kill("SIGKILL");
      },
    });
    assert.equal(signal, "SIGKILL");
    left.push(...(await survivors(marker, before)));
    markers.push(marker);
    rounds += before.length > 0 ? 1 : 0;
    commands += before.filter(({ command }) => command.includes(marker)).length;
  }
  // A straggler may have been on its way when the others were gone.
  left.push(...processes().filter(({ command }) => markers.some((marker) => command.includes(marker))));
  assert.deepEqual(left, []);
  assert.ok(rounds >= 4 && commands > 0, `${rounds} sandboxes, ${commands} commands to kill`);
  context.diagnostic(`killed ${rounds} sandboxes with ${commands} commands`);
});

test("a thousand sessions opened and closed leave no descriptor", async () => {
  assert.deepEqual(await play("cycles", { args: [project()], timeoutMs: 300_000 }), clean);
});

test("a process that nobody holds is collected, and lives on", async () => {
  assert.deepEqual(await play("forgotten", { args: [project()], execArgv: ["--expose-gc"] }), clean);
});

test("a sandbox ends with the last environment that uses it, not with the one that started it", async () => {
  assert.deepEqual(await play("worker-generation", { args: [project()] }), clean);
});
