/** Which template is missing. */
export interface MissingTemplate {
  /** What was to be opened from it: a `backend` or a `provider`. */
  readonly kind: "backend" | "provider";
  readonly name: string;
  readonly templateKey: string;
  /** What builds it. */
  readonly remedy: string;
  readonly cause: unknown;
}

/**
 * Returns the error that eve takes for its SandboxTemplateNotProvisionedError:
 * it looks at the name and the two strings, which are called `backendName` up to
 * 0.63 and `providerName` from 0.64. eve's own class cannot be used, because not
 * every release exports it.
 */
export function templateNotProvisioned({ kind, name, templateKey, remedy, cause }: MissingTemplate): Error {
  const message =
    `sandbox template ${JSON.stringify(templateKey)} has not been built for the ${kind} ${JSON.stringify(name)}: ` +
    `${remedy}, or give it a cacheDir that already has it`;
  return Object.assign(new Error(message, { cause }), {
    name: "SandboxTemplateNotProvisionedError",
    code: "ERR_TEMPLATE_NOT_FOUND",
    [`${kind}Name`]: name,
    templateKey,
  });
}
