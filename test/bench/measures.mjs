// What is measured, and what each figure may be at most.
//
// A measure's variants do the same work: ours in the sandbox, host by Node's
// child_process alone, bwrapEach by Node's child_process with one bwrap per
// command. A figure is ours divided by another variant, or without `to` ours alone.

import { Readable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { descendantsPss } from "./stage.mjs";

/** What a figure is made of; the median over the rounds counts. */
export const quantities = {
  wallMs: "time",
  loopMs: "busy event loop",
  lagMs: "worst loop lag",
  pssMb: "memory in MB (PSS)",
};

/** What a figure is compared with. */
export const others = {
  host: "bash -lc by Node",
  bwrapEach: "one bwrap per command by Node",
  nodeStream: "Node's pipe as a web stream",
};

const aCommand = {
  rounds: 200,
  variants: (stage) => ({
    ours: () => stage.ours("true"),
    host: () => stage.host("true"),
    bwrapEach: () => stage.bwrapEach("true"),
  }),
};

const aNewSession = {
  rounds: 60,
  variants: (stage) => ({
    async ours() {
      const handle = await stage.newSession();
      await stage.ours("true", await handle.useSessionFn({ networkPolicy: "deny-all" }));
      return { cleanUp: () => handle.delete() };
    },
    host: () => stage.host("true"),
    bwrapEach: () => stage.bwrapEach("true", "--unshare-net"),
  }),
  figures: [
    { of: "wallMs", to: "bwrapEach", atMost: 1 },
    { of: "wallMs", to: "host" },
  ],
};

/** Runs `total` calls, `width` at a time. */
async function pooled(total, width, run) {
  let left = total;
  const worker = async () => {
    while (left-- > 0) await run();
  };
  await Promise.all(Array.from({ length: width }, worker));
}

const commandsAtOnce = (total, width) => (stage) => ({
  ours: () => pooled(total, width, () => stage.ours("true")),
  host: () => pooled(total, width, () => stage.host("true")),
  bwrapEach: () => pooled(total, width, () => stage.bwrapEach("true")),
});

const streamBytes = 1 << 30;
const streamScript = `head -c ${streamBytes} /dev/zero`;

async function readToEnd(stream) {
  const reader = stream.getReader();
  let bytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    bytes += value.byteLength;
  }
  if (bytes !== streamBytes) throw new Error(`${bytes} of ${streamBytes} bytes arrived`);
}

const collectBytes = 16e6;

async function checked(run) {
  const text = await run;
  if (text.length !== collectBytes) throw new Error(`${text.length} of ${collectBytes} bytes arrived`);
}

/** By name; each runs in a process of its own, in this order. */
export const measures = {
  live: {
    title: "a command in a live session",
    ...aCommand,
    figures: [
      { of: "wallMs", to: "host", atMost: 0.65 },
      { of: "wallMs", to: "bwrapEach", atMost: 0.38 },
      { of: "loopMs", to: "host", atMost: 0.05 },
    ],
  },
  first: {
    title: "create() and the first command, deny-all",
    ...aNewSession,
    options: { standby: true },
    // Until the next sandbox is ready; before each variant, so that all are alike.
    pauseMs: 200,
  },
  unprepared: {
    title: "the same without a sandbox kept ready",
    ...aNewSession,
  },
  server: {
    title: "a command, in a process of 300 MB",
    ...aCommand,
    // What a server has in memory: eve's own were seen at 175 to 250 MB. Node's
    // child_process copies the page tables of all of it for every child.
    residentBytes: 300e6,
    figures: [
      { of: "wallMs", to: "host" },
      { of: "wallMs", to: "bwrapEach" },
      { of: "loopMs", to: "host" },
    ],
  },
  large: {
    title: "a command, in a process of 1.2 GB",
    ...aCommand,
    rounds: 60,
    residentBytes: 1.2e9,
    figures: [
      { of: "wallMs", to: "host" },
      { of: "wallMs", to: "bwrapEach", atMost: 0.1 },
      { of: "loopMs", to: "host" },
    ],
  },
  many: {
    title: "32 commands at once",
    rounds: 40,
    variants: commandsAtOnce(32, 32),
    figures: [
      { of: "wallMs", to: "host" },
      { of: "wallMs", to: "bwrapEach" },
    ],
  },
  pool: {
    title: "64 commands, 32 at once",
    rounds: 30,
    watchLag: true,
    variants: commandsAtOnce(64, 32),
    figures: [
      { of: "wallMs", to: "bwrapEach", atMost: 0.45 },
      { of: "lagMs", to: "bwrapEach", atMost: 0.1 },
    ],
  },
  stream: {
    title: "1 GiB of stdout to a web stream",
    rounds: 15,
    variants: (stage) => ({
      ours: async () => await readToEnd((await stage.oursSpawned(streamScript)).stdout),
      nodeStream: () => readToEnd(Readable.toWeb(stage.hostSpawned(streamScript).stdout)),
    }),
    figures: [
      { of: "wallMs", to: "nodeStream", atMost: 0.6 },
      { of: "loopMs", to: "nodeStream", atMost: 0.45 },
    ],
  },
  collect: {
    title: "run() returning 16 MB of text",
    rounds: 60,
    async variants(stage) {
      const line = `${"0123456789abcdef".repeat(4).slice(1)}\n`;
      await stage.putFile("text", line.repeat(collectBytes / line.length));
      return {
        ours: () => checked(stage.ours("cat text")),
        bwrapEach: () => checked(stage.bwrapEach("cat text")),
      };
    },
    figures: [
      { of: "wallMs", to: "bwrapEach", atMost: 0.65 },
      { of: "loopMs", to: "bwrapEach" },
    ],
  },
  idle: {
    title: "an idle session: bwrap and process 1",
    rounds: 5,
    warmUpRounds: 0,
    needsRoot: "a sandbox's process 1 shows its memory to root only",
    variants: (stage) => ({
      async ours() {
        const handle = await stage.newSession();
        await stage.ours("true", handle.session);
        await sleep(1000);
        return { samples: { pssMb: (await descendantsPss()) / 1e6 }, cleanUp: () => handle.delete() };
      },
    }),
    figures: [{ of: "pssMb", atMost: 4 }],
  },
};
