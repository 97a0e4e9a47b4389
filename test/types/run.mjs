// Compiles backend.ts or provider.ts, whichever it knows, and the README's examples
// for it against the types of every eve release in package.json, and lets each of
// them look at our error for a missing template. Installs them first.
import { execFileSync } from "node:child_process";
import { readFile, writeFile, mkdir } from "node:fs/promises";
import { join, relative } from "node:path";

const here = import.meta.dirname;
const root = join(here, "../..");
const out = join(root, "build/types");
const manifest = await readFile(join(here, "package-lock.json"), "utf8");
const stamp = join(here, "node_modules/.installed");

if ((await readFile(stamp, "utf8").catch(() => "")) !== manifest) {
  console.log("test-types: installing the eve releases");
  const quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error"];
  execFileSync("npm", ["ci", ...quiet], { cwd: here, stdio: "inherit" });
  await writeFile(stamp, manifest);
}

const tsc = (config) => {
  try {
    execFileSync(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", config], { stdio: "inherit" });
    return true;
  } catch {
    return false;
  }
};

const { dependencies } = JSON.parse(await readFile(join(here, "package.json"), "utf8"));
const releases = Object.keys(dependencies).filter((name) => name.startsWith("eve-"));
const { templateNotProvisioned } = await import("../../dist/eve/errors.js");
const failed = [];

await mkdir(out, { recursive: true });
const examples = await readmeExamples();
for (const release of releases) {
  const minor = Number(release.split(".")[1]);
  const generation = minor < 64 ? "backend" : "provider";
  const shown = examples.filter((example) => example.generation === generation);
  const sources = [`test/types/${generation}.ts`, ...shown.map(({ path }) => path)];
  if (minor >= 66) sources.push("test/types/chosen-session.ts");
  const config = join(out, `${release}.json`);
  const from = (path) => relative(out, join(root, path));
  const eve = `test/types/node_modules/${release}/dist/src`;
  await writeFile(
    config,
    JSON.stringify({
      extends: from("tsconfig.json"),
      compilerOptions: {
        noEmit: true,
        rootDir: from("."),
        // Other people's declarations are theirs to check.
        skipLibCheck: true,
        // As in a project that does not know the option.
        exactOptionalPropertyTypes: false,
        typeRoots: [from("node_modules/@types")],
        paths: {
          "eve/sandbox": [from(`${eve}/public/sandbox/index.d.ts`)],
          "eve/sandbox/provider": [from(`${eve}/public/sandbox/provider.d.ts`)],
          "eve/tools": [from(`${eve}/public/tools/index.d.ts`)],
          "@evelandhq/sandbox-bwrap": [from("dist/index.d.ts")],
          "@evelandhq/sandbox-bwrap/provider": [from("dist/eve/provider/index.d.ts")],
        },
      },
      include: [],
      files: sources.map(from),
    }),
  );
  // From 0.64 it is exported nowhere.
  const { SandboxTemplateNotProvisionedError } = await (generation === "backend"
    ? import(`${release}/sandbox`)
    : import(join(root, eve, "shared/sandbox-template-error.js")));
  const error = templateNotProvisioned({ kind: generation, name: "bwrap", templateKey: "key", remedy: "build it" });
  const recognised = SandboxTemplateNotProvisionedError.is(error);
  const compiled = tsc(config);
  console.log(
    `${release}: types of the ${generation} and ${shown.length} of the README's examples ` +
      `${compiled ? "fit" : "do not fit"}, error ${recognised ? "recognised" : "not recognised"}`,
  );
  if (!compiled || !recognised || shown.length === 0) failed.push(release);
}

const unit = tsc(join(root, "tsconfig.test.json"));
console.log(`test/unit: ${unit ? "compiles" : "does not compile"}`);
if (failed.length > 0 || !unit || releases.length === 0) process.exit(1);

/**
 * Writes each block of TypeScript in the README to a file, on the lines that it has
 * there, so that the compiler names them. Which eve it is for is told by the entry
 * of ours that it imports.
 */
async function readmeExamples() {
  const readme = await readFile(join(root, "README.md"), "utf8");
  const found = [...readme.matchAll(/^```ts\n(.*?)^```$/gms)].map(async ({ index, 1: code }) => {
    const line = readme.slice(0, index).split("\n").length;
    const path = `build/types/README-${line}.ts`;
    await writeFile(join(root, path), "\n".repeat(line) + code);
    return { path, generation: code.includes('"@evelandhq/sandbox-bwrap/provider"') ? "provider" : "backend" };
  });
  return await Promise.all(found);
}
