import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import type { SandboxOperations } from "../../../lib/index.ts";
import { nap, program, sandboxProcesses, until } from "../host.ts";
import { code, output, type Place, quote, same } from "../place.ts";
import type { Cases } from "../suite.ts";

export const templates: Cases = {
  "a template is built once; sessions begin with its files": async ({ adapter }) => {
    const { prewarm, open } = adapter();
    let built = 0;
    const input = {
      key: "template",
      seeds: [{ path: "/workspace/seed", content: "seed\n" }],
      bootstrap: async (session: SandboxOperations) => {
        built++;
        await output(session, "mkdir made; echo bootstrap > made/file; chmod 750 made/file");
      },
    };
    assert.deepEqual(await prewarm(input), { reused: false });
    assert.deepEqual(await prewarm(input), { reused: true });
    assert.equal(built, 1);
    assert.deepEqual(sandboxProcesses(), []);
    for (const key of ["one", "two"]) {
      const { session } = await open({ key, templateKey: "template" });
      assert.equal(
        await output(session, "cat seed made/file; stat -c %a made/file; echo own > seed"),
        "seed\nbootstrap\n750\n",
      );
    }
  },

  "a session that exists keeps its files whatever becomes of its template": async ({ adapter }) => {
    const { prewarm, open } = adapter();
    await prewarm({ key: "template", seeds: [{ path: "file", content: "seed" }] });
    const input = { key: "session", templateKey: "template" };
    await (await open(input)).session.writeTextFile({ path: "file", content: "own" });
    assert.equal(await (await open(input)).session.readTextFile({ path: "file" }), "own");
    const other = await open({ key: "session", templateKey: "another, never built" });
    assert.equal(await other.session.readTextFile({ path: "file" }), "own");
  },

  "another revision is another template, other limits are not": async ({ adapter }) => {
    await adapter({ templateRevision: "1" }).prewarm({ key: "t", seeds: [{ path: "f", content: "1" }] });
    const changed = {
      templateRevision: "1",
      runTimeoutMs: 5000,
      maxOutputBytes: null,
      networkPolicy: "deny-all",
    } as const;
    assert.deepEqual(await adapter(changed).prewarm({ key: "t" }), { reused: true });
    assert.deepEqual(await adapter({ templateRevision: "2" }).prewarm({ key: "t" }), { reused: false });
    await assert.rejects(
      adapter({ templateRevision: "3" }).open({ key: "s", templateKey: "t" }),
      code("ERR_TEMPLATE_NOT_FOUND"),
    );
  },

  "seeds are in place before bootstrap, as text and as bytes": async ({ adapter }) => {
    const seen: string[] = [];
    await adapter().prewarm({
      key: "template",
      seeds: [
        { path: "/workspace/deep/down/text", content: "text\n" },
        { path: "relative", content: Buffer.from([0x66, 0xff, 0x0a]) },
      ],
      bootstrap: async (session) => {
        seen.push(await output(session, "cat deep/down/text; od -An -tx1 relative"));
      },
    });
    assert.deepEqual(seen, ["text\n 66 ff 0a\n"]);
  },

  "seeds beneath $HOME land in the workspace, for commands and the file API": async ({ adapter }) => {
    const { prewarm, open } = adapter();
    await prewarm({
      key: "template",
      seeds: [{ path: "$HOME/.agents/skills/greet/SKILL.md", content: "Say hello.\n" }],
    });
    const { session } = await open({ key: "session", templateKey: "template" });
    assert.equal(await output(session, "cat $HOME/.agents/skills/greet/SKILL.md"), "Say hello.\n");
    assert.equal(await session.readTextFile({ path: "/workspace/.agents/skills/greet/SKILL.md" }), "Say hello.\n");
  },

  "links stay as they are, and lead where they led": async ({ adapter }) => {
    const { prewarm, open } = adapter();
    await prewarm({
      key: "template",
      bootstrap: async (session) => {
        await output(
          session,
          `mkdir -p node_modules/.bin node_modules/foo
          printf '#!/bin/sh\\necho tool-ok\\n' > node_modules/foo/cli; chmod +x node_modules/foo/cli
          ln -s ../foo/cli node_modules/.bin/foo; ln -s nowhere dangling; ln -s /workspace/node_modules absolute
          ln node_modules/foo/cli hard; ln -s . self`,
        );
      },
    });
    const { session } = await open({ key: "session", templateKey: "template" });
    assert.equal(await output(session, "node_modules/.bin/foo; absolute/.bin/foo; ./hard"), "tool-ok\n".repeat(3));
    assert.equal(
      await output(session, "readlink node_modules/.bin/foo dangling absolute self; stat -c %h hard"),
      "../foo/cli\nnowhere\n/workspace/node_modules\n.\n2\n",
    );
  },

  "odd files do not keep a session from being opened": async ({ adapter }) => {
    const { prewarm, open } = adapter();
    await prewarm({
      key: "template",
      bootstrap: async (session) => {
        await session.writeTextFile({
          path: "socket.cjs",
          content: 'require("node:net").createServer().listen("socket", () => process.kill(process.pid, "SIGKILL"));',
        });
        await session.run({ command: `${quote(process.execPath)} socket.cjs` });
        await output(
          session,
          String.raw`test -S socket; mkfifo fifo; echo x > $'bad\xff'; echo y > $'new\nline'; mkdir closed; echo z > closed/in
          chmod 500 closed; echo r > ro; chmod 400 ro; truncate -s 1G sparse; touch -d 2001-02-03T04:05:06Z old; mkdir empty`,
        );
      },
    });
    const { session } = await open({ key: "session", templateKey: "template" });
    assert.equal(
      await output(
        session,
        String.raw`test -p fifo && cat $'bad\xff' $'new\nline' closed/in ro && stat -c %a closed ro && stat -c %s sparse && date -u -r old +%F
        test $(stat -c %b sparse) -lt 100 && echo holes; ls empty; chmod 700 closed`,
      ),
      "x\ny\nz\nr\n500\n400\n1073741824\n2001-02-03\nholes\n",
    );
  },

  "a bootstrap that fails leaves no template and throws what it threw": async (place) => {
    const { prewarm, open } = place.adapter();
    const failure = new Error("apt is down");
    const job = nap();
    await assert.rejects(
      prewarm({
        key: "template",
        seeds: [{ path: "seed", content: "x" }],
        bootstrap: async (session) => {
          await output(session, `echo half > made; ${job.command} & true`);
          throw failure;
        },
      }),
      same(failure),
    );
    assert.equal(job.alive(), 0);
    assert.deepEqual(sandboxProcesses(), []);
    assert.deepEqual(leftovers(place), []);
    await assert.rejects(open({ key: "session", templateKey: "template" }), code("ERR_TEMPLATE_NOT_FOUND"));
    assert.deepEqual(await prewarm({ key: "template" }), { reused: false });
    assert.equal(await output((await open({ key: "session", templateKey: "template" })).session, "ls -A"), "");
  },

  "a command of bootstrap that exits with 1 fails it, other codes are answers": async ({ adapter }) => {
    const { prewarm } = adapter();
    const failing = (command: string) => ({
      key: "template",
      bootstrap: async (session: SandboxOperations) => void (await session.run({ command })),
    });
    await assert.rejects(prewarm(failing("echo the reason >&2; exit 1")), /the reason/);
    assert.deepEqual(await prewarm(failing("exit 2")), { reused: false });
  },

  "four prewarms of one key at once run bootstrap once": async ({ adapter }) => {
    let built = 0;
    const { prewarm } = adapter();
    const results = await Promise.all(
      Array.from({ length: 4 }, () =>
        prewarm({
          key: "template",
          bootstrap: async (session) => {
            built++;
            await output(session, "sleep 0.2");
          },
        }),
      ),
    );
    assert.equal(built, 1);
    assert.deepEqual(results.map(({ reused }) => reused).toSorted(), [false, true, true, true]);
  },

  "when the builder of four fails, the next one builds": async ({ adapter }) => {
    let built = 0;
    const { prewarm } = adapter();
    const results = await Promise.allSettled(
      Array.from({ length: 4 }, () =>
        prewarm({
          key: "template",
          bootstrap: () => {
            if (++built === 1) throw new Error("first");
          },
        }),
      ),
    );
    assert.equal(built, 2);
    assert.equal(results.filter(({ status }) => status === "rejected").length, 1);
  },

  "three processes that prewarm one key run bootstrap once": async (place) => {
    const log = join(place.directory, "log");
    const input = {
      factory: place.factory.module,
      options: { cacheDir: place.cacheDir },
      key: "template",
      log,
      command: "sleep 0.3",
    };
    const answers = await Promise.all(Array.from({ length: 3 }, () => program("prewarm", input).done));
    assert.deepEqual(answers.flat().toSorted(), ["false", "true", "true"]);
    assert.equal(readFileSync(log, "utf8"), "bootstrap\n");
  },

  "a builder that is killed leaves no template and no process, and the next one builds": async (place) => {
    const log = join(place.directory, "log");
    const left = nap();
    const builder = program("prewarm", {
      factory: place.factory.module,
      options: { cacheDir: place.cacheDir },
      key: "template",
      log,
      command: `echo half > made; ${left.command}`,
    });
    await left.reached(1);
    builder.kill();
    await left.reached(0);
    const { prewarm, open } = place.adapter();
    assert.deepEqual(await prewarm({ key: "template", seeds: [{ path: "seed", content: "" }] }), { reused: false });
    assert.equal(await output((await open({ key: "session", templateKey: "template" })).session, "ls -A"), "seed\n");
  },

  "a missing template is an error that eve recognises": async ({ open, factory }) => {
    const expected = { name: "SandboxTemplateNotProvisionedError", ...(await factory.missing("never built")) };
    await assert.rejects(open({}, { templateKey: "never built" }), (error: unknown) => {
      assert.ok(error instanceof Error);
      const members = error as Error & Record<string, unknown>;
      assert.deepEqual(Object.fromEntries(Object.keys(expected).map((name) => [name, members[name]])), expected);
      return true;
    });
  },

  "a session that failed for its missing template leaves nothing, and opens once it is there": async (place) => {
    const input = { key: "session", templateKey: "template" };
    const { prewarm, open } = place.adapter();
    await assert.rejects(open(input), code("ERR_TEMPLATE_NOT_FOUND"));
    await prewarm({ key: "template", seeds: [{ path: "seed", content: "x" }] });
    assert.equal(await (await open(input)).session.readTextFile({ path: "seed" }), "x");
  },

  "without a template key a session begins empty": async ({ session }) => {
    assert.equal(await output(await session(), "ls -A"), "");
  },

  "what bootstrap left running is dead before the template is published": async ({ adapter }) => {
    const { prewarm, open } = adapter();
    const job = nap();
    let kept: SandboxOperations | undefined;
    await prewarm({
      key: "template",
      bootstrap: async (session) => {
        kept = session;
        await output(session, `( while :; do echo x >> ticks; done ) & setsid ${job.command} & true`);
        await until("it writes", async () => (await session.readTextFile({ path: "ticks" })) !== null);
      },
    });
    assert.equal(job.alive(), 0);
    assert.deepEqual(sandboxProcesses(), []);
    const size = async (key: string) =>
      await output((await open({ key, templateKey: "template" })).session, "wc -c < ticks");
    assert.equal(await size("one"), await size("two"));
    await assert.rejects(kept!.run({ command: "true" }), code("ERR_CLOSED"));
    await assert.rejects(kept!.writeTextFile({ path: "late", content: "" }), code("ERR_CLOSED"));
  },
};

/** What is in the cache of templates. */
function leftovers({ cacheDir }: Place): string[] {
  return readdirSync(join(cacheDir, "templates")).filter((name) => !name.endsWith(".lock"));
}
