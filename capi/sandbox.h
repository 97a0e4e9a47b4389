// sandbox.h - the C face of the core, as exported by libsandbox.so.
//
// Who may call what
//   Every function may be called from any thread, with all asynchronous signals
//   blocked in that thread (a goroutine stack is too small for a signal frame of
//   a handler without SA_ONSTACK). No function blocks, but sbx_probe, which takes
//   5 seconds at most.
//
// Environments and handles
//   An environment stands for one caller with a life of its own, such as one
//   Node environment. Sessions, processes and files are opaque numbers that
//   belong to an environment; they are never reused, and a number that was never
//   given out, or belongs to another environment, is answered with
//   ERR_BAD_HANDLE. Closing the environment ends all that is its own.
//
// Requests
//   A request is a JSON object, plus raw bytes where the function says so. Both
//   are copied before the function returns. Unknown members are rejected.
//   `call` is chosen by the caller and names the request until its reply.
//   Every call gets exactly one reply, unless its environment is closed first.
//
// Replies
//   {"ok":{...}} or {"error":{"code","op","path","message","remedy","detail"}},
//   plus raw bytes where the function says so. A reply may arrive before the
//   function that caused it has returned. Call 0 is never a request: a reply to
//   it is an event.
//
// Memory
//   A reply's json and data belong to the receiver, who frees each with sbx_free.

#ifndef SANDBOX_H
#define SANDBOX_H

#include <stddef.h>
#include <stdint.h>

// sbx_reply_fn receives replies on threads of the core. It must not block and
// must not call back into the core, except for sbx_free.
typedef void (*sbx_reply_fn)(void *context, uint64_t call, char *json, size_t json_len, void *data,
                             size_t data_len);

typedef const char *sbx_json;
typedef const void *sbx_bytes;

// sbx_version returns the version of the core as a static string, never freed.
extern sbx_json sbx_version(void);

// sbx_env_open makes an environment. `context` is handed to every reply and must
// stay valid for ever: a reply may be under way while sbx_env_close runs.
extern uint64_t sbx_env_open(sbx_reply_fn reply, void *context);

// sbx_env_close ends an environment: its calls get no more replies, its
// processes, files and handles are closed, and a generation that no other
// environment uses is ended before the function returns. Closing twice is a no-op.
extern void sbx_env_close(uint64_t env);

// sbx_free frees what a reply or sbx_probe handed out. NULL is a no-op.
extern void sbx_free(void *memory);

// sbx_probe tells whether this host can build a sandbox, by building one.
// Request: bwrapPath, path (the value of PATH to look in).
// Returns {"ok":{available, findings}} or an error; the length goes to *out_len.
// Only "yes" is remembered, per bwrapPath.
extern char *sbx_probe(sbx_json json, size_t json_len, size_t *out_len);

// Every request has one signature, so that a bridge needs no knowledge of any.
#define SBX_REQUEST(name)                                                                       \
  extern void name(uint64_t env, uint64_t call, sbx_json json, size_t json_len, sbx_bytes data, \
                   size_t data_len)

// sbx_cancel asks for the end of the request named by `target`; that request
// still gets its reply, ERR_ABORTED unless it had finished. Reply: {}.
SBX_REQUEST(sbx_cancel);

// sbx_prewarm_begin takes the template's lock across processes, waiting for
// another holder. Request: sandbox, templateKey, templateRevision?, tags?.
// Reply: {reused:true}, or {reused:false, session} whose workspace is staging.
SBX_REQUEST(sbx_prewarm_begin);
// sbx_prewarm_commit ends every process of the staging session and publishes
// the template. Request: session. Reply: {}. The handle is closed.
SBX_REQUEST(sbx_prewarm_commit);
// sbx_prewarm_abort throws the staging directory away. Request: session. Reply: {}.
SBX_REQUEST(sbx_prewarm_abort);

// sbx_create opens a durable session, cloning the template on first use.
// Request: sandbox, sessionKey, templateKey|null, templateRevision?, networkPolicy,
// initialNetworkPolicy? (set explicitly if the session is made by this call, from its
// first moment), tags?, existingOnly? (makes none), events?,
// idleTimeoutMs? (for ever without), maxLiveGenerations? (no bound without), standby?
// (keep a sandbox ready for the next new session).
// Reply: {session, sessionId, strategy}. Idempotent; costs no process.
// Errors: ERR_TEMPLATE_NOT_FOUND; ERR_SESSION_GONE with existingOnly.
SBX_REQUEST(sbx_create);
// sbx_session_policy changes the network of later commands.
// Request: session, networkPolicy. Reply: {}.
SBX_REQUEST(sbx_session_policy);
// sbx_session_stop ends the session's compute; files stay, /tmp goes, the next
// command starts anew. Request: session. Reply: {}.
SBX_REQUEST(sbx_session_stop);
// sbx_session_close stops the session and closes the handle. Request: session. Reply: {}.
SBX_REQUEST(sbx_session_close);
// sbx_session_delete stops the session and removes its files. Request: session.
// Reply: {}. Errors: ERR_IN_USE when another process uses it.
SBX_REQUEST(sbx_session_delete);

