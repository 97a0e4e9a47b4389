import assert from "node:assert/strict";

import type { BwrapSandboxEvent } from "../../../lib/index.ts";
import { nap, until } from "../host.ts";
import { code, output } from "../place.ts";
import type { Cases } from "../suite.ts";

type Finished = Extract<BwrapSandboxEvent, { type: "command.finished" }>;

/** The ends of commands. */
export const finishedOf = (events: readonly BwrapSandboxEvent[]): Finished[] =>
  events.filter((event): event is Finished => event.type === "command.finished");

/** Events travel by themselves: they may come after the answer that they belong to. */
const arrived = (events: readonly BwrapSandboxEvent[], finished: number) =>
  until(`${finished} commands are told to have finished`, () => finishedOf(events).length >= finished);

/** A command may be alive before this process knows that it has started. */
const begun = (events: readonly BwrapSandboxEvent[], started: number) =>
  until(
    `${started} commands are told to have started`,
    () => events.filter(({ type }) => type === "command.started").length >= started,
  );

/** Every command that started has finished, once, and afterwards. */
function checkPairs(events: readonly BwrapSandboxEvent[]): void {
  const alive = new Set<string>();
  const seen = new Set<string>();
  for (const event of events) {
    assert.equal(new Date(event.timestamp).toISOString(), event.timestamp);
    assert.match(event.sessionId, /^\w/);
    assert.match(event.generationId, /^\w/);
    if (event.type === "command.started") {
      assert.ok(!seen.has(event.commandId), "a command started twice");
      seen.add(event.commandId);
      alive.add(event.commandId);
    }
    if (event.type === "command.finished") {
      assert.ok(alive.delete(event.commandId), "a command finished that had not started, or twice");
    }
  }
  assert.deepEqual([...alive], []);
}

/** The pairs of commands, and of every sandbox: it starts once, ends once, and its commands lie between. */
export function checkAddsUp(events: readonly BwrapSandboxEvent[]): void {
  checkPairs(events);
  for (const id of new Set(events.map(({ generationId }) => generationId))) {
    const types = events.filter(({ generationId }) => generationId === id).map(({ type }) => type);
    assert.equal(types[0], "generation.started");
    assert.equal(types.at(-1), "cleanup.completed");
    for (const once of ["generation.started", "cleanup.started", "cleanup.completed"]) {
      assert.equal(types.filter((type) => type === once).length, 1, `${once} of ${id}: ${types.join(" ")}`);
    }
  }
}

