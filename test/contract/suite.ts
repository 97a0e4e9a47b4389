import assert from "node:assert/strict";
import type { TestContext } from "node:test";

import type { Factory } from "./adapter.ts";
import { events } from "./cases/events.ts";
import { files } from "./cases/files.ts";
import { home } from "./cases/home.ts";
import { input } from "./cases/input.ts";
import { isolation } from "./cases/isolation.ts";
import { run } from "./cases/run.ts";
import { session } from "./cases/session.ts";
import { spawn } from "./cases/spawn.ts";
import { standbys } from "./cases/standby.ts";
import { templates } from "./cases/templates.ts";
import { terminal } from "./cases/terminal.ts";
import { inPlace, type Place } from "./place.ts";

/** Tests by the sentence that each of them holds. */
export type Cases = Readonly<Record<string, (place: Place) => Promise<void>>>;

const areas: Readonly<Record<string, Cases>> = {
  run,
  input,
  spawn,
  terminal,
  session,
  templates,
  files,
  isolation,
  home,
  standbys,
  events,
};

/** No test waits longer than this for anything; what hangs shall say where. */
const timeoutMs = 120_000;

/**
 * What every way into a sandbox owes its users, tried on the real addon, bwrap
 * and kernel. Each case has a cache of its own, and leaves neither a process nor
 * a file behind.
 */
export async function suite(t: TestContext, factory: Factory): Promise<void> {
  const except = new Map(Object.entries(factory.except ?? {}));
  for (const [area, cases] of Object.entries(areas)) {
    const instead = new Map(Object.entries(factory.instead?.[area] ?? {}));
    await t.test(area, async (t) => {
      for (const [name, run] of Object.entries(cases)) {
        const reason = except.get(name);
        const play = instead.get(name) ?? run;
        except.delete(name);
        instead.delete(name);
        await t.test(name, { timeout: timeoutMs, skip: reason ?? false }, () => inPlace(factory, play));
      }
    });
    for (const name of instead.keys()) except.set(name, "stands for no case");
  }
  // An exception whose case has another name by now would be one that nobody sees.
  assert.deepEqual([...except.keys()], []);
}
