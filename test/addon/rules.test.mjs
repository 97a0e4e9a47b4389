// The five rules that keep two runtimes in one process (src/addon.cc). Each test
// was seen to fail with its rule broken: test/rules/native.mjs does that again.

import { fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { test } from "node:test";
import assert from "node:assert/strict";
import { clean, play } from "./native.mjs";

for (const first of ["main", "worker"]) {
  test(`rule 1: children of Node and Go end under load, loaded first by the ${first}`, async () => {
    assert.deepEqual(await play("sigchld", { args: [first] }), clean);
  });
}

test("rule 1: SIGCHLD stays on the alternate stack, whichever watchers come and go", async () => {
  assert.deepEqual(await play("sigchld-action"), clean);
});

test("rule 1: SIGCHLD hits the threads of Go under load", async () => {
  assert.deepEqual(await play("aimed", { args: ["17"] }), clean);
});

test("rule 1: the SIGCHLD watcher that nobody reads never fills up anything that counts", async () => {
  assert.deepEqual(await play("sigchld-count"), clean);
});

test("rule 2: an application's own signal handler survives a storm under load", async () => {
  const sender = fileURLToPath(new URL("scenarios/signal-sender.mjs", import.meta.url));
  const ends = [];
  const result = await play("user-signal", {
    during: (child) => {
      for (let i = 0; i < 2; i++) {
        ends.push(once(fork(sender, [String(child.pid)]), "exit"));
      }
    },
  });
  await Promise.all(ends);
  assert.deepEqual(result, clean);
});

test("rule 2: an application's signal is aimed at the threads of Go under load", async () => {
  assert.deepEqual(await play("aimed", { args: ["12"] }), clean);
});

test("rule 2: the threads of Go block every asynchronous signal that Go lets them", async () => {
  const { code, stdout } = await play("thread-masks");
  assert.equal(code, 0);
  const masks = JSON.parse(stdout);
  assert.ok(masks.length >= 3, `only ${masks.length} threads`);
  // HUP INT QUIT USR1 USR2 PIPE ALRM TERM TSTP TTIN TTOU URG XCPU XFSZ VTALRM WINCH IO PWR
  // and the real-time ones; Go keeps CHLD and PROF open, glibc 32 and 33.
  const signals = [1, 2, 3, 10, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30, 40, 64];
  for (const mask of masks) {
    const open = signals.filter((n) => ((BigInt(`0x${mask}`) >> BigInt(n - 1)) & 1n) === 0n);
    assert.deepEqual(open, [], `a thread with mask ${mask}`);
  }
});

test("rule 3: what a Worker started outlives the Worker's thread", async () => {
  assert.deepEqual(await play("worker-fork"), clean);
});

test("rule 3: a child starts with no signal blocked, ignored or handled, and no descriptor", async () => {
  const { code, stdout } = await play("child-mask");
  assert.equal(code, 0);
  const none = "0000000000000000";
  assert.match(stdout, new RegExp(`^SigBlk:\\s+${none}\nSigIgn:\\s+${none}\nSigCgt:\\s+${none}\n`));
  assert.deepEqual(stdout.trim().split("\n").slice(3), ["0", "1", "2"]);
});

test("rule 4: Workers end with replies on their way", async () => {
  assert.deepEqual(await play("worker-terminate", { args: ["late"] }), clean);
});

test("rule 4: Workers end while they load the addon", async () => {
  assert.deepEqual(await play("worker-terminate", { args: ["early"] }), clean);
});

for (const where of ["export", "goroutine"]) {
  test(`rule 5: a panic in the ${where} is an error, Node lives and nothing is written`, async () => {
    assert.deepEqual(await play("panic", { args: [where] }), clean);
  });
}
