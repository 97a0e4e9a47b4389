import { readFileSync } from "node:fs";
import { basename } from "node:path";

/** The names of this package's binaries that are mapped into the process, sorted. */
export function nativeCode() {
  const mapped = readFileSync("/proc/self/maps", "utf8").match(/\/\S*(libsandbox\.so|sandbox\.node)$/gm) ?? [];
  return [...new Set(mapped.map((path) => basename(path)))].toSorted();
}
