import { decodeError, rememberAborted, SandboxError } from "./errors.ts";
import { type BwrapSandboxEvent, type BwrapSandboxEventSink, deliver } from "./events.ts";
import type { ReplyOf, RequestName, RequestOf, RunFacts, WireError } from "./requests.ts";

/** One request of the addon: returns at once, answered through `open`'s callback. */
type NativeRequest = (call: number, json: string, data?: Uint8Array) => void;

/** What the addon exports. */
export type Native = {
  /** Loads the core; twice is once. */
  load(libPath?: string): void;
  /** Opens this JavaScript environment's end of the core. */
  open(onReply: (call: number, json: string, data?: Uint8Array) => void): void;
  /** Tries to build a sandbox, synchronously. */
  probe(json: string): string;
  /** The core's version. */
  version(): string;
} & { readonly [Name in RequestName]: NativeRequest };

/** A reply and its bytes, which are empty where a request has none. */
export interface Reply<Name extends RequestName> {
  readonly ok: ReplyOf<Name>;
  readonly data: Uint8Array;
}

/** What a call may carry. */
export interface CallOptions<Name extends RequestName> {
  /** Raw bytes, copied before the call returns. */
  readonly data?: Uint8Array;
  /** Ends the call: it is cancelled and rejects with the signal's reason once the core has answered. */
  readonly signal?: AbortSignal | undefined;
  /** Takes back what the core did although the caller had cancelled; awaited before the call rejects. */
  readonly undo?: (ok: ReplyOf<Name>) => Promise<unknown>;
}

/** A session that the core has open. The same session has the same handle while it is open. */
export interface OpenSession {
  readonly handle: number;
  /** Where its events go. */
  sink: BwrapSandboxEventSink | undefined;
  /** Set once the handle has ended: the core knows the number no more. */
  closed: boolean;
}

/** This JavaScript environment's conversation with the core. */
export interface Environment {
  /** Sends a request and settles with its reply. */
  call<Name extends RequestName>(
    name: Name,
    request: RequestOf<Name>,
    options?: CallOptions<Name>,
  ): Promise<Reply<Name>>;
  /** Returns what is kept of an open session, whose events go to `sink` from now on. */
  adopt(handle: number, sink: BwrapSandboxEventSink | undefined): OpenSession;
  /** Forgets a session whose handle has ended. */
  forget(session: OpenSession): void;
}

interface Message extends Partial<RunFacts> {
  readonly ok?: object;
  readonly error?: WireError;
}

interface EventMessage {
  readonly session: number;
  readonly event: BwrapSandboxEvent;
}

type Settle = (message: Message, data: Uint8Array) => void;

const nothing = new Uint8Array();

/** Opens the conversation. */
export function openEnvironment(native: Native): Environment {
  const pending = new Map<number, Settle>();
  const sessions = new Map<number, OpenSession>();
  let lastCall = 0;

  native.open((number, json, data) => {
    const message = JSON.parse(json) as Message;
    if (number === 0) {
      const { session, event } = message.ok as EventMessage;
      const sink = sessions.get(session)?.sink;
      // The core leaves empty members out.
      if (sink) deliver(sink, { ...event, tags: event.tags ?? {} });
      return;
    }
    const settle = pending.get(number);
    pending.delete(number);
    settle?.(message, data ?? nothing);
  });

  function call<Name extends RequestName>(
    name: Name,
    request: RequestOf<Name>,
    { data, signal, undo }: CallOptions<Name> = {},
  ): Promise<Reply<Name>> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const number = ++lastCall;
      let cancelled = false;
      const cancel = () => {
        cancelled = true;
        // Whether or not it came in time: the answer to `number` tells.
        call("cancel", { target: number }).catch(() => {});
      };
      pending.set(number, (message, bytes) => {
        signal?.removeEventListener("abort", cancel);
        if (cancelled) {
          if (message.error && message.stdoutLength !== undefined) {
            rememberAborted(signal?.reason, decodeError(message.error, message, bytes));
          }
          const undone = message.ok && undo ? undo(message.ok as ReplyOf<Name>) : Promise.resolve();
          const abort = () => reject(signal?.reason);
          undone.then(abort, abort);
        } else if (message.error) {
          reject(decodeError(message.error, message, bytes));
        } else {
          resolve({ ok: message.ok as ReplyOf<Name>, data: bytes });
        }
      });
      try {
        native[name](number, JSON.stringify(request), data);
      } catch (cause) {
        pending.delete(number);
        return reject(new SandboxError("ERR_INTERNAL", `${name}: the addon refused the call`, { op: name, cause }));
      }
      signal?.addEventListener("abort", cancel, { once: true });
    });
  }

  function adopt(handle: number, sink: BwrapSandboxEventSink | undefined): OpenSession {
    const session = sessions.get(handle) ?? { handle, sink, closed: false };
    session.sink = sink;
    sessions.set(handle, session);
    return session;
  }

  function forget(session: OpenSession): void {
    session.closed = true;
    sessions.delete(session.handle);
  }

  return { call, adopt, forget };
}
