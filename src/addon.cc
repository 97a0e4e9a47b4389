// addon.cc - the bridge between Node and libsandbox.so.
//
// It checks types, copies bytes, calls one export and returns; it knows no
// product. Requests and replies are JSON that it does not read (sandbox.h).
//
// Two runtimes live in one process here, and five things keep them apart. Each
// has a test in test/addon that fails without it:
//   1. SIGCHLD always has SA_ONSTACK (SigchldKeeper).
//   2. Go is loaded, and called, with all asynchronous signals blocked
//      (AsyncSignalsBlocked). So it is loaded by dlopen and is no dependency.
//   3. Nothing is forked on a JavaScript thread: the library's matter.
//   4. A reply never touches an environment that is going away (Guard), and
//      nothing on a reply's way throws.
//   5. A panic never leaves Go: the library's matter too.

#include <dlfcn.h>
#include <napi.h>
#include <signal.h>
#include <uv.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "../capi/sandbox.h"

namespace {

// The requests of sandbox.h. exports has each as a method, without the prefix
// and in camel case: sbx_prewarm_begin is prewarmBegin.
constexpr const char *kRequests[] = {
    "sbx_cancel",          "sbx_prewarm_begin",
    "sbx_prewarm_commit",  "sbx_prewarm_abort",
    "sbx_create",          "sbx_session_policy",
    "sbx_session_stop",    "sbx_session_close",
    "sbx_session_delete",  "sbx_run",
    "sbx_spawn",           "sbx_process_read",
    "sbx_process_discard", "sbx_process_keep",
    "sbx_process_write",   "sbx_process_end",
    "sbx_process_resize",  "sbx_process_wait",
    "sbx_process_kill",    "sbx_process_release",
    "sbx_file_read",       "sbx_file_open",
    "sbx_file_next",       "sbx_file_write",
    "sbx_file_create",     "sbx_file_append",
    "sbx_file_commit",     "sbx_file_close",
    "sbx_file_remove",     "sbx_cache_prune",
#ifdef SBX_TEST_EXPORTS
    "sbx_test_echo",       "sbx_test_load",
    "sbx_test_aim",        "sbx_test_action",
    "sbx_test_panic",      "sbx_test_spawn",
    "sbx_test_replies",    "sbx_test_census",
#endif
};
constexpr size_t kRequestCount = sizeof(kRequests) / sizeof(kRequests[0]);

// A build that breaks a rule on purpose exists only to show that a test fails.
#ifdef SBX_BREAK_RULE
constexpr int kBrokenRule = SBX_BREAK_RULE;
#else
constexpr int kBrokenRule = 0;
#endif

// Below this size a copy is cheaper than an external buffer and its finalizer.
constexpr size_t kCopyBelow = 4096;

constexpr double kMaxSafeInteger = 9007199254740991;

// Core is what libsandbox.so exports.
struct Core {
  decltype(&sbx_version) version = nullptr;
  decltype(&sbx_env_open) env_open = nullptr;
  decltype(&sbx_env_close) env_close = nullptr;
  decltype(&sbx_free) free = nullptr;
  decltype(&sbx_probe) probe = nullptr;
  std::array<decltype(&sbx_cancel), kRequestCount> requests{};
};

// AsyncSignalsBlocked blocks, while it lives, every signal that is not the
// consequence of what the thread itself does.
//
// Go runs on stacks of 2 KiB and more, while libuv installs handlers without
// SA_ONSTACK: such a handler would write its frame over the neighbouring stack.
// Threads that Go makes take over the mask of the thread that loads it, for life.
class AsyncSignalsBlocked {
 public:
  AsyncSignalsBlocked() {
    if (kBrokenRule == 2) {
      return;
    }
    sigset_t blocked;
    sigfillset(&blocked);
    for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) {
      sigdelset(&blocked, own);
    }
    active_ = pthread_sigmask(SIG_SETMASK, &blocked, &before_) == 0;
  }
  ~AsyncSignalsBlocked() {
    if (active_) {
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
  }
  AsyncSignalsBlocked(const AsyncSignalsBlocked &) = delete;
  AsyncSignalsBlocked &operator=(const AsyncSignalsBlocked &) = delete;

 private:
  sigset_t before_;
  bool active_ = false;
};

// SigchldKeeper gives SIGCHLD's handler SA_ONSTACK, for the life of the process.
//
// Go insists on leaving SIGCHLD unblocked in its threads. libuv installs the
// handler when the first watcher of any loop starts and removes it with the last;
// in between it lets it be. So there is one watcher that never ends, on a loop of
// its own that belongs to no environment and is never run: whichever thread
// loads us first, and whichever of them ends, the handler with our flag stays. As
// nobody reads that loop's signal pipe, it fills up once, and libuv drops what
// does not fit. Neither loop nor watcher is ever freed, on purpose.
class SigchldKeeper {
 public:
  // Start returns what went wrong, or "".
  std::string Start() {
    if (started_ || kBrokenRule == 1) {
      return "";
    }
    auto loop = std::make_unique<uv_loop_t>();
    if (int code = uv_loop_init(loop.get()); code != 0) {
      return std::string("make a loop for SIGCHLD: ") + uv_strerror(code);
    }
    // From here on libuv knows the loop.
    auto *watcher = new uv_signal_t;
    uv_signal_init(loop.release(), watcher);
    if (int code = uv_signal_start(
            watcher, [](uv_signal_t *, int) {}, SIGCHLD);
        code != 0) {
      return std::string("watch SIGCHLD: ") + uv_strerror(code);
    }
    struct sigaction action;
    if (sigaction(SIGCHLD, nullptr, &action) != 0) {
      return "read the action of SIGCHLD";
    }
    action.sa_flags |= SA_ONSTACK;
    if (sigaction(SIGCHLD, &action, nullptr) != 0) {
      return "set the action of SIGCHLD";
    }
    started_ = true;
    return "";
  }

