import { type Environment, type Native, openEnvironment } from "../../lib/environment.ts";
import type { ReplyOf, RequestName, RequestOf, RunFacts, WireError } from "../../lib/requests.ts";

/** One request as the fake core got it, to be answered by the test. */
export interface Received<Name extends RequestName = RequestName> {
  readonly name: Name;
  readonly call: number;
  readonly request: RequestOf<Name>;
  readonly data: Uint8Array | undefined;
  ok(reply: ReplyOf<Name>, data?: Uint8Array): void;
  fail(error: Partial<WireError> & { readonly code: string }, facts?: Partial<RunFacts>, data?: Uint8Array): void;
}

/** A command that ended well and wrote nothing. */
export const ran: RunFacts = {
  exitCode: 0,
  stdoutLength: 0,
  stdoutBytes: 0,
  stderrBytes: 0,
  stdoutTruncated: false,
  stderrTruncated: false,
  durationMs: 1,
};

type Handlers = { readonly [Name in RequestName]?: (received: Received<Name>) => void };

/** A core that records what it is asked, and answers as the test says. */
export interface Fake {
  readonly native: Native;
  readonly environment: Environment;
  /** All requests so far, in order. */
  readonly received: Received[];
  /** Names of the requests so far; by default without those of `cancel`. */
  names(): string[];
  /** Waits until a request of that name is there that was not waited for before. */
  next<Name extends RequestName>(name: Name): Promise<Received<Name>>;
  /** Sends an event. */
  event(session: number, event: object): void;
}

const names: readonly RequestName[] = [
  "cancel",
  "prewarmBegin",
  "prewarmCommit",
  "prewarmAbort",
  "create",
  "sessionPolicy",
  "sessionStop",
  "sessionClose",
  "sessionDelete",
  "run",
  "spawn",
  "processRead",
  "processDiscard",
  "processKeep",
  "processWrite",
  "processEnd",
  "processWait",
  "processKill",
  "processRelease",
  "fileRead",
  "fileOpen",
  "fileNext",
  "fileWrite",
  "fileCreate",
  "fileAppend",
  "fileCommit",
  "fileClose",
  "fileRemove",
  "cachePrune",
];

/**
 * Makes a core. A request with a handler goes to it, on a later turn as the real
 * ones do; one without waits for `next`, but for those that answer `{}` always.
 */
export function fakeNative(handlers: Handlers = {}): Fake {
  let onReply: (call: number, json: string, data?: Uint8Array) => void;
  const received: Received[] = [];
  const unseen: Received[] = [];
  const waiting: { name: RequestName; resolve: (received: Received) => void }[] = [];

  function take(name: RequestName, call: number, json: string, data?: Uint8Array): void {
    const send = (message: object, bytes?: Uint8Array) =>
      setImmediate(() => onReply(call, JSON.stringify(message), bytes));
    const one: Received = {
      name,
      call,
      request: JSON.parse(json),
      // The addon copies.
      data: data && Uint8Array.from(data),
      ok: (reply, bytes) => send({ ok: reply }, bytes),
      fail: (error, facts, bytes) => send({ error: { message: error.code, ...error }, ...facts }, bytes),
    };
    received.push(one);
    const handler = handlers[name] as ((received: Received) => void) | undefined;
    if (handler) return handler(one);
    const index = waiting.findIndex((waiter) => waiter.name === name);
    if (index >= 0) return waiting.splice(index, 1)[0]?.resolve(one);
    unseen.push(one);
  }

  const native = {
    load() {},
    open(callback: typeof onReply) {
      onReply = callback;
    },
    probe: () => '{"ok":{"available":true,"findings":null}}',
    version: () => "0.0.0",
    ...Object.fromEntries(
      names.map((name) => [name, (call: number, json: string, data?: Uint8Array) => take(name, call, json, data)]),
    ),
  } as unknown as Native;

  return {
    native,
    environment: openEnvironment(native),
    received,
    names: () => received.map(({ name }) => name).filter((name) => name !== "cancel"),
    next<Name extends RequestName>(name: Name) {
      const index = unseen.findIndex((one) => one.name === name);
      const there = index >= 0 ? unseen.splice(index, 1)[0] : undefined;
      return new Promise<Received<Name>>((resolve) => {
        if (there) resolve(there as Received<Name>);
        else waiting.push({ name, resolve: resolve as (received: Received) => void });
      });
    },
    event: (session, event) => onReply(0, JSON.stringify({ ok: { event, session } })),
  };
}

/** Answers any request with nothing in particular. */
export const done = (received: { ok(reply: object): void }): void => received.ok({});

/** Counts the listeners that the code under test has on a signal. */
export function countedSignal(): { controller: AbortController; signal: AbortSignal; listeners(): number } {
  const controller = new AbortController();
  const { signal } = controller;
  const added = new Set<unknown>();
  const { addEventListener, removeEventListener } = signal;
  signal.addEventListener = function (this: AbortSignal, ...args: Parameters<typeof addEventListener>) {
    added.add(args[1]);
    addEventListener.apply(signal, args);
  };
  signal.removeEventListener = function (this: AbortSignal, ...args: Parameters<typeof removeEventListener>) {
    added.delete(args[1]);
    removeEventListener.apply(signal, args);
  };
  return { controller, signal, listeners: () => added.size };
}

/** Bytes of a text. */
export const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

/** Reads a stream to its end, as text. */
export async function readAll(stream: ReadableStream<Uint8Array>): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

/** How a sandbox is built for an application in /srv/app that gives no options. */
export const sandbox = {
  cacheDir: "/srv/app/.eve/sandbox-cache/bwrap",
  appRoot: "/srv/app",
  bwrapPath: "bwrap",
  hidePaths: [],
  home: "workspace",
  path: process.env["PATH"],
  nodePath: process.execPath,
  processes: "session",
};
