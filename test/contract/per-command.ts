import backend from "./backend.ts";
import type { Factory } from "./adapter.ts";
import { alone } from "./cases/alone.ts";

/** The backend object, with a sandbox for every command. */
const perCommand: Factory = {
  ...backend,
  module: import.meta.url,
  instead: alone,
  make: (options) => backend.make({ processes: "command", ...options }),
};

export default perCommand;
