// spawn.h - starts one process from the launcher thread.
#ifndef SANDBOX_SPAWN_H
#define SANDBOX_SPAWN_H

#include <stdbool.h>

// What is to be run. Everything belongs to the caller.
struct sbx_exec {
  const char *path;
  char *const *argv;
  char *const *envp;
  const char *dir; // NULL keeps the working directory
  int *fds;        // fds[i] becomes descriptor i; overwritten
  int nfds;
  bool keep_mask; // only for the test that breaks this rule
};

// What came of it. On success err is 0 and pidfd is close-on-exec.
struct sbx_started {
  int pid;
  int pidfd;
  int err;
};

// sbx_block_signals blocks every asynchronous signal in the calling thread, for good.
void sbx_block_signals(void);

// sbx_start_child starts a process with nothing but the given descriptors, all
// signals at their default and none blocked, in a session of its own.
void sbx_start_child(const struct sbx_exec *exec, struct sbx_started *out);

// sbx_try_userns makes a process in a new user namespace that exits at once,
// and returns 0 or the errno with which the kernel refused.
int sbx_try_userns(void);

#endif
