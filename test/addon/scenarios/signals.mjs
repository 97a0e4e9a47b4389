// Loading changes nothing about what the application's signals do.
import assert from "node:assert/strict";
import fs from "node:fs";
import net from "node:net";
import { openAddon } from "../native.mjs";

const bits = (name) => {
  const mask = BigInt(
    `0x${new RegExp(`^${name}:\\s+(.*)$`, "m").exec(fs.readFileSync("/proc/self/status", "utf8"))[1]}`,
  );
  return (signal) => ((mask >> BigInt(signal - 1)) & 1n) === 1n;
};
const [HUP, INT, QUIT, USR2, ALRM, TERM, URG, WINCH] = [1, 2, 3, 12, 14, 15, 23, 28];
const watched = [HUP, INT, QUIT, USR2, ALRM, TERM, URG, WINCH];
const actions = () => {
  const [caught, ignored, blocked] = ["SigCgt", "SigIgn", "SigBlk"].map(bits);
  return watched.map((n) => [n, n !== URG && caught(n), ignored(n), blocked(n)]);
};

const before = actions();
const { request } = openAddon();
assert.deepEqual(actions(), before);

// A write to a socket that nobody reads is an error, and no signal.
const server = net.createServer((socket) => socket.destroy()).listen(0, "127.0.0.1");
await new Promise((resolve) => server.once("listening", resolve));
const client = net.connect(server.address().port, "127.0.0.1");
const code = await new Promise((resolve) => {
  client.once("error", (error) => resolve(error.code));
  const more = (error) => error ?? client.write(Buffer.alloc(65536), more);
  more();
});
assert.ok(code === "EPIPE" || code === "ECONNRESET", code);
server.close();

// A handler runs, once for each signal, while Go is busy and after.
let handled = 0;
process.on("SIGURG", () => handled++);
const load = request("testLoad", { milliseconds: 300, goroutines: 8 });
for (let i = 1; i <= 20; i++) {
  process.kill(process.pid, "SIGURG");
  while (handled < i) {
    await new Promise(setImmediate);
  }
}
await load;
assert.equal(handled, 20);
process.disconnect();
