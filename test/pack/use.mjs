// Runs in a project that has the package installed: use.mjs CACHE_DIR prints what
// one use of it saw.

import { nativeCode } from "./native.mjs";

const [cacheDir] = process.argv.slice(2);
const runtimeContext = { appRoot: process.cwd() };

const { bwrap } = await import("@evelandhq/sandbox-bwrap");
const nativeAfterImport = nativeCode();
const backend = bwrap({ cacheDir });
const nativeAfterBackend = nativeCode();

const prewarmed = await backend.prewarm({
  templateKey: "pack-template",
  runtimeContext,
  seedFiles: [{ path: "/workspace/seed.txt", content: Buffer.from("seeded") }],
});
const handle = await backend.create({ templateKey: "pack-template", sessionKey: "pack-session", runtimeContext });
const { session } = handle;
const { exitCode, stdout, stderr } = await session.run({
  command: 'echo "$(cat seed.txt) in $PWD"; echo "written by the sandbox" > out.txt; exit 3',
});
const file = await session.readTextFile({ path: "out.txt" });
const missing = await session.readTextFile({ path: "missing.txt" });
const nativeAfterUse = nativeCode();
await handle.delete();
await handle.shutdown();

console.log(
  JSON.stringify({
    nativeAfterImport,
    nativeAfterBackend,
    nativeAfterUse,
    prewarmed,
    result: { exitCode, stdout, stderr },
    file,
    missing,
  }),
);
