/**
 * Returns the error that eve takes for its SandboxTemplateNotProvisionedError:
 * it looks at the name and the two strings. eve's own class cannot be used,
 * because not every release has it.
 */
export function templateNotProvisioned(backendName: string, templateKey: string, cause: unknown): Error {
  const message =
    `sandbox template ${JSON.stringify(templateKey)} has not been built for the backend ${JSON.stringify(backendName)}: ` +
    "start the server with `eve start`, which builds it, or give it a cacheDir that already has it";
  return Object.assign(new Error(message, { cause }), {
    name: "SandboxTemplateNotProvisionedError",
    code: "ERR_TEMPLATE_NOT_FOUND",
    backendName,
    templateKey,
  });
}
