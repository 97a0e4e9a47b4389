// Builds, for bwrap alone, a sandbox with the mounts that a session's sandbox has.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { lstatSync, readdirSync, readlinkSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";

const listMounts = "cat /proc/self/mountinfo";

/** Parses mountinfo, which the kernel lists in the order of mounting. */
function parseMounts(text) {
  return text
    .trim()
    .split("\n")
    .map((line) => {
      const [mount, fileSystem] = line.split(" - ").map((half) => half.split(" "));
      return { root: mount[3], path: mount[4], readOnly: mount[5].split(",").includes("ro"), type: fileSystem[0] };
    });
}

const below = (path, directory) => path.startsWith(`${directory}/`);

/** What --proc and --dev mount by themselves. */
const comesAlong = ({ path, type }) => below(path, "/proc") || (below(path, "/dev") && type !== "tmpfs");

/**
 * Returns bwrap's arguments, without a command, for the namespaces and mounts of
 * the session's sandbox over the given workspace. Files go to scratch, an
 * existing directory. Throws when the mounts of the two are not the same.
 */
export async function sameMounts(session, { workspace, scratch }) {
  const inSession = async (command) => {
    const { exitCode, stdout, stderr } = await session.run({ command });
    if (exitCode !== 0) throw new Error(`${command}: status ${exitCode}\n${stderr}`);
    return stdout;
  };
  const mounts = parseMounts(await inSession(listMounts));
  const args = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"];
  for (const name of readdirSync("/")) {
    const link = lstatSync(`/${name}`).isSymbolicLink() && (await inSession(`readlink /${name} || true`)).trim();
    if (link) args.push("--symlink", readlinkSync(`/${name}`), `/${name}`);
  }
  let files = 0;
  for (const mount of mounts) {
    const { path } = mount;
    if (path === "/" || comesAlong(mount)) continue;
    if (path === "/workspace") args.push("--bind", workspace, path);
    else if (path === "/proc" || path === "/dev") args.push(`--${path.slice(1)}`, path);
    else if (mount.type !== "tmpfs") args.push("--ro-bind", path, path);
    else if (mount.root === "/") args.push("--tmpfs", path, ...(mount.readOnly ? ["--remount-ro", path] : []));
    else {
      // A file that covers the host's: one of ours, or an empty one.
      const file = join(scratch, `covers-${files++}`);
      await writeFile(file, await inSession(`cat ${path}`));
      args.push("--ro-bind", file, path);
    }
  }
  args.push("--remount-ro", "/", "--chdir", "/workspace");

  const child = spawn("bwrap", [...args, "bash", "-c", listMounts], { stdio: ["ignore", "pipe", "inherit"] });
  let alone = "";
  child.stdout.setEncoding("utf8").on("data", (text) => (alone += text));
  await once(child, "close");
  const paths = (list) => list.map(({ path }) => path).toSorted();
  const [ours, theirs] = [paths(mounts), paths(parseMounts(alone))];
  if (ours.join() !== theirs.join()) throw new Error(`bwrap alone has other mounts:\n${ours}\n${theirs}`);
  return args;
}
