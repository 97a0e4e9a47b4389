import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

import type { BwrapSandboxCreateOptions, BwrapSandboxEvent, SandboxOperations } from "../../lib/index.ts";
import type { Adapter, Factory, Opened, SessionInput } from "./adapter.ts";
import { sandboxesOn, sandboxProcesses, until } from "./host.ts";

/** Where one case happens. */
export interface Place {
  readonly factory: Factory;
  /** A directory of the case's own, which the sandbox must not show. */
  readonly directory: string;
  readonly cacheDir: string;
  /** Makes an adapter over the case's cache. */
  adapter(options?: BwrapSandboxCreateOptions): Adapter;
  /** Opens a session, by default always the same one. */
  open(options?: BwrapSandboxCreateOptions, input?: Partial<SessionInput>): Promise<Opened>;
  /** The same, when only the session matters. */
  session(options?: BwrapSandboxCreateOptions): Promise<SandboxOperations>;
  /** An `onEvent` and what it has received. */
  watch(): { readonly onEvent: (event: BwrapSandboxEvent) => void; readonly events: BwrapSandboxEvent[] };
  /** Runs when the case is over, the last first. */
  defer(work: () => unknown): void;
}

/** Plays a case and clears up after it; what a case leaves running fails it. */
export async function inPlace(factory: Factory, play: (place: Place) => Promise<void>): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), "sbx-contract-"));
  const cacheDir = join(directory, "cache");
  const deferred: (() => unknown)[] = [];
  const place: Place = {
    factory,
    directory,
    cacheDir,
    adapter(options) {
      // What a case counts is its own: a standby comes with the cases that are about it.
      const adapter = factory.make({ standby: false, ...options, cacheDir });
      return {
        prewarm: (input) => adapter.prewarm(input),
        async open(input) {
          const opened = await adapter.open(input);
          deferred.push(() => opened.shutdown());
          return opened;
        },
      };
    },
    async open(options, input) {
      return await place.adapter(options).open({ key: "session", ...input });
    },
    async session(options) {
      return (await place.open(options)).session;
    },
    watch() {
      const events: BwrapSandboxEvent[] = [];
      return { events, onEvent: (event) => events.push(event) };
    },
    defer: (work) => deferred.push(work),
  };
  try {
    await play(place);
  } finally {
    for (const work of deferred.toReversed()) await work();
    // A sandbox may have closed its directories to their owner.
    await promisify(execFile)("chmod", ["-R", "u+rwX", directory]);
    await rm(directory, { recursive: true, force: true });
  }
  const left = () => [...sandboxProcesses(), ...sandboxesOn(directory)];
  await until("nothing of the sandboxes is left", () => left().length === 0).catch(() => {
    assert.deepEqual(left(), []);
  });
}

/** Matches an error by its code, which is all that callers may branch on. */
export function code(expected: string): (error: unknown) => true {
  return (error) => {
    assert.ok(error instanceof Error, `${String(error)} is no Error`);
    assert.equal((error as Error & { code?: unknown }).code, expected, error.stack);
    return true;
  };
}

/** Matches one and the same value. */
export function same(expected: unknown): (error: unknown) => true {
  return (error) => {
    assert.equal(error, expected);
    return true;
  };
}

/** Reads a stream to its end. */
export async function bytesOf(stream: ReadableStream<Uint8Array>): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** Reads a stream to its end as text. */
export async function textOf(stream: ReadableStream<Uint8Array>): Promise<string> {
  return (await bytesOf(stream)).toString("utf8");
}

/** Runs a command that has to succeed, and returns what it wrote to stdout. */
export async function output(session: SandboxOperations, command: string): Promise<string> {
  const result = await session.run({ command });
  assert.equal(result.exitCode, 0, `${command}\n${result.stdout}${result.stderr}`);
  return result.stdout;
}

const [, top, nodeInTmp = ""] = process.execPath.split("/");

/** A command that lists /tmp, without the way to this Node, which may lie there and is seen inside. */
export const listTmp = `ls -A ${top === "tmp" ? `-I ${quote(nodeInTmp)} ` : ""}/tmp`;

/** Quotes a word for bash. */
export function quote(word: string): string {
  return `'${word.replaceAll("'", `'\\''`)}'`;
}
