export { default } from "../../../tools/delete_sandbox";