 private:
  bool started_ = false;
};

// Library is the one libsandbox.so of the process. It is loaded once and stays:
// Go cannot be unloaded. Never destroyed, because threads of Go still use it
// while the process exits; and the addon that knows it is linked so that Node
// does not unload it with the last environment.
class Library {
 public:
  static Library &Get() {
    static auto *library = new Library;
    return *library;
  }

  // core is null until Load has succeeded.
  const Core *core() const { return core_.load(std::memory_order_acquire); }

  // Load loads the library from path, or from beside this addon when path is
  // empty. It returns what went wrong, or ""; then it may be tried again. Once
  // loaded, path is not looked at any more.
  std::string Load(std::string path) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (core() != nullptr) {
      return "";
    }
    if (path.empty()) {
      Dl_info self;
      if (dladdr(static_cast<const void *>(kRequests), &self) == 0 || self.dli_fname == nullptr) {
        return "find the folder of the addon";
      }
      path = self.dli_fname;
      path = path.substr(0, path.rfind('/') + 1) + "libsandbox.so";
    }
    AsyncSignalsBlocked blocked;
    // Before Go is there, so that there is no moment without it.
    if (auto problem = keeper_.Start(); !problem.empty()) {
      return problem;
    }
    void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) {
      return dlerror();
    }
    auto core = std::make_unique<Core>();
    std::string missing;
    auto resolve = [&](auto &function, const char *name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
      if (function == nullptr && missing.empty()) {
        missing = path + ": has no " + name;
      }
    };
    resolve(core->version, "sbx_version");
    resolve(core->env_open, "sbx_env_open");
    resolve(core->env_close, "sbx_env_close");
    resolve(core->free, "sbx_free");
    resolve(core->probe, "sbx_probe");
    for (size_t i = 0; i < kRequestCount; i++) {
      resolve(core->requests[i], kRequests[i]);
    }
    if (missing.empty()) {
      core_.store(core.release(), std::memory_order_release);
    }
    return missing;
  }

 private:
  Library() = default;

  std::mutex mutex_;
  SigchldKeeper keeper_;
  std::atomic<const Core *> core_{nullptr};
};

// Memory frees what the library handed out.
struct Freer {
  void operator()(void *memory) const { Library::Get().core()->free(memory); }
};
template <typename T>
using Owned = std::unique_ptr<T, Freer>;