// sbx_run runs a command to its end and collects its output.
// Request: session, command, workingDirectory?, env? (null takes a variable away),
// timeZone? (the caller's TZ), timeoutMs?, maxOutputBytes?, maxProcesses?,
// noQueue?.
// Reply: {exitCode, stdoutLength, stdoutBytes, stderrBytes, stdoutTruncated,
// stderrTruncated, durationMs}; data is what was captured: stdoutLength bytes of
// stdout, then stderr. The bytes count what arrived, which of a truncated stream is
// more: there a line between head and tail says how much is missing.
// Errors: ERR_BUSY with limit and live, with noQueue; ERR_TIMEOUT, ERR_OUTPUT_LIMIT,
// ERR_ABORTED, each with data as captured
// and the members of the reply beside the error.
SBX_REQUEST(sbx_run);
// sbx_spawn starts a command. Request: as sbx_run without timeoutMs and
// maxOutputBytes, and stdin?, pty? {cols, rows} (a terminal instead of streams: what
// the command writes is stdout, stdin is the keyboard, stderr is at its end).
// Reply: {process, pid}.
SBX_REQUEST(sbx_spawn);
// sbx_process_read waits for output. Request: process, stream (1|2), maxBytes.
// Reply: {end:false} and data, or {end:true} at the end of the stream.
// One read per stream at a time.
SBX_REQUEST(sbx_process_read);
// sbx_process_discard gives up a stream: what the command still writes there is
// thrown away, and the command does not notice. Request: process, stream. Reply: {}.
SBX_REQUEST(sbx_process_discard);
// sbx_process_keep keeps the output that nobody has begun to read, up to 4 MiB of each
// stream, so that the command need not wait for a reader; more is thrown away
// two seconds later unless somebody reads, and reading it fails with ERR_OUTPUT_LIMIT. Request:
// process. Reply: {}.
SBX_REQUEST(sbx_process_keep);
// sbx_process_write writes data to stdin. Request: process. Reply: {}. Errors: EPIPE.
SBX_REQUEST(sbx_process_write);
// sbx_process_end closes stdin; into a terminal it types Ctrl-D. Request: process. Reply: {}.
SBX_REQUEST(sbx_process_end);
// sbx_process_resize changes the size of the command's terminal. Request: process,
// cols, rows. Reply: {}. Errors: ERR_UNSUPPORTED without a terminal.
SBX_REQUEST(sbx_process_resize);
// sbx_process_wait waits for the main process. Request: process. Reply: {exitCode}.
SBX_REQUEST(sbx_process_wait);
// sbx_process_kill ends the command's whole tree; a no-op once the main process
// has exited. Request: process, aborted (for the event's reason). Reply: {}.
SBX_REQUEST(sbx_process_kill);
// sbx_process_release closes the handle; a live process goes on and its output
// is discarded. Request: process. Reply: {}.
SBX_REQUEST(sbx_process_release);

// sbx_file_read reads a whole regular file. Request: session, path.
// Reply: {missing:false} and data, or {missing:true}.
SBX_REQUEST(sbx_file_read);
// sbx_file_open opens a regular file for reading. Request: session, path.
// Reply: {missing:false, file, size} or {missing:true}.
SBX_REQUEST(sbx_file_open);
// sbx_file_next reads on. Request: file, maxBytes. Reply: {end} and data.
SBX_REQUEST(sbx_file_next);
// sbx_file_write replaces a file's content by data at once, making parent
// directories. Request: session, path. Reply: {}.
SBX_REQUEST(sbx_file_write);
// sbx_file_create begins such a replacement in parts. Request: session, path. Reply: {file}.
SBX_REQUEST(sbx_file_create);
// sbx_file_append adds data. Request: file. Reply: {}.
SBX_REQUEST(sbx_file_append);
// sbx_file_commit puts the new content in place. Request: file. Reply: {}. The handle is closed.
SBX_REQUEST(sbx_file_commit);
// sbx_file_close closes a file; an uncommitted replacement is dropped and the
// old content stays. Request: file. Reply: {}.
SBX_REQUEST(sbx_file_close);
// sbx_file_remove removes a file, a link, or with recursive a tree.
// Request: session, path, recursive, force. Reply: {}.
SBX_REQUEST(sbx_file_remove);

// sbx_cache_prune removes the sessions that carry a tag and were last used at
// least so long ago, unless they are in use. Request: cacheDir, tag {name,
// value}, maxAgeMs. Reply: {removed, inUse, failed}, each a number of sessions.
SBX_REQUEST(sbx_cache_prune);

#endif
