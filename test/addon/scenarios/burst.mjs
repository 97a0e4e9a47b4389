// Starts thirty commands that bear MARKER, and is killed while it does. The
// session's sandbox is live by then, or is started by the first ("cold"), or each
// has one of its own ("command").
import { bwrap } from "../../../dist/index.js";

const [marker, appRoot, temperature] = process.argv.slice(2);
const backend = bwrap({
  networkPolicy: "deny-all",
  processes: temperature === "command" ? "command" : "session",
});
const { session } = await backend.create({
  templateKey: null,
  sessionKey: marker,
  runtimeContext: { appRoot },
});
if (temperature === "live") {
  await session.run({ command: "true" });
}
process.send("ready");
process.once("message", () => {
  for (let i = 0; i < 30; i++) {
    void session.run({ command: `exec -a ${marker} sleep 3000` }).catch(() => {});
  }
});
