#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum {
  KERNEL_SIGNALS = 64,
  KERNEL_SIGSET_BYTES = 8,
  STACK_BYTES = 64 * 1024,
  GUARD_BYTES = 64 * 1024, // a page on every architecture
  DIRENT_BYTES = 4096,
};

// The kernel's view of a signal mask. glibc's sigset functions keep signals 32
// and 33 to themselves, and those too must not hit the child, which runs with
// the parent's handlers and memory until it has reset them.
static void set_mask(uint64_t mask) {
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, (size_t)KERNEL_SIGSET_BYTES);
}

static uint64_t bit(int sig) { return UINT64_C(1) << (sig - 1); }

// Faults stay deliverable: blocked, a mistake in Go code on this thread would
// be a silent kill of the whole process instead of a panic that is recovered.
static uint64_t asynchronous(void) {
  return ~(bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGABRT));
}

void sbx_block_signals(void) { set_mask(asynchronous()); }

// A child's parameters and its answer; the memory is shared until exec.
struct child {
  const struct sbx_exec *exec;
  int err;
};

static void default_signals(void) {
  // All zero is SIG_DFL without flags in every architecture's struct sigaction,
  // which is not larger than this.
  uint64_t action[8] = {0};
  for (int sig = 1; sig <= KERNEL_SIGNALS; sig++) {
    if (sig != SIGKILL && sig != SIGSTOP) {
      syscall(SYS_rt_sigaction, sig, action, NULL, (size_t)KERNEL_SIGSET_BYTES);
    }
  }
}

struct dirent64 {
  uint64_t ino;
  int64_t off;
  unsigned short reclen;
  unsigned char type;
  char name[];
};

// Without opendir, which takes memory that the parent's other threads may be in
// the middle of managing. Marks instead of closing: the listing stays stable.
static int mark_from_listing(int first) {
  int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) {
    return -1;
  }
  _Alignas(struct dirent64) char buf[DIRENT_BYTES];
  long n;
  while ((n = syscall(SYS_getdents64, dir, buf, sizeof buf)) > 0) {
    for (long at = 0; at < n;) {
      const struct dirent64 *e = (const struct dirent64 *)(buf + at);
      at += e->reclen;
      int fd = 0;
      const char *c = e->name;
      while (*c >= '0' && *c <= '9') {
        fd = fd * 10 + (*c++ - '0');
      }
      if (*c == '\0' && c != e->name && fd >= first) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
      }
    }
  }
  close(dir);
  return n < 0 ? -1 : 0;
}

static void close_from(int first) {
  if (syscall(SYS_close_range, (unsigned)first, ~0U, 0U) == 0) {
    return; // Linux 5.9
  }
  if (mark_from_listing(first) == 0) {
    return;
  }
  struct rlimit limit;
  int last = 1 << 16;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max < (rlim_t)INT32_MAX) {
    last = (int)limit.rlim_max;
  }
  for (int fd = first; fd < last; fd++) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

// The child has its own descriptor table (no CLONE_FILES), so nothing here can
// be seen or inherited by another child of the parent.
static int place_descriptors(const struct sbx_exec *exec) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < (rlim_t)exec->nfds * 2 + 64 &&
      limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  // First everything out of the target range, or one dup2 could overwrite the
  // source of a later one.
  for (int i = 0; i < exec->nfds; i++) {
    if (exec->fds[i] < exec->nfds) {
      int moved = fcntl(exec->fds[i], F_DUPFD_CLOEXEC, exec->nfds);
      if (moved < 0) {
        return -1;
      }
      exec->fds[i] = moved;
    }
  }
  for (int i = 0; i < exec->nfds; i++) {
    while (dup2(exec->fds[i], i) < 0) {
      if (errno != EINTR && errno != EBUSY) {
        return -1;
      }
    }
  }
  close_from(exec->nfds);
  return 0;
}

static int run_child(void *arg) {
  struct child *child = arg;
  const struct sbx_exec *exec = child->exec;
  default_signals();
  setsid();
  if (place_descriptors(exec) == 0 && (exec->dir == NULL || chdir(exec->dir) == 0)) {
    if (!exec->keep_mask) {
      set_mask(0);
    }
    execve(exec->path, exec->argv, exec->envp);
  }
  child->err = errno;
  _exit(127);
}

static int clone_child(int (*fn)(void *), void *arg, int flags, int *pidfd) {
  char *stack = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) {
    return -1;
  }
  mprotect(stack, GUARD_BYTES, PROT_NONE);
  int pid = clone(fn, stack + GUARD_BYTES + STACK_BYTES, flags, arg, pidfd);
  int err = errno;
  munmap(stack, GUARD_BYTES + STACK_BYTES); // the child has left it: CLONE_VFORK
  errno = err;
  return pid;
}

static void reap(int pid) {
  while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
  }
}

void sbx_start_child(const struct sbx_exec *exec, struct sbx_started *out) {
  struct child child = {.exec = exec};
  int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
  out->pidfd = -1;
  out->err = 0;

  // The faults too, while the child borrows our handlers.
  set_mask(~UINT64_C(0));
  out->pid = clone_child(run_child, &child, flags | CLONE_PIDFD, &out->pidfd);
  if (out->pid < 0 && errno == EINVAL) {
    // Before Linux 5.2, or under an emulator. The process is our child and not
    // reaped yet, so its pid cannot have been reused.
    out->pid = clone_child(run_child, &child, flags, NULL);
    if (out->pid > 0 && child.err == 0) {
      out->pidfd = (int)syscall(SYS_pidfd_open, out->pid, 0);
      if (out->pidfd < 0) {
        child.err = errno;
        kill(out->pid, SIGKILL);
      } else {
        fcntl(out->pidfd, F_SETFD, FD_CLOEXEC);
      }
    }
  }
  if (out->pid < 0) {
    out->err = errno;
  } else if (child.err != 0) {
    out->err = child.err;
    reap(out->pid);
    if (out->pidfd >= 0) {
      close(out->pidfd);
      out->pidfd = -1;
    }
  }
  set_mask(asynchronous());
}

static int exit_child(void *arg) {
  (void)arg;
  _exit(0);
}

int sbx_try_userns(void) {
  set_mask(~UINT64_C(0));
  int pid = clone_child(exit_child, NULL, CLONE_VM | CLONE_VFORK | CLONE_NEWUSER | SIGCHLD, NULL);
  int err = pid < 0 ? errno : 0;
  if (pid > 0) {
    reap(pid);
  }
  set_mask(asynchronous());
  return err;
}
