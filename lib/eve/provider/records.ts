import { createHash } from "node:crypto";

import { invalid } from "../../errors.ts";
import type { Options } from "../../options.ts";
import type { Artifact, Json, ResourceTree, State } from "./eve.ts";

/** Raised when states that are on record can no longer be read. */
export const stateProtocolVersion = 1;

/** Returns a session's key in our store, which comes from eve's id for it and from nothing else. */
export function sessionName(id: string): string {
  return `eve-sbx-ses-bwrap-${id}`;
}

/** Returns what eve keeps of a session. */
export function stateOf(name: string): State {
  return { version: 1, name };
}

/** Returns a session's name from what eve kept. */
export function nameOf(state: unknown): string {
  const { version, name } = record(state, "state");
  if (version === 1 && typeof name === "string" && name !== "") return name;
  throw invalid("state", "is not one that this provider gave out");
}

/** Returns what eve keeps of a template; a key of `null` lets sessions begin empty. */
export function artifactOf(template: string | null, { templateRevision }: Options): Artifact {
  return { version: 1, template, revision: templateRevision ?? null };
}

/** Returns the template's key and revision from what eve kept. */
export function templateOf(artifact: unknown): { readonly template: string | null; readonly revision?: string } {
  const { version, template, revision } = record(artifact, "artifact");
  if (version === 1 && (template === null || (typeof template === "string" && template !== ""))) {
    if (revision === null) return { template };
    if (typeof revision === "string") return { template, revision };
  }
  throw invalid("artifact", "is not one that this provider gave out");
}

/** Returns what decides a template's content, of our options. Limits and the network do not. */
export function templateIdentity({ env, home }: Options): { readonly [name: string]: Json } {
  const variables = Object.entries(env).toSorted(([a], [b]) => (a < b ? -1 : 1));
  // A variable that is taken away is another thing than one that was never there.
  return {
    version: 1,
    env: variables.map(([name, value]) => [name, value ?? null]),
    ...(home === "separate" && { home }),
  };
}

/** What names a template where eve does not. */
export interface TemplateSource {
  readonly resources: { readonly skills?: ResourceTree; readonly workspace?: ResourceTree };
  readonly sourceRevision: string;
  /** The author's callback; its text counts, for it may come from a file that no revision covers. */
  readonly prepare: unknown;
}

/** Returns a template's key: another one for other files, another sandbox file or other options. */
export function templateKey(options: Options, { resources, sourceRevision, prepare }: TemplateSource): string {
  const identity = {
    ...templateIdentity(options),
    workspace: resources.workspace?.key ?? null,
    skills: resources.skills?.key ?? null,
    sourceRevision,
    prepare: prepare === undefined ? null : String(prepare),
  };
  return `eve-sbx-tpl-bwrap-${createHash("sha256").update(JSON.stringify(identity)).digest("hex")}`;
}

function record(value: unknown, field: string): Readonly<Record<string, unknown>> {
  if (typeof value === "object" && value !== null) return value as Readonly<Record<string, unknown>>;
  throw invalid(field, "is not one that this provider gave out");
}
