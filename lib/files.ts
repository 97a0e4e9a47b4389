import { whenCollected } from "./collected.ts";
import type { Environment } from "./environment.ts";
import { invalid } from "./errors.ts";
import { chunkBytes, readOnDemand } from "./streams.ts";

/** Which file of which session, and what ends the operation. */
interface Place {
  readonly session: number;
  readonly path: string;
  readonly signal: AbortSignal | undefined;
}

/** Opens a regular file as a stream that reads when it is read from; `null` when there is none. */
export async function openFile(
  environment: Environment,
  { session, path, signal }: Place,
): Promise<ReadableStream<Uint8Array> | null> {
  const close = (file: number) => environment.call("fileClose", { file });
  const { ok } = await environment.call(
    "fileOpen",
    { session, path },
    { signal, undo: (opened) => (opened.missing ? Promise.resolve() : close(opened.file)) },
  );
  return ok.missing ? null : fileStream(environment, ok.file, signal);
}

function fileStream(environment: Environment, number: number, signal?: AbortSignal): ReadableStream<Uint8Array> {
  // Everything reaches the number through this object, so that it is collected last.
  const handle = { file: number };
  const close = async () => {
    whenCollected.unregister(handle);
    await environment.call("fileClose", { file: handle.file });
  };
  whenCollected.register(handle, closeLater(environment, number), handle);
  return readOnDemand({
    // The signal is bound to one read at a time: no listener stays behind on a
    // signal that outlives a stream which nobody finished.
    read: () => environment.call("fileNext", { file: handle.file, maxBytes: chunkBytes }, { signal }),
    ended: close,
    cancel: close,
  });
}

function closeLater(environment: Environment, file: number): () => void {
  return () => {
    environment.call("fileClose", { file }).catch(() => {});
  };
}

/**
 * Replaces a file's content by what a stream gives. A stream that fails, or a
 * signal, leaves the old content in place, and the stream is cancelled.
 */
export async function writeStream(
  environment: Environment,
  { session, path, signal }: Place,
  content: ReadableStream<Uint8Array>,
): Promise<void> {
  const reader = content.getReader();
  // A read that waits for the caller's own source ends only so.
  const abort = () => void reader.cancel(signal?.reason).catch(() => {});
  signal?.addEventListener("abort", abort, { once: true });
  const close = (file: number) => environment.call("fileClose", { file });
  try {
    const { ok } = await environment.call("fileCreate", { session, path }, { signal, undo: ({ file }) => close(file) });
    try {
      await appendAll(environment, ok.file, reader, signal);
    } catch (error) {
      await close(ok.file).catch(() => {});
      throw error;
    }
    // No signal any more: from here on the answer tells whether it is written.
    // The handle is gone whether or not it is.
    await environment.call("fileCommit", { file: ok.file });
  } catch (error) {
    // Not awaited: a source may take for ever to give up.
    reader.cancel(error).catch(() => {});
    throw error;
  } finally {
    signal?.removeEventListener("abort", abort);
    reader.releaseLock();
  }
}

async function appendAll(
  environment: Environment,
  file: number,
  reader: ReadableStreamDefaultReader<Uint8Array>,
  signal: AbortSignal | undefined,
): Promise<void> {
  for (;;) {
    const { done, value } = await reader.read();
    // Before `done`: a cancelled reader says that, too.
    signal?.throwIfAborted();
    if (done) return;
    if (!(value instanceof Uint8Array)) throw invalid("content", "must be a stream of Uint8Array chunks");
    // One part at a time: the source is asked for more once this one is written.
    if (value.byteLength > 0) await environment.call("fileAppend", { file }, { data: value, signal });
  }
}