// Reply is one reply on its way to JavaScript.
struct Reply {
  uint64_t call;
  Owned<char> json;
  size_t json_length;
  Owned<void> data;
  size_t data_length;
};

// Guard stands between the library's threads and an environment's thread-safe
// function, which must not be touched once the environment goes away. A thread
// of the library may hold the guard at any time after that, so it outlives the
// environment: about 100 bytes for each are never freed, on purpose.
struct Guard {
  std::mutex mutex;
  bool closed = false;                      // guarded by mutex
  napi_threadsafe_function queue = nullptr; // not used by the library's threads once closed
};

// Send is the library's sbx_reply_fn. It runs on the library's threads.
void Send(void *context, uint64_t call, char *json, size_t json_length, void *data,
          size_t data_length) {
  std::unique_ptr<Reply> reply(
      new Reply{call, Owned<char>(json), json_length, Owned<void>(data), data_length});
  auto *guard = static_cast<Guard *>(context);
  std::unique_lock<std::mutex> lock(guard->mutex, std::defer_lock);
  if (kBrokenRule != 4) {
    lock.lock();
    if (guard->closed) {
      return;
    }
  }
  napi_status status =
      napi_call_threadsafe_function(guard->queue, reply.get(), napi_tsfn_nonblocking);
  if (status == napi_ok) {
    reply.release();
  } else {
    guard->closed = true;
  }
}

// Environment is the part that belongs to one Node environment, the main thread
// or a Worker. All of it but Send runs on that environment's thread.
class Environment {
 public:
  static Environment *Of(napi_env env) {
    void *data = nullptr;
    return napi_get_instance_data(env, &data) == napi_ok ? static_cast<Environment *>(data)
                                                         : nullptr;
  }

  bool is_open() const { return id_ != 0; }

  // Open makes the environment's thread-safe function and opens its counterpart
  // in the library, once. It reports whether that worked.
  bool Open(napi_env env, napi_value on_reply, const Core *core) {
    if (guard_ != nullptr) {
      return false;
    }
    auto guard = std::make_unique<Guard>();
    napi_value name;
    if (napi_create_string_utf8(env, "sandbox", NAPI_AUTO_LENGTH, &name) != napi_ok ||
        napi_create_threadsafe_function(env, on_reply, nullptr, name, 0, 1, nullptr, nullptr, this,
                                        Deliver, &guard->queue) != napi_ok) {
      return false;
    }
    // Node stays alive for requests, not because we are loaded.
    napi_unref_threadsafe_function(env, guard->queue);
    // Hooks run last come, first served: ours runs before the one that the
    // thread-safe function has just added for itself.
    if (napi_add_env_cleanup_hook(env, Close, this) != napi_ok) {
      napi_release_threadsafe_function(guard->queue, napi_tsfn_abort);
      return false;
    }
    guard_ = guard.release();
    core_ = core;
    AsyncSignalsBlocked blocked;
    id_ = core->env_open(Send, guard_);
    return id_ != 0;
  }

  // Request calls one export. The reply comes by Deliver.
  void Request(napi_env env, size_t index, uint64_t call, const std::string &json, const void *data,
               size_t data_length) {
    if (pending_++ == 0) {
      napi_ref_threadsafe_function(env, guard_->queue);
    }
    AsyncSignalsBlocked blocked;
    core_->requests[index](id_, call, json.data(), json.size(), data, data_length);
  }

 private:
  // Close is the clean-up hook: JavaScript does not run any more.
  static void Close(void *self) {
    auto *environment = static_cast<Environment *>(self);
    Guard *guard = environment->guard_;
    {
      std::lock_guard<std::mutex> lock(guard->mutex);
      guard->closed = true;
    }
    if (kBrokenRule != 4) {
      AsyncSignalsBlocked blocked;
      environment->core_->env_close(environment->id_);
    }
    napi_release_threadsafe_function(guard->queue, napi_tsfn_abort);
  }

