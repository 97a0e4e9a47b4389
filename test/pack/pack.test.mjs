// What users get: the tarball, installed where there is neither compiler nor Go.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";

const run = promisify(execFile);
const root = resolve(import.meta.dirname, "../..");
const eve = "0.44.4";

// What a build would need; a machine that only runs an agent has none of it.
const buildTools = /^(c\+\+|cc|[cg]?cpp|c89|c99|gcc|g\+\+|clang|as$|ld|gold|g?make|cmake|go$|gofmt|node-gyp|python)/;
const crossed = /^[a-z0-9_]+-linux-gnu-/; // x86_64-linux-gnu-gcc and its like

let dir;
let env;

/** Runs a program in the project, by default with nothing of this process's environment. */
async function inProject(project, file, args, environment = env) {
  const { stdout } = await run(file, args, { cwd: join(dir, project), env: environment, timeout: 300_000 });
  return stdout;
}

/** Runs a script of this folder in the project, which prints one JSON value. */
async function script(project, name, ...args) {
  for (const file of [name, "native.mjs"]) await cp(join(import.meta.dirname, file), join(dir, project, file));
  return JSON.parse(await inProject(project, "node", [name, ...args]));
}

/** Makes an empty project and installs packages without their scripts. */
async function install(project, ...packages) {
  await mkdir(join(dir, project));
  await writeFile(join(dir, project, "package.json"), JSON.stringify({ private: true, type: "module" }));
  const quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error"];
  // npm is configured for this machine by its environment and by files in HOME.
  await inProject(project, "npm", ["install", ...quiet, ...packages], { ...process.env, PATH: env.PATH });
}

before(async () => {
  dir = await mkdtemp(join(tmpdir(), "sbx-pack-"));
  const bin = join(dir, "bin");
  await mkdir(bin);
  for (const folder of process.env.PATH.split(":").toReversed()) {
    for (const name of await readdir(folder).catch(() => [])) {
      if (name === "node" || buildTools.test(name) || crossed.test(name)) continue;
      await rm(join(bin, name), { force: true });
      await symlink(join(folder, name), join(bin, name));
    }
  }
  await symlink(process.execPath, join(bin, "node"));
  await mkdir(join(dir, "home"));
  env = { PATH: bin, HOME: join(dir, "home"), TMPDIR: dir, LANG: "C.UTF-8" };

  const tarballs = (await readdir(join(root, "build"))).filter((name) => name.endsWith(".tgz"));
  assert.equal(tarballs.length, 1, "`make pack` leaves one tarball in build/");
  const tarball = join(root, "build", tarballs[0]);
  await install("with-eve", `eve@${eve}`, tarball);
  await install("without-eve", tarball);
});

after(() => rm(dir, { recursive: true, force: true }));

test("the path has no compiler and no Go", async () => {
  for (const tool of ["gcc", "g++", "cc", "c++", "go", "make", "python3"]) {
    await assert.rejects(inProject("with-eve", "bash", ["-c", `command -v ${tool}`]), tool);
  }
});

test("a command runs, and no native code is loaded before", async () => {
  const seen = await script("with-eve", "use.mjs", join(dir, "cache"));
  assert.deepEqual(seen, {
    nativeAfterImport: [],
    nativeAfterBackend: [],
    nativeAfterUse: ["libsandbox.so", "sandbox.node"],
    prewarmed: { reused: false },
    result: { exitCode: 3, stdout: "seeded in /workspace\n", stderr: "" },
    file: "written by the sandbox\n",
    missing: null,
  });
});

test("eve's own types and values are not needed to use it", async () => {
  const seen = await script("without-eve", "use.mjs", join(dir, "cache-without-eve"));
  assert.equal(seen.result.exitCode, 3);
});

test("elsewhere it imports, and says that there is no sandbox", async () => {
  for (const platform of ["darwin", "win32"]) {
    const seen = await script("without-eve", "elsewhere.mjs", platform);
    assert.deepEqual(seen, { available: false, native: [] }, platform);
  }
});
