import { defineParentSandbox } from "eve/sandbox";

export default defineParentSandbox();
