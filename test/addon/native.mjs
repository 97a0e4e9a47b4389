// What the tests of the addon share: the build under test, and processes that
// play a scenario with it. Most of what is tested here ends a process when it
// fails, so nothing of it happens in the process that tests.

import { fork } from "node:child_process";
import { once } from "node:events";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));

/** The folder of the build under test (build.sh); SBX_TEST_ADDON names another one. */
export const addonDirectory = process.env.SBX_TEST_ADDON ?? path.resolve(here, "../../build/test/intact");

/** Loads the addon. The library is not loaded by that. */
export function requireAddon() {
  return createRequire(import.meta.url)(path.join(addonDirectory, "sandbox.node"));
}

/**
 * Loads the addon and the library and opens this environment. `request` sends a
 * request and resolves to `{ ok | error, data }`.
 */
export function openAddon({ onEvent = () => {} } = {}) {
  const addon = requireAddon();
  addon.load();
  const waiting = new Map();
  addon.open((call, json, data) => {
    if (call === 0) {
      onEvent(JSON.parse(json), data);
      return;
    }
    waiting.get(call)({ ...JSON.parse(json), data });
    waiting.delete(call);
  });
  let last = 0;
  const request = (name, body = {}, data = undefined) =>
    new Promise((resolve) => {
      const call = ++last;
      waiting.set(call, resolve);
      addon[name](call, JSON.stringify(body), data);
    });
  return { addon, request };
}

/**
 * Plays scenarios/NAME.mjs in a Node of its own and resolves to how it ended.
 * `during` is called with the child once it has sent its first message.
 */
export async function play(name, { args = [], during, timeoutMs = 60_000, execArgv = [] } = {}) {
  const child = fork(path.join(here, "scenarios", `${name}.mjs`), args, {
    stdio: ["ignore", "pipe", "pipe", "ipc"],
    execArgv,
    env: { ...process.env, SBX_TEST_ADDON: addonDirectory, NODE_OPTIONS: "" },
  });
  let stdout = "";
  let stderr = "";
  child.stdout.setEncoding("utf8").on("data", (text) => (stdout += text));
  child.stderr.setEncoding("utf8").on("data", (text) => (stderr += text));
  const timer = setTimeout(() => child.kill("SIGKILL"), timeoutMs);
  if (during !== undefined) {
    child.once("message", (message) => during(child, message));
  }
  const [code, signal] = await once(child, "close");
  clearTimeout(timer);
  return { code, signal, stdout, stderr };
}

/** How a scenario that went well ends: exit code 0 and nothing said. */
export const clean = { code: 0, signal: null, stdout: "", stderr: "" };
