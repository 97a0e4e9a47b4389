// Sends SIGUSR2 to the process of the argument until that has ended.
const pid = Number(process.argv[2]);
try {
  for (;;) {
    process.kill(pid, "SIGUSR2");
  }
} catch (error) {
  process.exitCode = error.code === "ESRCH" ? 0 : 1;
}
