/** Packages that eve is not to put into the server's bundle. */
export const externalDependencies: readonly string[] = [];
