import assert from "node:assert/strict";

import { output } from "../place.ts";
import type { Cases } from "../suite.ts";

const seen = 'echo "$HOME" ~; getent passwd "$(id -u)" | cut -d: -f6; pwd';

export const home: Cases = {
  "the home is the workspace, where a login file begins every later command": async ({ session }) => {
    const s = await session();
    assert.equal(await output(s, seen), "/workspace /workspace\n/workspace\n/workspace\n");
    await s.writeTextFile({ path: ".bash_profile", content: "echo read" });
    assert.equal(await output(s, "echo run"), "read\nrun\n");
  },

  "a separate home: no file of the workspace is read by a shell, and caches stay out of it": async ({ session }) => {
    const s = await session({ home: "separate" });
    assert.equal(await output(s, seen), "/home/sandbox /home/sandbox\n/home/sandbox\n/workspace\n");
    for (const path of [".profile", ".bash_profile", ".bashrc", ".bash_login"]) {
      await s.writeTextFile({ path, content: "exit 7" });
    }
    assert.equal(await output(s, "echo run"), "run\n");
    assert.equal(await output(s, "npm config get cache"), "/home/sandbox/.npm\n");
    await s.writeTextFile({ path: "/home/sandbox/.bash_profile", content: "echo read" });
    assert.equal(await output(s, "echo run; cat ~/.bash_profile"), "read\nrun\necho read");
  },

  "a separate home is as durable as the workspace, and the session's alone": async ({ open }) => {
    const options = { home: "separate" } as const;
    const first = await open(options);
    await output(first.session, "mkdir -p ~/.config && echo mine > ~/.config/tool && ln -s .config/tool ~/link");
    const other = await open(options, { key: "other" });
    assert.equal(await other.session.readTextFile({ path: "/home/sandbox/.config/tool" }), null);
    await first.stop();
    assert.equal(await first.session.readTextFile({ path: "/home/sandbox/link" }), "mine\n");
    await first.shutdown();
    const again = await open(options);
    assert.equal(await output(again.session, "cat ~/link"), "mine\n");
    await again.delete();
    const anew = await open(options);
    assert.equal(await output(anew.session, "ls -A ~"), "");
  },

  "a template's separate home goes to its sessions, with the files that begin with $HOME": async ({ adapter }) => {
    const { prewarm, open } = adapter({ home: "separate" });
    await prewarm({
      key: "template",
      seeds: [
        { path: "$HOME/.agents/skills/s/SKILL.md", content: "skill" },
        { path: "/workspace/seed", content: "seed" },
      ],
      bootstrap: async (s) => {
        await output(s, "mkdir -p ~/.cache && echo warm > ~/.cache/tool");
      },
    });
    const one = await open({ key: "one", templateKey: "template" });
    const all = "cat ~/.agents/skills/s/SKILL.md ~/.cache/tool seed";
    assert.equal(await output(one.session, `${all}; ls -A`), "skillwarm\nseedseed\n");
    await output(one.session, "echo changed > ~/.cache/tool");
    const two = await open({ key: "two", templateKey: "template" });
    assert.equal(await output(two.session, all), "skillwarm\nseed");
  },

  "a session that was made without a home of its own gets one when it is asked for": async ({ open }) => {
    const without = await open();
    await without.session.writeTextFile({ path: "f", content: "kept" });
    await without.shutdown();
    const { session } = await open({ home: "separate" });
    assert.equal(await output(session, 'echo "$HOME"; cat f; ls -A ~'), "/home/sandbox\nkept");
  },
};
