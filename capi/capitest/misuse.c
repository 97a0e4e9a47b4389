// misuse.c - calls libsandbox.so as a careless caller would, from C.
//
// Built with the address sanitizer, and told the library's path. What a reply
// hands out is read whole and freed once; a crash, a report of the sanitizer or a
// failed check ends the program with a status other than 0.

#include "../sandbox.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 1000, THREADS = 8, THREAD_ROUNDS = 100, CALLS = 5, PATIENCE_SECONDS = 20 };

#define check(condition)                                          \
  do {                                                            \
    if (!(condition)) {                                           \
      fprintf(stderr, "misuse.c:%d: %s\n", __LINE__, #condition); \
      exit(1);                                                    \
    }                                                             \
  } while (0)

// The library as it is loaded; every request has the type of sbx_cancel.
static struct {
  __typeof__(sbx_version) *version;
  __typeof__(sbx_env_open) *env_open;
  __typeof__(sbx_env_close) *env_close;
  __typeof__(sbx_free) *free;
  __typeof__(sbx_probe) *probe;
} sbx;
static void *library;

static void *symbol(const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return found;
}

// Requests that a caller may send without a session, and the code that each is answered with.
static const struct {
  const char *name;
  const char *json;
  const char *answer;
} requests[] = {
    {"sbx_cancel", "{\"target\":1}", "\"ok\""},
    {"sbx_cancel", "{\"target\":18446744073709551615}", "\"ok\""},
    {"sbx_cancel", "{\"target\":-1}", "ERR_INVALID_ARGUMENT"},
    {"sbx_cancel", "{\"tarjet\":1}", "ERR_INVALID_ARGUMENT"},
    {"sbx_cancel", "{\"target\":1}x", "ERR_INVALID_ARGUMENT"},
    {"sbx_cancel", "", "ERR_INVALID_ARGUMENT"},
    {"sbx_cancel", NULL, "ERR_INVALID_ARGUMENT"},
    {"sbx_cancel", "\xff\xfe", "ERR_INVALID_ARGUMENT"},
    {"sbx_session_stop", "{\"session\":1}", "ERR_BAD_HANDLE"},
    {"sbx_session_close", "{\"session\":0}", "ERR_BAD_HANDLE"},
    {"sbx_session_delete", "{\"session\":2752513}", "ERR_BAD_HANDLE"},
    {"sbx_prewarm_commit", "{\"session\":2752513}", "ERR_BAD_HANDLE"},
    {"sbx_prewarm_abort", "{\"session\":2752513}", "ERR_BAD_HANDLE"},
    {"sbx_process_wait", "{\"process\":2752514}", "ERR_BAD_HANDLE"},
    {"sbx_process_end", "{\"process\":18446744073709551615}", "ERR_BAD_HANDLE"},
    {"sbx_process_resize", "{\"process\":2752514,\"cols\":0,\"rows\":0}", "ERR_BAD_HANDLE"},
    {"sbx_process_release", "{\"process\":2752514}", "ERR_BAD_HANDLE"},
    {"sbx_process_write", "{\"process\":2752514}", "ERR_BAD_HANDLE"},
    {"sbx_file_append", "{\"file\":2752514}", "ERR_BAD_HANDLE"},
    {"sbx_file_commit", "{\"file\":2752514}", "ERR_BAD_HANDLE"},
    {"sbx_file_close", "{\"file\":2752514}", "ERR_BAD_HANDLE"},
};
enum { REQUESTS = sizeof requests / sizeof requests[0] };

// A caller; static or leaked, since a context must stay valid for ever.
struct caller {
  pthread_mutex_t mutex;
  pthread_cond_t arrived;
  uint64_t answered; // the call that was answered last
  char text[4096];   // its reply
  int replies;
  bool closed; // no reply may come any more
};

static struct caller *new_caller(void) {
  struct caller *caller = calloc(1, sizeof *caller);
  check(caller != NULL);
  pthread_mutex_init(&caller->mutex, NULL);
  pthread_cond_init(&caller->arrived, NULL);
  return caller;
}

static void receive(void *context, uint64_t call, char *json, size_t json_len, void *data,
                    size_t data_len) {
  struct caller *caller = context;
  volatile unsigned char sum = 0;
  for (size_t i = 0; i < data_len; i++) {
    sum ^= ((unsigned char *)data)[i]; // the sanitizer looks at it
  }
  pthread_mutex_lock(&caller->mutex);
  check(!caller->closed);
  check(json_len > 2 && json[json_len] == '\0' && strlen(json) == json_len);
  snprintf(caller->text, sizeof caller->text, "%s", json);
  caller->answered = call;
  caller->replies++;
  pthread_cond_broadcast(&caller->arrived);
  pthread_mutex_unlock(&caller->mutex);
  sbx.free(json);
  sbx.free(data);
}

static void send_request(uint64_t env, uint64_t call, const char *name, const char *json) {
  __typeof__(sbx_cancel) *request = (__typeof__(sbx_cancel) *)symbol(name);
  // Memory of exactly this size, gone right after: the library must have copied it.
  size_t length = json == NULL ? 0 : strlen(json);
  char *copy = json == NULL ? NULL : malloc(length == 0 ? 1 : length);
  if (copy != NULL) {
    memcpy(copy, json, length);
  }
  char *data = malloc(3);
  memcpy(data, "abc", 3);
  request(env, call, copy, length, data, 3);
  free(copy);
  free(data);
}

static void await(struct caller *caller, uint64_t call) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += PATIENCE_SECONDS;
  pthread_mutex_lock(&caller->mutex);
  while (caller->answered != call) {
    check(pthread_cond_timedwait(&caller->arrived, &caller->mutex, &end) == 0);
  }
  pthread_mutex_unlock(&caller->mutex);
}