export const events: Cases = {
  "a run: the sandbox starts, the command starts and finishes, with its code": async ({ open, watch, factory }) => {
    const { events, onEvent } = watch();
    const input = { key: "tagged", tags: { agent: "a", sessionId: "s" } };
    const { session, stop } = await open({ onEvent }, input);
    await session.run({ command: "echo out; printf error >&2; exit 3" });
    await arrived(events, 1);
    assert.deepEqual(
      events.map(({ type }) => type),
      ["generation.started", "command.started", "command.finished"],
    );
    const { reason, exitCode, liveProcesses, durationMs } = finishedOf(events)[0]!;
    assert.deepEqual({ reason, exitCode, liveProcesses }, { reason: "exit", exitCode: 3, liveProcesses: 0 });
    assert.ok(durationMs >= 0);
    await session.run({ command: "true" });
    await stop();
    await arrived(events, 2);
    await until("the clean-up is told", () => events.at(-1)?.type === "cleanup.completed");
    for (const event of events) assert.deepEqual(event.tags, factory.tagsOf(input));
    assert.equal(new Set(events.map((event) => event.generationId)).size, 1);
    checkPairs(events);
  },

  "the end of a run tells how much it has written": async ({ open, watch }) => {
    const { events, onEvent } = watch();
    const { session } = await open({ onEvent });
    await session.run({ command: "echo out; printf error >&2" });
    await arrived(events, 1);
    const { stdoutBytes, stderrBytes } = finishedOf(events)[0]!;
    assert.deepEqual({ stdoutBytes, stderrBytes }, { stdoutBytes: 4, stderrBytes: 5 });
  },

  "the end of a command tells its processor time and its peak of memory": async ({ open, watch }) => {
    const { events, onEvent } = watch();
    const { session } = await open({ onEvent });
    await session.run({ command: "true" });
    await session.run({ command: "for ((i = 0; i < 300000; i++)); do :; done" });
    await session.run({ command: "head -c 64000000 /dev/zero | tail -c 64000000 | wc -c" });
    await arrived(events, 3);
    const [quick, busy, large] = finishedOf(events);
    assert.ok(Number.isSafeInteger(quick!.cpuMs) && quick!.cpuMs! < busy!.cpuMs!, `${quick!.cpuMs} ${busy!.cpuMs}`);
    assert.ok(quick!.maxRssBytes! > 1 << 20 && quick!.maxRssBytes! < 32 << 20, `${quick!.maxRssBytes}`);
    assert.ok(large!.maxRssBytes! >= 64_000_000 && large!.maxRssBytes! < 128_000_000, `${large!.maxRssBytes}`);
  },

  "a spawn, read and waited for, is told like a run": async ({ open, watch }) => {
    const { events, onEvent } = watch();
    const { session } = await open({ onEvent });
    const p = await session.spawn({ command: "echo out; exit 4" });
    await new Response(p.stdout).text();
    await p.wait();
    await arrived(events, 1);
    const started = events.find((event) => event.type === "command.started");
    assert.equal(started!.pid, p.pid);
    assert.equal(started!.liveProcesses, 1);
    const { reason, exitCode, pid } = finishedOf(events)[0]!;
    assert.deepEqual({ reason, exitCode, pid }, { reason: "exit", exitCode: 4, pid: p.pid });
    checkPairs(events);
  },

  "reasons come from what happened, not from what a message says": async ({ open, watch }) => {
    const { events, onEvent } = watch();
    const { session } = await open({ onEvent, runTimeoutMs: 3000, maxOutputBytes: 1000 });
    const expected: string[] = [];
    const ends = async (reason: string) => {
      expected.push(reason);
      await arrived(events, expected.length);
      assert.equal(finishedOf(events).at(-1)!.reason, reason);
    };

    await session.run({ command: "kill -9 $$" });
    await ends("exit");

    await assert.rejects(session.run({ command: "exec sleep 600" }), code("ERR_TIMEOUT"));
    await ends("timeout");

    await assert.rejects(session.run({ command: "exec yes" }), code("ERR_OUTPUT_LIMIT"));
    await ends("output-limit");

    for (const message of ["the operation timed out", "output limit exceeded", "killed"]) {
      const job = nap();
      const controller = new AbortController();
      const running = session.run({ command: job.command, abortSignal: controller.signal });
      await begun(events, expected.length + 1);
      controller.abort(new Error(message));
      await assert.rejects(running, { message });
      await ends("abort");

      const again = new AbortController();
      const p = await session.spawn({ command: job.command, abortSignal: again.signal });
      again.abort(new Error(message));
      await assert.rejects(p.wait(), { message });
      await ends("abort");
    }

    const p = await session.spawn({ command: "exec sleep 600" });
    await p.kill();
    await p.wait();
    await ends("killed");
    checkPairs(events);
  },

  "a signal of AbortSignal.timeout is an abort, too": async ({ open, watch }) => {
    const { events, onEvent } = watch();
    const { session } = await open({ onEvent });
    const running = session.run({ command: "exec sleep 600", abortSignal: AbortSignal.timeout(300) });
    await assert.rejects(running, { name: "TimeoutError" });
    await arrived(events, 1);
    assert.equal(finishedOf(events)[0]!.reason, "abort");
  },

  "a stop tells what it cleaned up": async ({ open, watch }) => {
    const { events, onEvent } = watch();
    const { session, stop } = await open({ onEvent });
    const job = nap();
    const p = await session.spawn({ command: job.command });
    const running = session.run({ command: job.command });
    await begun(events, 2);
    await stop();
    await Promise.all([p.wait(), running]);
    await arrived(events, 2);
    await until("the clean-up is told", () => events.some(({ type }) => type === "cleanup.completed"));
    assert.deepEqual(
      finishedOf(events).map(({ reason }) => reason),
      ["cleanup", "cleanup"],
    );
    const began = events.find((event) => event.type === "cleanup.started")!;
    assert.equal(began.requestedProcesses, 2);
    assert.equal(began.reason, "stop");
    const ended = events.find((event) => event.type === "cleanup.completed")!;
    assert.equal(ended.requestedProcesses, 2);
    assert.equal(ended.remainingProcesses, 0);
    assert.ok(events.indexOf(began) < events.indexOf(finishedOf(events)[0]!));
    assert.equal(events.at(-1), ended);
    checkPairs(events);
    await stop();
    await session.run({ command: "true" });
    await arrived(events, 3);
    assert.equal(new Set(events.map((event) => event.generationId)).size, 2);
  },

  "what ends a shutdown is told as well": async ({ open, watch }) => {
    const { events, onEvent } = watch();
    const { session, shutdown } = await open({ onEvent });
    await session.run({ command: "true" });
    await shutdown();
    await until("the clean-up is told", () => events.at(-1)?.type === "cleanup.completed");
    checkAddsUp(events);
  },

  "one finish for each of many, however they end": async ({ open, watch }) => {
    const { events, onEvent } = watch();
    const { session, stop } = await open({ onEvent });
    const all = Array.from({ length: 40 }, async (_, i) => {
      const controller = new AbortController();
      const p = await session.spawn({ command: "sleep 0.05", abortSignal: controller.signal });
      if (i % 4 === 1) controller.abort();
      if (i % 4 === 2) await p.kill();
      if (i % 4 === 3) await p.wait();
      await p.wait();
    });
    await Promise.allSettled(all);
    await stop();
    await arrived(events, 40);
    assert.equal(finishedOf(events).length, 40);
    checkPairs(events.filter(({ type }) => !type.startsWith("cleanup")));
  },

  "events carry neither scripts nor output nor values": async ({ open, watch }) => {
    const { events, onEvent } = watch();
    const { session } = await open({ onEvent, env: { V: "marker-of-value" } });
    await session.run({ command: "echo marker-of-output; : marker-of-script", env: { W: "marker-of-call" } });
    await arrived(events, 1);
    assert.doesNotMatch(JSON.stringify(events), /marker/);
  },

  "a sink that throws or rejects changes nothing": async ({ session }) => {
    let calls = 0;
    const s = await session({
      onEvent: () => {
        calls++;
        if (calls % 2) throw new Error("sink");
        return Promise.reject(new Error("sink"));
      },
    });
    assert.equal(await output(s, "echo fine"), "fine\n");
    assert.equal(await output(s, "echo fine"), "fine\n");
    await until("the sink was called", () => calls >= 5);
  },
};
