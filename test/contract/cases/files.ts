import assert from "node:assert/strict";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";

import type { SandboxOperations } from "../../../lib/index.ts";
import { within } from "../host.ts";
import { bytesOf, code, listTmp, output, type Place, quote, same, textOf } from "../place.ts";
import type { Cases } from "../suite.ts";

const isRoot = process.getuid!() === 0;

/** All three readers of one path; none may take its time. */
function readers({ readFile, readBinaryFile, readTextFile }: SandboxOperations) {
  const soon = <T>(path: string, promise: Promise<T>) => within(10_000, `reading ${path}`, promise);
  return {
    readFile: async (path: string) => {
      const stream = await soon(path, readFile({ path }));
      return stream && (await textOf(stream));
    },
    readBinaryFile: async (path: string) => {
      const bytes = await soon(path, readBinaryFile({ path }));
      return bytes && Buffer.from(bytes).toString();
    },
    readTextFile: (path: string) => soon(path, readTextFile({ path })),
  };
}

/** All three writers. */
function writers({ writeFile, writeBinaryFile, writeTextFile }: SandboxOperations) {
  const soon = (path: string, promise: Promise<void>) => within(10_000, `writing ${path}`, promise);
  return {
    writeFile: (path: string, text: string) => soon(path, writeFile({ path, content: streamOf(Buffer.from(text)) })),
    writeBinaryFile: (path: string, text: string) => soon(path, writeBinaryFile({ path, content: Buffer.from(text) })),
    writeTextFile: (path: string, text: string) => soon(path, writeTextFile({ path, content: text })),
  };
}

/** A stream of chunks; an Error among them is how it fails. */
function streamOf(...chunks: readonly unknown[]): ReadableStream<Uint8Array> {
  const rest = [...chunks];
  return new ReadableStream({
    pull(controller) {
      if (rest.length === 0) return controller.close();
      const chunk = rest.shift();
      if (chunk instanceof Error) controller.error(chunk);
      else controller.enqueue(chunk as Uint8Array);
    },
  });
}

/** What every reader says about some paths. */
async function expectReads(session: SandboxOperations, cases: Readonly<Record<string, string | null | RegExp>>) {
  for (const [path, expected] of Object.entries(cases)) {
    for (const [name, read] of Object.entries(readers(session))) {
      if (expected instanceof RegExp) {
        await assert.rejects(read(path), (error: unknown) => {
          assert.match(String((error as { code?: unknown }).code), expected, `${name}(${path}): ${String(error)}`);
          return true;
        });
      } else {
        assert.equal(await read(path), expected, `${name}(${path})`);
      }
    }
  }
}

/** The name of the session's only directory in the store. */
function workspace({ cacheDir }: Place): string {
  const [name, ...others] = readdirSync(join(cacheDir, "sessions"));
  assert.deepEqual(others, []);
  return join(cacheDir, "sessions", name!);
}

/** Links to names that are not UTF-8, in a directory that is made for them. */
export async function followOddLinks(s: SandboxOperations, place: string): Promise<void> {
  const odd = `mkdir ${place}; cd ${place}`;
  await output(s, `${odd}; printf old > $'\\xff\\xfe'; ln -s $'\\xff\\xfe' there; ln -s $'\\xfe\\xff' dangling`);
  await expectReads(s, { [`${place}/there`]: "old", [`${place}/dangling`]: null });
  await s.writeTextFile({ path: `${place}/there`, content: "new" });
  await s.writeTextFile({ path: `${place}/dangling`, content: "made" });
  assert.equal(await output(s, `cd ${place}; cat $'\\xff\\xfe' $'\\xfe\\xff'; ls | wc -l`), "newmade4\n");
}

