import { invalid } from "./errors.ts";

/** Which lines of a text; both ends are 1-based and belong to the range. */
export interface LineRange {
  readonly startLine?: number | undefined;
  readonly endLine?: number | undefined;
}

/** Rejects a range that names no lines, with a RangeError. */
export function checkLineRange({ startLine, endLine }: LineRange): void {
  for (const [name, line] of Object.entries({ startLine, endLine })) {
    if (line !== undefined && !(Number.isSafeInteger(line) && line >= 1)) {
      throw outOfRange(`${name}: must be a positive integer, the first line is 1`);
    }
  }
  if (startLine !== undefined && endLine !== undefined && startLine > endLine) {
    throw outOfRange("startLine: must not be greater than endLine");
  }
}

function outOfRange(message: string): RangeError {
  return Object.assign(new RangeError(message), { code: "ERR_INVALID_ARGUMENT" });
}

/**
 * Returns the lines of a range, each with the ending it has: LF, CRLF or CR.
 * Lines that do not exist are not there: past the end is the empty text.
 */
export function sliceLines(text: string, { startLine, endLine }: LineRange): string {
  if (startLine === undefined && endLine === undefined) return text;
  const ending = /\r\n|\r|\n/g;
  let line = 1;
  const skipTo = (target: number, from: number): number => {
    let offset = from;
    for (; line < target && offset < text.length; line++) {
      ending.lastIndex = offset;
      offset = ending.test(text) ? ending.lastIndex : text.length;
    }
    return offset;
  };
  const start = skipTo(startLine ?? 1, 0);
  return text.slice(start, endLine === undefined ? undefined : skipTo(endLine + 1, start));
}

/** Rejects an encoding that Node does not know. */
export function checkEncoding(encoding: string): BufferEncoding {
  if (!Buffer.isEncoding(encoding)) throw invalid("encoding", `${JSON.stringify(encoding)} is not an encoding`);
  return encoding;
}

/** Decodes a file's bytes. What is not UTF-8 is an error there; other encodings decode as Buffer does. */
export function decode(bytes: Uint8Array, encoding: BufferEncoding): string {
  if (isUtf8(encoding)) return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString(encoding);
}

/** Encodes a text for a file. */
export function encode(text: string, encoding: BufferEncoding): Uint8Array {
  return isUtf8(encoding) ? new TextEncoder().encode(text) : Buffer.from(text, encoding);
}

// Only these two spellings, as in eve: "UTF-8" decodes as Buffer does.
function isUtf8(encoding: string): boolean {
  return encoding === "utf-8" || encoding === "utf8";
}