  // Deliver calls JavaScript with a reply. It is called without an environment
  // for what was still in the queue when that went away. Only Node-API itself is
  // used here, with every status looked at: the classes above it end the process
  // when they find that a terminating environment lets them throw nothing.
  static void Deliver(napi_env env, napi_value on_reply, void *context, void *data) {
    std::unique_ptr<Reply> reply(static_cast<Reply *>(data));
    if (env == nullptr || on_reply == nullptr) {
      return;
    }
    auto *environment = static_cast<Environment *>(context);
    // An event (call 0) was never asked for.
    if (reply->call != 0 && --environment->pending_ == 0) {
      napi_unref_threadsafe_function(env, environment->guard_->queue);
    }
    napi_value receiver, arguments[3], result;
    if (napi_get_undefined(env, &receiver) != napi_ok ||
        napi_create_double(env, static_cast<double>(reply->call), &arguments[0]) != napi_ok ||
        napi_create_string_utf8(env, reply->json.get(), reply->json_length, &arguments[1]) !=
            napi_ok ||
        !ToBuffer(env, *reply, &arguments[2])) {
      return;
    }
    napi_status status = napi_call_function(env, receiver, on_reply, 3, arguments, &result);
    if (status == napi_pending_exception) {
      napi_value exception;
      if (napi_get_and_clear_last_exception(env, &exception) == napi_ok) {
        napi_fatal_exception(env, exception); // an uncaughtException, as from any callback
      }
    }
  }

  // ToBuffer makes a Buffer of the reply's data, or undefined if it has none.
  static bool ToBuffer(napi_env env, Reply &reply, napi_value *buffer) {
    if (reply.data == nullptr) {
      return napi_get_undefined(env, buffer) == napi_ok;
    }
    if (reply.data_length >= kCopyBelow) {
      napi_status status = napi_create_external_buffer(
          env, reply.data_length, reply.data.get(),
          [](napi_env, void *memory, void *) { Freer()(memory); }, nullptr, buffer);
      if (status == napi_ok) {
        reply.data.release();
        return true;
      }
      if (status != napi_no_external_buffers_allowed) {
        return false;
      }
    }
    return napi_create_buffer_copy(env, reply.data_length, reply.data.get(), nullptr, buffer) ==
           napi_ok;
  }

  Guard *guard_ = nullptr;
  const Core *core_ = nullptr;
  uint64_t id_ = 0;
  size_t pending_ = 0;
};

napi_value Fail(napi_env env, const std::string &message) {
  napi_throw_error(env, nullptr, message.c_str());
  return nullptr;
}

napi_value Refuse(napi_env env, const char *message) {
  napi_throw_type_error(env, "ERR_INVALID_ARG_TYPE", message);
  return nullptr;
}

// ToString copies a JavaScript string. It reports false if value is none.
bool ToString(napi_env env, napi_value value, std::string *text) {
  size_t length = 0;
  if (napi_get_value_string_utf8(env, value, nullptr, 0, &length) != napi_ok) {
    return false;
  }
  text->resize(length);
  // Node-API writes a NUL behind the text, where std::string has one anyway.
  return napi_get_value_string_utf8(env, value, text->data(), length + 1, &length) == napi_ok;
}

// (call: number, json: string, data?: Uint8Array): void
napi_value CallRequest(napi_env env, napi_callback_info info) {
  size_t count = 3;
  napi_value arguments[3];
  void *index = nullptr;
  if (napi_get_cb_info(env, info, &count, arguments, nullptr, &index) != napi_ok) {
    return nullptr;
  }
  Environment *environment = Environment::Of(env);
  if (environment == nullptr || !environment->is_open()) {
    return Fail(env, "open() comes first");
  }
  double call = 0;
  if (napi_get_value_double(env, arguments[0], &call) != napi_ok || std::trunc(call) != call ||
      call < 1 || call > kMaxSafeInteger) {
    return Refuse(env, "call must be a positive safe integer");
  }
  std::string json;
  if (!ToString(env, arguments[1], &json)) {
    return Refuse(env, "json must be a string");
  }
  void *data = nullptr;
  size_t data_length = 0;
  napi_valuetype type = napi_undefined;
  if (napi_typeof(env, arguments[2], &type) != napi_ok) {
    return nullptr;
  }
  if (type != napi_undefined) {
    napi_typedarray_type array_type = napi_int8_array;
    bool is_array = false;
    if (napi_is_typedarray(env, arguments[2], &is_array) != napi_ok || !is_array ||
        napi_get_typedarray_info(env, arguments[2], &array_type, &data_length, &data, nullptr,
                                 nullptr) != napi_ok ||
        array_type != napi_uint8_array) {
      return Refuse(env, "data must be a Uint8Array");
    }
  }
  environment->Request(env, reinterpret_cast<uintptr_t>(index), static_cast<uint64_t>(call), json,
                       data, data_length);
  return nullptr;
}