static void close_caller(struct caller *caller, uint64_t env) {
  sbx.env_close(env);
  pthread_mutex_lock(&caller->mutex);
  caller->closed = true;
  pthread_mutex_unlock(&caller->mutex);
}

static int open_descriptors(void) {
  DIR *dir = opendir("/proc/self/fd");
  check(dir != NULL);
  int count = 0;
  while (readdir(dir) != NULL) {
    count++;
  }
  closedir(dir);
  return count;
}

static void test_answers(void) {
  struct caller *caller = new_caller();
  uint64_t env = sbx.env_open(receive, caller);
  check(env > 1 << 16);
  for (int i = 0; i < REQUESTS; i++) {
    send_request(env, (uint64_t)i + 1, requests[i].name, requests[i].json);
    await(caller, (uint64_t)i + 1);
    if (strstr(caller->text, requests[i].answer) == NULL) {
      fprintf(stderr, "%s %s: %s\n", requests[i].name,
              requests[i].json == NULL ? "NULL" : requests[i].json, caller->text);
      exit(1);
    }
  }
  check(caller->replies == REQUESTS);
  send_request(env, 0, "sbx_cancel", "{\"target\":1}"); // 0 is no call: dropped
  send_request(env, 99, "sbx_cancel", "{\"target\":1}");
  await(caller, 99);
  check(caller->replies == REQUESTS + 1);
  close_caller(caller, env);
  sbx.env_close(env); // closing twice is a no-op
  sbx.env_close(0);
  sbx.env_close(1);
  sbx.env_close(UINT64_MAX);
  for (int i = 0; i < REQUESTS; i++) {
    send_request(env, 1, requests[i].name, requests[i].json); // closed
    send_request(0, 1, requests[i].name, requests[i].json);   // never open
    send_request(env + 1000, 1, requests[i].name, requests[i].json);
  }
  check(caller->replies == REQUESTS + 1);
}

static void test_no_caller(void) {
  check(sbx.env_open(NULL, NULL) == 0);
  check(sbx.version() != NULL && sbx.version() == sbx.version() && strlen(sbx.version()) > 4);
  sbx.free(NULL);
  size_t length = 0;
  char *answer = sbx.probe("{\"nonsense\":1}", 14, &length);
  check(answer != NULL && strlen(answer) == length &&
        strstr(answer, "ERR_INVALID_ARGUMENT") != NULL);
  sbx.free(answer);
  answer = sbx.probe(NULL, 0, NULL);
  check(answer != NULL && strstr(answer, "ERR_INVALID_ARGUMENT") != NULL);
  sbx.free(answer);
}

// Environments open and close with requests under way.
static void churn(int rounds) {
  struct caller *caller = NULL;
  for (int round = 0; round < rounds; round++) {
    caller = new_caller();
    uint64_t env = sbx.env_open(receive, caller);
    for (uint64_t call = 1; call <= CALLS; call++) {
      int i = (int)((call + (uint64_t)round) % REQUESTS);
      send_request(env, call, requests[i].name, requests[i].json);
    }
    close_caller(caller, env);
    check(caller->replies <= CALLS);
  }
}

static void *churn_thread(void *unused) {
  (void)unused;
  churn(THREAD_ROUNDS);
  return NULL;
}

int main(int argc, char **argv) {
  check(argc == 2);
  // The contract: asynchronous signals are blocked in every thread that calls.
  sigset_t signals;
  sigfillset(&signals);
  const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
    sigdelset(&signals, own[i]);
  }
  pthread_sigmask(SIG_BLOCK, &signals, NULL);
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  sbx.version = (__typeof__(sbx.version))symbol("sbx_version");
  sbx.env_open = (__typeof__(sbx.env_open))symbol("sbx_env_open");
  sbx.env_close = (__typeof__(sbx.env_close))symbol("sbx_env_close");
  sbx.free = (__typeof__(sbx.free))symbol("sbx_free");
  sbx.probe = (__typeof__(sbx.probe))symbol("sbx_probe");

  test_no_caller();
  test_answers();
  churn(10); // what the library opens once for all
  int before = open_descriptors();
  churn(ROUNDS);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    check(pthread_create(&threads[i], NULL, churn_thread, NULL) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
  }
  check(open_descriptors() <= before);
  printf("%d answers, %d environments\n", REQUESTS, ROUNDS + THREADS * THREAD_ROUNDS);
  return 0;
}
