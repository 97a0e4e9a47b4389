// Starts thirty commands that bear MARKER, and is killed while it does.
import { bwrap } from "../../../dist/index.js";

const [marker, appRoot] = process.argv.slice(2);
const backend = bwrap({ networkPolicy: "deny-all" });
const { session } = await backend.create({
  templateKey: null,
  sessionKey: marker,
  runtimeContext: { appRoot },
});
process.send("ready");
process.once("message", () => {
  for (let i = 0; i < 30; i++) {
    void session.run({ command: `exec -a ${marker} sleep 3000` }).catch(() => {});
  }
});
