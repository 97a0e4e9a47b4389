// elsewhere.mjs PLATFORM prints what the package says on another platform.

import { nativeCode } from "./native.mjs";

const [platform] = process.argv.slice(2);
Object.defineProperty(process, "platform", { value: platform });

const { isBwrapAvailable } = await import("@evelandhq/sandbox-bwrap");
console.log(JSON.stringify({ available: isBwrapAvailable(), native: nativeCode() }));
