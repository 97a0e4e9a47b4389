import assert from "node:assert/strict";
import { test } from "node:test";

import { checkEncoding, checkLineRange, decode, encode, sliceLines } from "../../lib/text.ts";

const mixed = "a\r\nb\nc\rd"; // CRLF, LF, CR, no ending at the end

const ranges: readonly (readonly [string, number | undefined, number | undefined, string])[] = [
  [mixed, undefined, undefined, mixed],
  [mixed, 1, 1, "a\r\n"],
  [mixed, 2, 2, "b\n"],
  [mixed, 3, 3, "c\r"],
  [mixed, 4, 4, "d"],
  [mixed, 5, undefined, ""],
  [mixed, 2, 3, "b\nc\r"],
  [mixed, 2, undefined, "b\nc\rd"],
  [mixed, undefined, 2, "a\r\nb\n"],
  [mixed, undefined, 99, mixed],
  [mixed, 4, 99, "d"],
  [mixed, 99, 100, ""],
  ["a\r\nb\nc\n", 3, 3, "c\n"],
  ["a\r\nb\nc\n", 4, 4, ""], // what follows the last ending is no line
  ["a\r\r\nb", 2, 2, "\r\n"],
  ["\n\n", 2, 2, "\n"],
  ["", 1, 1, ""],
  ["", 1, undefined, ""],
  ["one", 1, Number.MAX_SAFE_INTEGER, "one"],
];

for (const [text, startLine, endLine, expected] of ranges) {
  test(`lines ${startLine}–${endLine} of ${JSON.stringify(text)}`, () => {
    checkLineRange({ startLine, endLine });
    assert.equal(sliceLines(text, { startLine, endLine }), expected);
  });
}

const invalidRanges: readonly (readonly [unknown, unknown])[] = [
  [0, undefined],
  [-1, undefined],
  [1.5, undefined],
  [NaN, undefined],
  [Infinity, undefined],
  ["1", undefined],
  [null, undefined],
  [undefined, 0],
  [undefined, -3],
  [undefined, 2.5],
  [3, 1],
];

for (const [startLine, endLine] of invalidRanges) {
  test(`lines ${String(startLine)}–${String(endLine)} are refused`, () => {
    const range = { startLine, endLine } as { startLine?: number; endLine?: number };
    assert.throws(() => checkLineRange(range), { name: "RangeError", code: "ERR_INVALID_ARGUMENT", message: /Line/ });
  });
}

test("text: UTF-8 is decoded fatally, other encodings as Buffer does", () => {
  const broken = Uint8Array.of(0x61, 0xff);
  assert.throws(() => decode(broken, "utf-8"), TypeError);
  assert.throws(() => decode(broken, "utf8"), TypeError);
  assert.equal(decode(broken, "latin1"), "aÿ");
  assert.equal(decode(Uint8Array.of(0, 0x61, 0xff).subarray(1), "hex"), "61ff");
  assert.deepEqual(encode("€", "utf-8"), Uint8Array.of(0xe2, 0x82, 0xac));
  assert.deepEqual([...encode("YQ==", "base64")], [0x61]);
});

test("text: an unknown encoding is refused by name", () => {
  assert.throws(() => checkEncoding("utf-9"), { code: "ERR_INVALID_ARGUMENT", op: "encoding" });
  assert.equal(checkEncoding("ucs2"), "ucs2");
});