export const files: Cases = {
  "what is written is read, by commands too, and parents are made": async ({ session }) => {
    const s = await session();
    for (const [name, write] of Object.entries(writers(s))) {
      await write(`deep/${name}/file`, `${name}\n`);
      await write(`deep/${name}/file`, `${name} again\n`);
      assert.equal(await output(s, `cat deep/${name}/file`), `${name} again\n`);
      await expectReads(s, {
        [`deep/${name}/file`]: `${name} again\n`,
        [`/workspace/deep/./${name}//file`]: `${name} again\n`,
      });
    }
    assert.equal(await output(s, "umask 077; mkdir own; echo x > own/f; cat own/f"), "x\n");
    assert.equal(await s.readTextFile({ path: "own/f" }), "x\n");
    assert.equal(
      await output(
        s,
        "echo more >> deep/writeFile/file && rm deep/writeTextFile/file && rmdir deep/writeTextFile; cat deep/writeFile/file",
      ),
      "writeFile again\nmore\n",
    );
  },

  "all bytes survive, empty and large, from views and buffers": async ({ session }) => {
    const s = await session();
    const every = Uint8Array.from({ length: 256 }, (_, i) => i);
    const large = Buffer.alloc(5_000_003, every);
    for (const [path, content] of Object.entries({
      every,
      empty: new Uint8Array(),
      large,
      view: large.subarray(7, 1000),
    })) {
      await s.writeBinaryFile({ path, content });
      assert.equal(await output(s, `wc -c < ${path}`), `${content.byteLength}\n`);
      assert.deepEqual(Buffer.from((await s.readBinaryFile({ path }))!), Buffer.from(content));
      assert.deepEqual(await bytesOf((await s.readFile({ path }))!), Buffer.from(content));
      await s.writeFile({ path: "streamed", content: (await s.readFile({ path }))! });
      await output(s, `cmp ${path} streamed`);
    }
  },

  "a stream of a file can be left unread, and cancelled": async ({ session }) => {
    const s = await session();
    await s.writeBinaryFile({ path: "f", content: Buffer.alloc(3 << 20) });
    const stream = (await s.readFile({ path: "f" }))!;
    const reader = stream.getReader();
    assert.ok((await reader.read()).value!.byteLength > 0);
    await reader.cancel();
    await (await s.readFile({ path: "f" }))!.cancel();
  },

  "missing is null: no such name, or a name below a file": async ({ session }) => {
    const s = await session();
    await s.writeTextFile({ path: "f", content: "x" });
    await expectReads(s, {
      missing: null,
      "no/such/dir": null,
      "f/x": null,
      "f/x/y": null,
      "/nope": null,
    });
  },

  "what is there but cannot be read rejects, before a stream is handed out": async ({ session }) => {
    const s = await session();
    await output(s, "mkdir dir; ln -s loop loop; ln -s b a; ln -s a b; echo x > f");
    await expectReads(s, {
      dir: /^EISDIR$/,
      ".": /^EISDIR$/,
      "": /^EISDIR$/,
      "/": /^EISDIR$/,
      loop: /^ELOOP$/,
      "a/x": /^ELOOP$/,
      ["n".repeat(300)]: /^ENAMETOOLONG$/,
      [`${"d/".repeat(3000)}x`]: /^ENAMETOOLONG$/,
      "a\0b": /^ERR_INVALID_ARGUMENT$/,
    });
  },

  "what the command's user may not read, the file API does not read": async ({ session }) => {
    // Root's files are root's own: nothing is closed to it in its workspace.
    const s = await session();
    await output(s, "mkdir closed; echo x > closed/f; chmod 0 closed; echo y > secret; chmod 0 secret");
    const inside = (await s.run({ command: "cat secret" })).exitCode;
    if (!isRoot) {
      assert.equal(inside, 1);
      await expectReads(s, { secret: /^EACCES$/, "closed/f": /^EACCES$/ });
    }
    await output(s, "chmod 700 closed secret");
  },

  "a FIFO, a socket, a device and a directory are refused at once, by readers and writers": async ({ session }) => {
    const s = await session();
    await s.writeTextFile({
      path: "socket.cjs",
      content: 'require("node:net").createServer().listen("socket", () => process.kill(process.pid, "SIGKILL"));',
    });
    await s.run({ command: `${quote(process.execPath)} socket.cjs` });
    await output(s, "test -S socket; mkfifo fifo; ln -s fifo link; ln -s /dev/zero zero; mkfifo /tmp/fifo; mkdir dir");
    const paths = [
      "fifo",
      "link",
      "zero",
      "socket",
      "/tmp/fifo",
      "/dev/zero",
      "/dev/null",
      "/dev/tty",
      "/proc/self/fd/0",
    ];
    for (const path of paths) {
      for (const read of Object.values(readers(s))) await assert.rejects(read(path), `read ${path}`);
      for (const write of Object.values(writers(s))) await assert.rejects(write(path, "x"), `write ${path}`);
    }
    for (const write of Object.values(writers(s))) {
      for (const path of ["dir", "", ".", "dir/", "/"]) await assert.rejects(write(path, "x"), code("EISDIR"));
      await assert.rejects(write("socket.cjs/below", "x"), code("ENOTDIR"));
      await assert.rejects(write("n".repeat(300), "x"), code("ENAMETOOLONG"));
    }
    assert.equal(await output(s, "test -p fifo && test -L link && test -c /dev/null && ls -A dir"), "");
  },

  "a link out of the sandbox's view reads as `cat` does: nothing": async (place) => {
    const s = await place.session();
    const secret = join(place.directory, "secret");
    writeFileSync(secret, "host secret");
    await output(
      s,
      `ln -s ${quote(secret)} leak; ln -s ${quote(place.directory)} dir; ln -s ../../secret up; ln -s ../../../../../../../../etc/hostname far`,
    );
    await output(s, "! cat leak 2>/dev/null");
    await expectReads(s, { leak: null, "dir/secret": null, up: null, far: "sandbox\n" });
    await s.writeTextFile({ path: "leak", content: "own" }).catch(() => {});
    await s.writeTextFile({ path: "dir/other", content: "own" }).catch(() => {});
    await s.removePath({ path: "dir/secret", force: true }).catch(() => {});
    assert.equal(readFileSync(secret, "utf8"), "host secret");
    assert.deepEqual(readdirSync(place.directory).toSorted(), ["cache", "secret"]);
  },

  "procfs gives nothing away, directly and through links": async ({ session, defer }) => {
    const marker = "environment of the host process";
    process.env["SBX_CONTRACT_SECRET"] = marker;
    defer(() => delete process.env["SBX_CONTRACT_SECRET"]);
    const s = await session();
    await output(
      s,
      "for p in self 1 thread-self; do for f in environ mem maps fd/0 fd/3 root/etc/passwd cwd/x; do ln -s /proc/$p/$f $p-${f//\\//-}; done; done",
    );
    const paths = ["self", "1", "thread-self"].flatMap((p) =>
      ["environ", "mem", "maps", "fd/0", "fd/3"].flatMap((f) => [`/proc/${p}/${f}`, `${p}-${f.replace("/", "-")}`]),
    );
    for (const path of paths) {
      for (const read of Object.values(readers(s))) {
        const content = await read(path).catch(() => null);
        assert.equal(content, null, path);
      }
    }
    await assert.rejects(s.writeTextFile({ path: "/proc/self/comm", content: "x" }));
    await assert.rejects(s.writeTextFile({ path: "/proc/1/comm", content: "x" }));
  },

  "secrets of the host's /etc are not there, its public part is": async ({ session }) => {
    const s = await session();
    for (const path of ["/etc/shadow", "/etc/gshadow", "/etc/sudoers"]) {
      for (const read of Object.values(readers(s))) assert.ok(!(await read(path).catch(() => null)), path);
    }
    assert.equal(await s.readTextFile({ path: "/etc/hostname" }), "sandbox\n");
    assert.match((await s.readTextFile({ path: "/etc/passwd" }))!, /:\/workspace:\/bin\/bash\n/);
  },

  "`..` is the sandbox's, so a neighbour's files are out of reach": async (place) => {
    const victim = (await place.open({}, { key: "victim" })).session;
    await victim.writeTextFile({ path: "secret", content: "x" });
    const [id] = readdirSync(join(place.cacheDir, "sessions"));
    const s = await place.session();
    await output(s, `ln -s ../${id}/secret link`);
    await expectReads(s, {
      [`../${id}/secret`]: null,
      [`/workspace/../${id}/secret`]: null,
      link: null,
      "../etc/hostname": "sandbox\n",
      "/workspace/../etc/hostname": "sandbox\n",
      "../workspace/nothing": null,
    });
    await s.writeTextFile({ path: `../${id}/secret`, content: "y" }).catch(() => {});
    await s.removePath({ path: `../${id}`, recursive: true, force: true }).catch(() => {});
    assert.equal(await victim.readTextFile({ path: "secret" }), "x");
  },

  "links inside are followed, dangling ones by writers": async ({ session }) => {
    const s = await session();
    await output(
      s,
      "mkdir t; echo z > t/z; ln -s /workspace/t/z a; ln -s t dir; ln -s inside.txt in; ln -s missing/x deep",
    );
    await expectReads(s, { a: "z\n", "dir/z": "z\n", in: null, "a/../t/z": null, "dir/../t/z": "z\n" });
    await s.writeTextFile({ path: "in", content: "made\n" });
    await s.writeTextFile({ path: "a", content: "changed\n" });
    await s.writeTextFile({ path: "dir/new", content: "new\n" });
    await assert.rejects(s.writeTextFile({ path: "deep", content: "" }), code("ENOENT"));
    assert.equal(
      await output(s, "cat inside.txt t/z t/new; readlink a in"),
      "made\nchanged\nnew\n/workspace/t/z\ninside.txt\n",
    );
  },

  "a link to a name that is not UTF-8 is followed to that name": async ({ session }) => {
    const s = await session();
    for (const place of ["/workspace/odd", "/tmp/odd"]) await followOddLinks(s, place);
  },

  "the system's files are read-only, with the errno that a command sees": async ({ session }) => {
    const s = await session();
    for (const path of ["/usr/x", "/etc/hostname", "/x", "/usr/bin/bash", "/home/x"]) {
      await assert.rejects(s.writeTextFile({ path, content: "x" }), (error: unknown) => {
        assert.match(String((error as { code: unknown }).code), /^(EROFS|EACCES|EPERM)$/, path);
        return true;
      });
    }
    for (const path of ["/etc/hostname", "/usr/bin/bash", "/etc"]) {
      await assert.rejects(s.removePath({ path, recursive: true, force: true }), path);
    }
    assert.equal(await output(s, "cat /etc/hostname"), "sandbox\n");
  },

  "an error names the path as the sandbox sees it, never the host's": async ({ session, directory }) => {
    const s = await session();
    await output(s, "mkdir dir; echo > f");
    const failures = [
      s.readTextFile({ path: "dir" }),
      s.writeTextFile({ path: "dir", content: "" }),
      s.writeTextFile({ path: "f/x", content: "" }),
      s.removePath({ path: "missing" }),
      s.removePath({ path: "dir" }),
      s.readTextFile({ path: "n".repeat(300) }),
      s.run({ command: "true", workingDirectory: "nope" }),
    ];
    for (const { reason } of (await Promise.allSettled(failures)) as PromiseRejectedResult[]) {
      assert.match(String(reason.path), /^\/workspace\//);
      assert.ok(reason.message.startsWith(`${reason.code}: `), reason.message);
      assert.ok(!JSON.stringify({ ...reason, message: reason.message }).includes(directory), reason.message);
      assert.equal(typeof reason.syscall, "string");
    }
  },

  "removePath removes links, never what they lead to": async ({ session }) => {
    const s = await session();
    await output(s, "mkdir -p d/e; touch d/e/f; ln -s /etc/passwd p; ln -s nowhere n; ln -s d l; ln -s /etc t");
    for (const path of ["p", "n"]) await s.removePath({ path });
    for (const path of ["l", "t"]) await s.removePath({ path, recursive: true });
    assert.equal(await output(s, "find . | sort; test -s /etc/passwd"), ".\n./d\n./d/e\n./d/e/f\n");
  },

  "removePath has rm's rules": async ({ session }) => {
    const s = await session();
    await output(s, "mkdir -p full/a/b empty; touch full/a/f file full/a/b/g; mkfifo fifo; chmod 555 full/a/b");
    await assert.rejects(s.removePath({ path: "missing" }), code("ENOENT"));
    await assert.rejects(s.removePath({ path: "missing", recursive: true }), code("ENOENT"));
    await assert.rejects(s.removePath({ path: "full" }), code("EISDIR"));
    await assert.rejects(s.removePath({ path: "full", force: true }), code("EISDIR"));
    for (const path of ["", ".", "/workspace", "full/.."]) {
      await assert.rejects(s.removePath({ path, recursive: true, force: true }), (error: unknown) => {
        assert.match(String((error as { code: unknown }).code), /^(EBUSY|EINVAL)$/, path);
        return true;
      });
    }
    await s.removePath({ path: "missing", force: true });
    await s.removePath({ path: "no/such/parent", force: true, recursive: true });
    await s.removePath({ path: "file/below", force: true });
    await s.removePath({ path: "file" });
    await s.removePath({ path: "fifo" });
    await s.removePath({ path: "empty", recursive: true });
    await s.removePath({ path: "full", recursive: true });
    assert.equal(await output(s, "ls -A"), "");
  },

  "lines: 1-based, inclusive, with the endings they have": async ({ session }) => {
    const { writeTextFile, readTextFile } = await session();
    const content = "a\r\nb\nc\rd\n\ne";
    await writeTextFile({ path: "lines", content });
    const lines: readonly [number | undefined, number | undefined, string][] = [
      [undefined, undefined, content],
      [1, 1, "a\r\n"],
      [2, 2, "b\n"],
      [3, 3, "c\r"],
      [4, 5, "d\n\n"],
      [6, 6, "e"],
      [2, undefined, "b\nc\rd\n\ne"],
      [undefined, 2, "a\r\nb\n"],
      [5, 100, "\ne"],
      [7, 7, ""],
      [100, undefined, ""],
      [1, 6, content],
    ];
    for (const [startLine, endLine, expected] of lines) {
      assert.equal(await readTextFile({ path: "lines", startLine, endLine }), expected, `${startLine}-${endLine}`);
    }
    const invalid = [
      { startLine: 0 },
      { startLine: -1 },
      { endLine: 0 },
      { startLine: 3, endLine: 1 },
      { startLine: 1.5 },
      { endLine: NaN },
    ];
    for (const range of invalid) {
      await assert.rejects(readTextFile({ path: "lines", ...range }), /^\w*Error: (start|end)Line/);
      await assert.rejects(readTextFile({ path: "missing", ...range }), /^\w*Error: (start|end)Line/);
    }
    assert.equal(await readTextFile({ path: "missing", startLine: 1 }), null);
  },

  "text is UTF-8 or an error, other encodings are Buffer's": async ({ session }) => {
    const { writeBinaryFile, writeTextFile, readTextFile, readBinaryFile } = await session();
    await writeBinaryFile({ path: "bad", content: Buffer.from([0x61, 0xff, 0x62]) });
    await assert.rejects(readTextFile({ path: "bad" }), TypeError);
    assert.equal(await readTextFile({ path: "bad", encoding: "latin1" }), "a\u00ffb");
    assert.equal(await readTextFile({ path: "bad", encoding: "hex" }), "61ff62");
    await writeTextFile({ path: "base64", content: "Yf9i", encoding: "base64" });
    assert.deepEqual([...(await readBinaryFile({ path: "base64" }))!], [0x61, 0xff, 0x62]);
    await writeTextFile({ path: "euro", content: "€\u{1f600}" });
    assert.equal((await readBinaryFile({ path: "euro" }))!.byteLength, 7);
    assert.equal(await readTextFile({ path: "euro" }), "€\u{1f600}");
    await assert.rejects(readTextFile({ path: "euro", encoding: "klingon" }), /klingon/);
    await assert.rejects(writeTextFile({ path: "euro", content: "", encoding: "klingon" }), /klingon/);
  },

  "names with spaces, dashes, newlines and every other letter": async ({ session }) => {
    const s = await session();
    for (const name of [
      "a b",
      " lead",
      "trail ",
      "-rf",
      "--",
      "new\nline",
      "tab\t",
      "ä€\u{1f600}",
      "a*?[b]",
      "$HOME",
      "`x`",
      "'\"",
      "\\",
      "~",
    ]) {
      await s.writeTextFile({ path: name, content: name });
      assert.equal(await output(s, `cat -- ${quote(name)}`), name);
      assert.equal(await s.readTextFile({ path: name }), name);
      await s.removePath({ path: name });
    }
    assert.equal(await output(s, "ls -A"), "");
  },

  "to overwrite is atomic: a reader sees old or new, never a part": async ({ session }) => {
    const s = await session();
    const size = 2 << 20;
    const write = (i: number) => s.writeBinaryFile({ path: "f", content: Buffer.alloc(size, 0x41 + (i % 20)) });
    await write(0);
    let over = false;
    let reads = 0;
    const reading = Promise.all(
      [1, 2].map(async () => {
        for (; !over; reads++) {
          const bytes = Buffer.from((await s.readBinaryFile({ path: "f" }))!);
          assert.equal(bytes.length, size);
          assert.ok(bytes.equals(Buffer.alloc(size, bytes[0])), "torn");
        }
      }),
    );
    const inside = s.run({
      command: `until [ -e stop ]; do cat f > /tmp/copy; [ "$(wc -c < /tmp/copy) $(tr -s A-Z < /tmp/copy | wc -c)" = "${size} 1" ] || exit 9; done`,
    });
    for (let i = 1; i <= 40; i++) await write(i);
    over = true;
    await reading;
    await s.writeTextFile({ path: "stop", content: "" });
    assert.equal((await inside).exitCode, 0);
    assert.ok(reads >= 10, `${reads} reads`);
    assert.equal(await output(s, "ls -A"), "f\nstop\n");
  },

  "many writers of one file at once leave one of their contents": async ({ session }) => {
    const s = await session();
    await Promise.all(
      Array.from({ length: 16 }, (_, i) => s.writeTextFile({ path: "d/f", content: `${i}`.repeat(10_000) })),
    );
    const text = (await s.readTextFile({ path: "d/f" }))!;
    assert.match(text, /^(\d{1,2})\1*$/);
    assert.ok(text.length === 10_000 || text.length === 20_000);
    assert.equal(await output(s, "ls -A d"), "f\n");
  },

  // As eve writes an agent's skills while it runs.
  "sixteen skills written at once are there for commands, and for another open": async ({ open }) => {
    const { session } = await open();
    const skill = (i: number) => `/workspace/.agents/skills/skill-${i}/SKILL.md`;
    const writes = Array.from({ length: 16 }, (_, i) =>
      session.writeTextFile({ path: skill(i), content: `skill ${i}\n` }),
    );
    await Promise.all(writes);
    const numbers = Array.from(writes, (_, i) => i);
    const all = numbers.map((i) => `skill ${i}\n`).join("");
    const show = `cd "$HOME/.agents/skills" && for i in $(seq 0 15); do cat skill-$i/*; done; ls -A | wc -l`;
    assert.equal(await output(session, show), `${all}16\n`);
    const again = (await open()).session;
    for (const i of numbers) assert.equal(await again.readTextFile({ path: skill(i) }), `skill ${i}\n`);
  },

  "a stream that fails midway leaves the old content and no trace": async ({ session }) => {
    const s = await session();
    await s.writeTextFile({ path: "old", content: "old" });
    const failure = new Error("source");
    for (const path of ["old", "new"]) {
      await assert.rejects(
        s.writeFile({ path, content: streamOf(Buffer.alloc(100_000), Buffer.from("x"), failure) }),
        same(failure),
      );
      await assert.rejects(s.writeFile({ path, content: streamOf(Buffer.from("x"), "a text") }), /Uint8Array/);
    }
    assert.equal(await output(s, "ls -A; cat old"), "old\nold");
  },

  "a signal midway leaves the old content, rejects with its reason and cancels the source": async ({ session }) => {
    const s = await session();
    await s.writeTextFile({ path: "f", content: "old" });
    const controller = new AbortController();
    const reason = new Error("stop");
    let cancelled: unknown;
    const content = new ReadableStream<Uint8Array>({
      async pull(source) {
        source.enqueue(Buffer.alloc(1000));
        await setTimeout(1);
      },
      cancel: (why) => void (cancelled = why),
    });
    const writing = s.writeFile({ path: "f", content, abortSignal: controller.signal });
    await setTimeout(50);
    controller.abort(reason);
    await assert.rejects(writing, same(reason));
    assert.equal(cancelled, reason);
    assert.equal(await output(s, "ls -A; cat f"), "f\nold");
  },

  "a signal that was aborted beforehand rejects with its reason and nothing happens": async ({ session }) => {
    const s = await session();
    await s.writeTextFile({ path: "f", content: "old" });
    const reason = { no: "thanks" };
    const abortSignal = AbortSignal.abort(reason);
    const call = { path: "f", abortSignal };
    for (const attempt of [
      () => s.readFile(call),
      () => s.readBinaryFile(call),
      () => s.readTextFile(call),
      () => s.writeFile({ ...call, content: streamOf(Buffer.from("new")) }),
      () => s.writeBinaryFile({ ...call, content: Buffer.from("new") }),
      () => s.writeTextFile({ ...call, content: "new" }),
      () => s.removePath(call),
    ]) {
      await assert.rejects(attempt(), same(reason));
    }
    assert.equal(await s.readTextFile({ path: "f" }), "old");
  },

  "the mode of an overwritten file is kept, a new one is 0644": async ({ session }) => {
    const s = await session();
    await output(s, "printf '#!/bin/sh\\necho 1' > tool; chmod 750 tool");
    await s.writeTextFile({ path: "tool", content: "#!/bin/sh\necho 2\n" });
    await s.writeTextFile({ path: "made/new", content: "" });
    assert.equal(await output(s, "./tool; stat -c %a tool made made/new"), "2\n750\n755\n644\n");
  },

  "links that are swapped without pause win nothing": async (place) => {
    const outside = join(place.directory, "outside");
    mkdirSync(outside);
    writeFileSync(join(outside, "secret"), "host secret");
    const s = await place.session();
    await output(
      s,
      `mkdir d; echo inside > d/secret; ln -s ${quote(outside)} l; ln -s ../../outside r; ln -s d/f file`,
    );
    // SYS_renameat2 with RENAME_EXCHANGE: at every moment d is a directory or a link.
    const number = { x64: 316, arm64: 276 }[process.arch as "x64" | "arm64"];
    const swapper = await s.spawn({
      command: `exec perl -e 'sub swap { my ($from, $to) = @_; syscall(${number}, -100, $from, -100, $to, 2) } $| = 1;
        print swap("d", "l") == 0 ? "swapping\\n" : "cannot: $!\\n"; my $i = 0;
        while (1) { swap("d", $i++ % 2 ? "l" : "r") }'`,
    });
    assert.equal(Buffer.from((await swapper.stdout.getReader().read()).value!).toString(), "swapping\n");
    const deadline = Date.now() + 4000;
    let operations = 0;
    const refused = new Map<string, number>();
    const attack = async (attempt: () => Promise<unknown>) => {
      while (Date.now() < deadline) {
        operations++;
        try {
          assert.notEqual(await attempt(), "host secret");
        } catch (error) {
          const { code } = error as { code?: string };
          assert.equal(typeof code, "string", String(error));
          refused.set(code!, (refused.get(code!) ?? 0) + 1);
        }
      }
    };
    await Promise.all([
      ...Array.from({ length: 6 }, (_, i) => attack(() => s.writeTextFile({ path: `d/pwn${i}`, content: "pwned" }))),
      ...Array.from({ length: 4 }, () => attack(() => s.readTextFile({ path: "d/secret" }))),
      attack(() => s.writeTextFile({ path: "d/deep/er", content: "pwned" })),
      attack(() => s.writeTextFile({ path: "file", content: "pwned" })),
      attack(() => s.removePath({ path: "d/pwn0", force: true })),
      attack(() => s.removePath({ path: "d/deep", recursive: true, force: true })),
    ]);
    await swapper.kill();
    assert.deepEqual(readdirSync(outside), ["secret"]);
    assert.equal(readFileSync(join(outside, "secret"), "utf8"), "host secret");
    assert.ok(operations > 500, `only ${operations} operations`);
    for (const name of refused.keys()) assert.doesNotMatch(name, /^ERR_(?!ESCAPE$)/, `${name}: ${refused.get(name)}`);
  },

  "a session whose directory was removed from outside is gone, for files and commands": async (place) => {
    const opened = await place.open();
    const { session } = opened;
    for (const alive of [true, false]) {
      await session.writeTextFile({ path: "f", content: "x" }).catch(() => {});
      const again = alive ? opened : await place.open();
      await again.session.run({ command: "true" });
      rmSync(workspace(place), { recursive: true });
      if (!alive) await again.stop();
      await assert.rejects(again.session.readTextFile({ path: "f" }), code("ERR_SESSION_GONE"));
      await assert.rejects(again.session.writeTextFile({ path: "f", content: "" }), code("ERR_SESSION_GONE"));
      await assert.rejects(again.session.removePath({ path: "f", force: true }), code("ERR_SESSION_GONE"));
      await assert.rejects(again.session.run({ command: "true" }), code("ERR_SESSION_GONE"));
      await assert.rejects(again.session.spawn({ command: "true" }), code("ERR_SESSION_GONE"));
      await again.stop();
    }
    assert.equal(await output(await place.session(), "ls -A"), "");
  },

  "a session that was removed from outside and opened again is a new one, live or not": async (place) => {
    const old = await place.session();
    await output(old, "echo old > f; echo old > /tmp/f");
    rmSync(workspace(place), { recursive: true });
    const fresh = await place.session();
    assert.equal(await fresh.readTextFile({ path: "f" }), null);
    await fresh.writeTextFile({ path: "g", content: "new\n" });
    assert.equal(await output(fresh, `cat g; ls -A; ${listTmp}`), "new\ng\n");
    assert.equal(await old.readTextFile({ path: "g" }), "new\n");
  },
};
