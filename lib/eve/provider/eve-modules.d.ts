// eve's modules as our build sees them, so that it needs no eve. Nothing of this
// is shipped: in a user's project the same names lead to the eve that is there.

declare module "eve/sandbox" {
  export interface SandboxSession {
    resolvePath(path: string): string;
  }

  export interface SandboxEnvironment<
    Options extends object | undefined = object,
    Session extends SandboxSession = SandboxSession,
  > {
    readonly provider: string;
    open(options?: Options): Promise<Session>;
  }
}

declare module "eve/sandbox/provider" {
  export function defineSandboxProvider(definition: object): unknown;
}
