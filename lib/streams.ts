import type { Reply } from "./environment.ts";

/** How much one read of a stream asks for. Measured: more makes nothing faster. */
export const chunkBytes = 1 << 20;

/** Where a stream reads from. */
export interface Source {
  /** Waits for the next bytes. */
  read(): Promise<Reply<"processRead" | "fileNext">>;
  /** Called after the last byte, or after a read that failed. */
  ended(): Promise<void> | void;
  /** Called when the reader loses interest. */
  cancel(): Promise<void>;
}

/** Makes a stream that reads when it is read from, and holds nothing in advance. */
export function readOnDemand(source: Source): ReadableStream<Uint8Array> {
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        try {
          let reply;
          do reply = await source.read();
          // A pull that brings nothing would not be called again.
          while (reply.data.byteLength === 0 && !reply.ok.end);
          if (reply.data.byteLength > 0) controller.enqueue(reply.data);
          if (!reply.ok.end) return;
        } catch (error) {
          await ignoreFailure(source.ended());
          throw error;
        }
        await source.ended();
        controller.close();
      },
      cancel: () => source.cancel(),
    },
    { highWaterMark: 0 },
  );
}

async function ignoreFailure(work: Promise<void> | void): Promise<void> {
  try {
    await work;
  } catch {
    // The first failure is the one to tell.
  }
}