// load(path?: string): void
Napi::Value Load(const Napi::CallbackInfo &info) {
  Napi::Env env = info.Env();
  std::string path;
  if (info.Length() > 0 && !info[0].IsUndefined() && !ToString(env, info[0], &path)) {
    Refuse(env, "path must be a string");
  } else if (std::string problem = Library::Get().Load(path); !problem.empty()) {
    Fail(env, problem);
  }
  return env.Undefined();
}

// open(onReply: (call: number, json: string, data?: Uint8Array) => void): void
Napi::Value Open(const Napi::CallbackInfo &info) {
  Napi::Env env = info.Env();
  Environment *environment = Environment::Of(env);
  const Core *core = Library::Get().core();
  if (info.Length() < 1 || !info[0].IsFunction()) {
    Refuse(env, "onReply must be a function");
  } else if (core == nullptr) {
    Fail(env, "load() comes first");
  } else if (environment == nullptr || environment->is_open()) {
    Fail(env, "open() was called before");
  } else if (!environment->Open(env, info[0], core)) {
    Fail(env, "the environment cannot be opened");
  }
  return env.Undefined();
}

// version(): string
Napi::Value Version(const Napi::CallbackInfo &info) {
  Napi::Env env = info.Env();
  const Core *core = Library::Get().core();
  if (core == nullptr) {
    Fail(env, "load() comes first");
    return env.Undefined();
  }
  AsyncSignalsBlocked blocked;
  return Napi::String::New(env, core->version());
}

// probe(json: string): string
Napi::Value Probe(const Napi::CallbackInfo &info) {
  Napi::Env env = info.Env();
  const Core *core = Library::Get().core();
  std::string json;
  if (core == nullptr) {
    Fail(env, "load() comes first");
    return env.Undefined();
  }
  if (info.Length() < 1 || !ToString(env, info[0], &json)) {
    Refuse(env, "json must be a string");
    return env.Undefined();
  }
  size_t length = 0;
  Owned<char> answer;
  {
    AsyncSignalsBlocked blocked;
    answer.reset(core->probe(json.data(), json.size(), &length));
  }
  return Napi::String::New(env, answer.get(), length);
}

// MethodName turns sbx_prewarm_begin into prewarmBegin.
std::string MethodName(std::string symbol) {
  std::string name;
  bool upper = false;
  for (char c : symbol.substr(symbol.find('_') + 1)) {
    if (c == '_') {
      upper = true;
      continue;
    }
    name += upper ? static_cast<char>(c - 'a' + 'A') : c;
    upper = false;
  }
  return name;
}

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  auto environment = std::make_unique<Environment>();
  napi_status status = napi_set_instance_data(
      env, environment.get(),
      [](napi_env, void *data, void *) { delete static_cast<Environment *>(data); }, nullptr);
  if (status != napi_ok) {
    return exports;
  }
  environment.release();
  exports.Set("load", Napi::Function::New<Load>(env, "load"));
  exports.Set("open", Napi::Function::New<Open>(env, "open"));
  exports.Set("version", Napi::Function::New<Version>(env, "version"));
  exports.Set("probe", Napi::Function::New<Probe>(env, "probe"));
  for (size_t i = 0; i < kRequestCount; i++) {
    std::string name = MethodName(kRequests[i]);
    napi_value method;
    if (napi_create_function(env, name.c_str(), name.size(), CallRequest,
                             reinterpret_cast<void *>(i), &method) == napi_ok) {
      napi_set_named_property(env, exports, name.c_str(), method);
    }
  }
  return exports;
}

} // namespace

NODE_API_MODULE(NODE_GYP_MODULE_NAME, Init)
