import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import { type Environment, type Native, openEnvironment } from "./environment.ts";
import { SandboxError } from "./errors.ts";

/** The core this code was written for: the package's version. */
export const coreVersion = "0.3.0";

const packageName = "@evelandhq/sandbox-bwrap";
const architectures: readonly string[] = ["x64", "arm64"];

const here = dirname(fileURLToPath(import.meta.url));
const require = createRequire(import.meta.url);

/** The addon, which keeps what belongs to this JavaScript environment. */
type SharedNative = Native & { [shared]?: Environment };

// The addon opens once in a JavaScript environment, where eve may have several
// copies of this code: it bundles anew what an author has edited.
const shared = Symbol.for("@evelandhq/sandbox-bwrap environment");

let native: SharedNative | undefined;

/** Returns this JavaScript environment's conversation with the core, loading it on first use. */
export function connect(): Environment {
  const addon = loadNative();
  addon[shared] ??= openEnvironment(addon);
  return addon[shared];
}

/**
 * Loads the addon and the core on first use.
 *
 * Errors: `ERR_UNAVAILABLE` on a platform without one, where none is found, or
 * where one of another version is.
 */
export function loadNative(): SharedNative {
  native ??= loadAddon();
  return native;
}

function loadAddon(): Native {
  const reason = unsupportedPlatform();
  if (reason) throw new SandboxError("ERR_UNAVAILABLE", reason);
  const path = findAddon();
  let addon: Native;
  try {
    addon = require(path) as Native;
    addon.load();
  } catch (cause) {
    const message = cause instanceof Error ? cause.message : String(cause);
    throw new SandboxError("ERR_UNAVAILABLE", `load the native addon: ${message}`, { detail: path, cause });
  }
  const version = addon.version();
  if (version !== coreVersion) {
    throw new SandboxError("ERR_UNAVAILABLE", `the native core is version ${version}, not ${coreVersion}`, {
      detail: path,
      remedy: `install ${packageName} anew: its JavaScript and its native part come from different releases`,
    });
  }
  return addon;
}

/** Why there can be no addon for this platform; `undefined` where there is one. */
function unsupportedPlatform(): string | undefined {
  if (process.platform !== "linux") return `bubblewrap needs Linux, this is ${process.platform}`;
  if (!architectures.includes(process.arch)) {
    return `there is a native addon for ${architectures.join(" and ")}, not for ${process.arch}`;
  }
  if (isMusl())
    return "the native addon needs glibc, and this Node is built for musl: use a Debian-based image, not Alpine";
  return undefined;
}

function isMusl(): boolean {
  const report = process.report as typeof process.report & { excludeNetwork: boolean };
  // Without it the report asks the DNS about every interface.
  const { excludeNetwork } = report;
  report.excludeNetwork = true;
  try {
    const { header } = report.getReport() as { readonly header: Readonly<Record<string, unknown>> };
    return header["glibcVersionRuntime"] === undefined;
  } finally {
    report.excludeNetwork = excludeNetwork;
  }
}

// Each path is written out at its place: what traces a server's files into its
// output reads such expressions, and follows no helper function.
function findAddon(): string {
  const override = process.env["SANDBOX_BWRAP_NATIVE"];
  if (override) return resolve(override);

  // A package as installed has no binding.gyp; a checkout's own build goes first.
  const built = join(here, "..", "build", "Release", "sandbox.node");
  if (existsSync(join(here, "..", "binding.gyp")) && existsSync(built)) return built;
  const beside = join(here, "..", "prebuilds", `${process.platform}-${process.arch}`, "sandbox.node");
  if (existsSync(beside)) return beside;

  // This code was bundled into a server: the package itself lies in a
  // node_modules further up, or where the server was started.
  for (const from of [import.meta.url, join(process.cwd(), "package.json"), process.argv[1]]) {
    const root = from === undefined ? undefined : packageRoot(from);
    if (root === undefined) continue;
    for (const directory of [
      ["build", "Release"],
      ["prebuilds", `${process.platform}-${process.arch}`],
    ]) {
      const path = join(root, ...directory, "sandbox.node");
      if (existsSync(path)) return path;
    }
  }
  // In the message itself: eve shows nothing else.
  const external = `build.externalDependencies: ["${packageName}"] in defineAgent()`;
  throw new SandboxError(
    "ERR_UNAVAILABLE",
    `the native addon of ${packageName} is not to be found: keep the package out of the bundle with ${external}`,
    { detail: `looked from ${here}`, remedy: `add ${external}, or set SANDBOX_BWRAP_NATIVE to its sandbox.node` },
  );
}

function packageRoot(from: string): string | undefined {
  try {
    return dirname(createRequire(from).resolve(`${packageName}/package.json`));
  } catch {
    return undefined;
  }
}
