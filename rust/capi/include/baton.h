#ifndef BATON_H
#define BATON_H

// The C library of Baton: hands tensors to other processes of this machine without copying them.
// Generated from rust/capi by `make header`; do not edit. docs/c.md has the whole story.
//
// Ownership: what a function gives through an out pointer is the caller's, who gives it back once to
// the release function of its type, in any order and on any thread. On failure an out pointer is set
// to NULL or zero. Arguments are lent for the call. Texts end with a zero and are UTF-8; those of an
// object are the object's.
//
// Threads: any thread may use any object beside others; its release is its last use.
//
// Errors: every call that can fail gives a baton_status; baton_last_error says what happened, to what,
// and what to do. NULL where an object is needed is BATON_INVALID_ARGUMENT and never a crash.
//
// Tensors are DLPack's: element i of a tensor t begins at (char *)t->dl_tensor.data +
// t->dl_tensor.byte_offset, then by its strides. Any consumer of DLPack may take one and calls its
// deleter once; baton_tensor_release does the same.

#include <stddef.h>
#include <stdint.h>

/* DLPack 1.3, as far as it is used here. A program that has dlpack.h includes that before this file. */
#ifndef DLPACK_DLPACK_H_
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  uint32_t major; /* another one than 1: only the deleter may be used */
  uint32_t minor;
} DLPackVersion;

typedef struct {
  int32_t device_type; /* 1: the CPU */
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code; /* 0 int, 1 unsigned int, 2 float, 4 bfloat, 5 complex, 6 bool; more: baton_dtype */
  uint8_t bits;
  uint16_t lanes; /* 1 except for vectors */
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; may be NULL: C-contiguous */
  uint64_t byte_offset; /* from data to the first element */
} DLTensor;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags; /* bits of DLPACK_FLAG_BITMASK_... */
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

#define DLPACK_FLAG_BITMASK_READ_ONLY ((uint64_t)1)
#define DLPACK_FLAG_BITMASK_IS_COPIED ((uint64_t)2)
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED ((uint64_t)4)

#ifdef __cplusplus
}
#endif
#endif


// Waits for ever; as a lease: until the session ends.
#define BATON_FOREVER -1

// A choice that is left to what exists, or the default. The other two are BATON_YES and BATON_NO.
#define BATON_DEFAULT 0

// Yes.
#define BATON_YES 1

// No.
#define BATON_NO -1

// As a lease: until somebody has opened the handle, or 30 s after this session has ended.
#define BATON_ONCE -2

// As a stream: none. The program has waited for its GPU, or does so itself.
#define BATON_NO_STREAM -1

// As a time to linger: not at all.
#define BATON_NO_LINGER -1

// A reader begins with what is sent from now on.
#define BATON_START_NEW 0

// A reader begins with the newest message that is kept.
#define BATON_START_LAST 1

// A reader begins with everything that is kept.
#define BATON_START_ALL 2

// The name is live: one bundle that everybody may write in place.
#define BATON_LIVE 1

// The name is deleted when this session ends.
#define BATON_EPHEMERAL 2

// What became of a call. The numbers are the protocol's and never change.
enum baton_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It was done.
  BATON_OK = 0,
  // No broker answers at the address.
  BATON_NO_BROKER = 1,
  // The broker was there and has gone. Tensors in hand stay valid, the session reconnects.
  BATON_BROKER_LOST = 2,
  // Broker and client have another protocol or layout.
  BATON_VERSION = 3,
  // Another process wrote what is not of this protocol.
  BATON_PROTOCOL = 4,
  // An unknown op, feature or device.
  BATON_UNSUPPORTED = 5,
  // The socket, file or memory may not be used.
  BATON_PERMISSION_DENIED = 6,
  // The machine, the container or the broker's limit is full.
  BATON_OUT_OF_MEMORY = 7,
  // The quota of the session or of all together is used up.
  BATON_QUOTA_EXCEEDED = 8,
  // A table is full: sessions, topics, lanes, chunks, references.
  BATON_TOO_MANY = 9,
  // A null pointer, or a shape, dtype, name or option that cannot be.
  BATON_INVALID_ARGUMENT = 10,
  // A handle that is malformed, another machine's, or outside its segment.
  BATON_INVALID_HANDLE = 11,
  // The storage has been recycled.
  BATON_EXPIRED = 12,
  // The session, topic or queue is closed.
  BATON_CLOSED = 13,
  // An option differs from what exists.
  BATON_CONFLICT = 14,
  // Nothing has that name.
  BATON_NOT_FOUND = 15,
  // Time ran out.
  BATON_TIMEOUT = 16,
  // Time ran out and the queue has no item.
  BATON_EMPTY = 17,
  // Time ran out and there is no room.
  BATON_FULL = 18,
  // The memory must not be written.
  BATON_READ_ONLY = 19,
  // Somebody still holds it.
  BATON_BUSY = 20,
  // A mistake in Baton.
  BATON_INTERNAL = 21,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum baton_status baton_status;
#else
typedef int32_t baton_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What was received: named tensors with their message, item or revision. But for the stream that it is
// for it never changes, so any number of threads may look at it. Texts that it gives are its own and go with it.
typedef struct baton_message baton_message;

// Gives each item to one taker. Threads that share one take turns in getting, also while one waits:
// open it once for each thread that is to take side by side.
typedef struct baton_queue baton_queue;

// Receives a topic's messages. Threads that share one take turns, also while one waits: open one for
// each thread that is to receive side by side.
typedef struct baton_reader baton_reader;

// A connection to the broker, with this process's own pages. It ends when it and all tensors,
// messages, topics, queues, readers and watches of it are released, or with baton_session_end.
typedef struct baton_session baton_session;

// A channel of messages with many senders and many readers.
typedef struct baton_topic baton_topic;

// Follows a name. Threads that share one take turns, also while one waits.
typedef struct baton_watch baton_watch;

// How a session is opened. All zero is the default; set what differs.
typedef struct baton_options {
  // The broker's socket, "unix:/path" or "/path". NULL: $BATON_ADDRESS, else the user's broker. A
  // broker that was named is awaited and never started.
  const char *address;
  // Where names live: one token of A-Z a-z 0-9 _ -. NULL: $BATON_NAMESPACE, else "default".
  const char *name_space;
  // The name shown in listings, 1 to 48 bytes. NULL: the program's.
  const char *name;
  // The program baton, which is run to start a broker. NULL: $BATON_BINARY, else baton on PATH or
  // beside this program.
  const char *binary;
  // Whether the user's broker is started when none runs. Default: BATON_YES.
  int32_t start;
  // How long to wait for a broker: 0 for 30 s, BATON_FOREVER.
  int64_t timeout_ns;
} baton_options;

// What a session has and did.
typedef struct baton_stats {
  // Bytes of memory that the broker granted for allocation.
  uint64_t granted;
  // Storages handed out and not yet found free.
  uint64_t live;
  // Storages ready for reuse.
  uint64_t warm;
  // Storages found free so far.
  uint64_t recycled;
  // Messages sent and names set.
  uint64_t handovers;
} baton_stats;

// Where a tensor is allocated. All zero is the machine's memory in its usual pages, without waiting.
typedef struct baton_alloc_options {
  // "2M" or "1G": huge pages of that size, of those that the machine has reserved. NULL: the usual
  // pages.
  const char *pages;
  // "cuda:0" as this process counts, "cuda" the first, "cuda:GPU-..." by UUID: a GPU. NULL or
  // "cpu": the machine's memory.
  const char *device;
  // How long to wait where memory is full: 0 not at all, BATON_FOREVER.
  int64_t timeout_ns;
  // On a GPU, the stream whose work uses it first, as of baton_tensor_use_on.
  int64_t stream;
} baton_alloc_options;

// Options of a topic or queue. All zero takes what exists, else the defaults; what differs from what
// exists is the error BATON_CONFLICT.
typedef struct baton_topic_options {
  // How many messages of each sender are kept. Default: 8 in a topic, 64 in a queue.
  uint32_t depth;
  // Bytes of a slot for what describes a message. Default: 1024; a longer description costs a
  // storage.
  uint32_t description;
  // How long it stays when nobody has it open, or BATON_NO_LINGER. Default: 60 s.
  int64_t linger_ns;
  // A topic's: BATON_NO makes it lossless, so that a send waits for the slowest reader. Default:
  // BATON_YES.
  int32_t overwrite;
  // A queue's: BATON_YES gives an item whose taker dies before releasing it to another. Default:
  // BATON_NO.
  int32_t redeliver;
  // BATON_NO opens only what is there (BATON_NOT_FOUND). Default: BATON_YES.
  int32_t create;
} baton_topic_options;

// A tensor under a name.
typedef struct baton_item {
  // The key in a flat dict, or, with a tree, the path at which the tensor stands there. NULL: with a
  // tree that path; else the tensor is the value itself and the only one.
  const char *name;
  // Lent for the call. One of another library is copied into shared memory, as by
  // baton_from_dlpack.
  const DLManagedTensorVersioned *tensor;
} baton_item;

// A value to send, put or set. All zero is a value without tensors.
typedef struct baton_payload {
  // Its tensors; NULL when there are none.
  const struct baton_item *items;
  // How many.
  size_t count;
  // JSON that travels with the message or revision. NULL or "": none.
  const char *meta;
  // JSON of the value tree (docs/protocol.md, section 6), with each tensor's number once, in their
  // order. NULL or "": the value is the unnamed tensor, or a flat dict of the named ones.
  const char *tree;
  // The stream after whose work its tensors on a GPU are written, whenever that is: receivers'
  // streams wait for it. 0: the legacy default stream; BATON_NO_STREAM where the program has waited.
  // Names and handles wait for the GPU themselves.
  int64_t stream;
} baton_payload;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The name of a status in the protocol, such as "Expired"; "unknown" for another number. Never NULL.
const char *baton_status_name(int32_t status);

// What happened, to what, and what to do, for the last call of this thread that failed; "" when none
// did. Never NULL. The text is the library's, until the next call of this thread that fails.
const char *baton_last_error(void);

// Opens a session with the user's broker, which is started if none runs. options may be NULL.
// Errors: BATON_NO_BROKER, BATON_VERSION, BATON_PERMISSION_DENIED, BATON_TOO_MANY.
baton_status baton_connect(const struct baton_options *options, struct baton_session **out);

// Releases the session; NULL is nothing. What else there is of it stays valid and keeps it open.
void baton_session_release(struct baton_session *session);

// Ends the session at once: calls of other threads that wait in it return BATON_CLOSED. What was sent
// is still received; tensors that are held here stay mapped and mean nothing any more. All its
// objects are still to be released.
baton_status baton_session_end(const struct baton_session *session);

// A descriptor for poll, epoll and select: readable when something may have changed for this session,
// be it a message, room in a queue, a name, or its end. -1 on failure. It is readable at first, stays
// so until baton_session_fd_clear, and becomes readable about once a second although nothing has
// changed. When it is readable: clear first, then take all there is, with timeout 0, until there is
// no more. It is the session's: only poll it. The first call starts a thread.
int32_t baton_session_fd(const struct baton_session *session);

// Makes the descriptor of baton_session_fd not readable, until something may have changed after this
// call.
baton_status baton_session_fd_clear(const struct baton_session *session);

// What the session has and did.
baton_status baton_session_stats(const struct baton_session *session, struct baton_stats *out);

// Looks for storages that nobody holds any more and gives empty memory back to the broker, which
// otherwise stays here, warm, for the next tensors. bytes: those given back; may be NULL.
baton_status baton_session_collect(const struct baton_session *session, uint64_t *bytes);

// Allocates a tensor in shared memory, to be filled in place at its data, C-contiguous and aligned to
// 256 bytes. What stands there is whatever was there before. Errors: BATON_INVALID_ARGUMENT,
// BATON_OUT_OF_MEMORY, BATON_QUOTA_EXCEEDED, BATON_BROKER_LOST.
baton_status baton_alloc(const struct baton_session *session,
                         DLDataType dtype,
                         int32_t ndim,
                         const int64_t *shape,
                         DLManagedTensorVersioned **out);

// As baton_alloc, with a choice of memory; options may be NULL. Huge pages are taken from the machine
// whole and shared by small tensors; where too few are free it is BATON_OUT_OF_MEMORY, whose text says
// how to reserve more. What lies on a GPU has its device address as data and is for work of the options'
// stream (docs/cuda.md). Other errors: BATON_UNSUPPORTED where the machine has no such pages or
// no driver, BATON_NOT_FOUND for a GPU that this process does not see.
baton_status baton_alloc_with(const struct baton_session *session,
                              const struct baton_alloc_options *options,
                              DLDataType dtype,
                              int32_t ndim,
                              const int64_t *shape,
                              DLManagedTensorVersioned **out);

// Reads the name of a type as ml_dtypes spells it, such as "float32" or "bfloat16", followed by xN
// for N lanes.
baton_status baton_dtype(const char *name, DLDataType *out);

// Releases a tensor by calling its deleter, on any thread; NULL is nothing. It works for tensors of
// any library.
void baton_tensor_release(DLManagedTensorVersioned *tensor);

// Takes a tensor of another library in: its elements are copied once into shared memory, unless they
// lie there already; then the result is one more reference to them. The tensor given stays the
// caller's. Errors: BATON_UNSUPPORTED for memory that the processor cannot read,
// BATON_INVALID_ARGUMENT, and those of baton_alloc.
baton_status baton_from_dlpack(const struct baton_session *session,
                               const DLManagedTensorVersioned *tensor,
                               DLManagedTensorVersioned **out);

// Another view of the same storage: type, shape, strides in elements (NULL: C-contiguous), byte_offset
// bytes after the first element of tensor. It is a reference of its own. BATON_INVALID_ARGUMENT when
// it reaches past the storage or is not aligned.
baton_status baton_tensor_view(const DLManagedTensorVersioned *tensor,
                               DLDataType dtype,
                               int32_t ndim,
                               const int64_t *shape,
                               const int64_t *strides,
                               uint64_t byte_offset,
                               DLManagedTensorVersioned **out);

// The same tensor to be handed on read-only; a reference of its own.
baton_status baton_tensor_read_only(const DLManagedTensorVersioned *tensor, DLManagedTensorVersioned **out);

// A handle of the tensor as JSON, which any means can carry to any process of this broker. The broker
// holds the tensor for the lease's time, whatever becomes of this process: lease_ns, 0 for 30 s,
// BATON_FOREVER until the session ends, BATON_ONCE. The text is released with baton_string_free.
baton_status baton_tensor_handle(const DLManagedTensorVersioned *tensor, int64_t lease_ns, char **out);

// The tensor of a handle, writable where the handle is; it claims the handle's lease. Errors:
// BATON_EXPIRED, BATON_INVALID_HANDLE.
baton_status baton_open(const struct baton_session *session,
                        const char *handle,
                        DLManagedTensorVersioned **out);

// Ends a handle's lease before its time; only the session that made it may
// (BATON_PERMISSION_DENIED).
baton_status baton_handle_release(const struct baton_session *session, const char *handle);

// Releases a text that this library gave to be released; NULL is nothing.
void baton_string_free(char *text);

// How many tensors there are. 0 too when the sender described them wrongly: then
// baton_message_tensor says how.
size_t baton_message_count(const struct baton_message *message);

// The name of a tensor, from 0: a key of a flat dict, or a path in the tree; "" for one that is the
// value itself. NULL when there is none of that number.
const char *baton_message_name(const struct baton_message *message, size_t index);

// A tensor, from 0: no copy, and a reference of its own, which outlives the message. It is read-only
// by its flags unless it came from a queue, a live name, or a sender that gave it for writing. On a GPU
// it is for work of the message's stream (baton_message_stream).
// Errors: BATON_NOT_FOUND; BATON_PROTOCOL, BATON_UNSUPPORTED or BATON_INVALID_ARGUMENT when the sender
// described it wrongly.
baton_status baton_message_tensor(const struct baton_message *message,
                                  size_t index,
                                  DLManagedTensorVersioned **out);

// As baton_message_tensor, by name.
baton_status baton_message_tensor_named(const struct baton_message *message,
                                        const char *name,
                                        DLManagedTensorVersioned **out);

// The JSON that came with the message or revision, "" for none. NULL for NULL.
const char *baton_message_meta(const struct baton_message *message);

// The JSON of the value tree (docs/protocol.md, section 6); "": the value is the unnamed tensor, or a
// flat dict of the named ones. NULL for NULL.
const char *baton_message_tree(const struct baton_message *message);

// The session that sent it: its program's name. "" for a revision of a name, NULL for NULL.
const char *baton_message_sender(const struct baton_message *message);

// Its number among its sender's in this topic, from 1; of a name the number of the revision. 0 for
// NULL.
uint64_t baton_message_sequence(const struct baton_message *message);

// When it was sent, in ns of CLOCK_MONOTONIC; 0 for a revision of a name.
uint64_t baton_message_stamp(const struct baton_message *message);

// Messages that went by unseen before this one: of its sender, and of senders that have gone.
uint64_t baton_message_lost(const struct baton_message *message);

// 1 for the bundle of a live name, which everybody may write in place, so that a read may see half a
// write; else 0.
int32_t baton_message_live(const struct baton_message *message);

// Releases the message; NULL is nothing. Tensors taken from it stay. In a queue with redelivery the
// release of it and of its last tensor is the acknowledgement.
void baton_message_release(struct baton_message *message);

// Says that work enqueued on a stream from now on uses a tensor on a GPU: the stream waits until its
// sender has written it, and released memory is not used anew before the stream has passed. Work that
// follows a send is announced anew. stream: the CUstream or cudaStream_t as a number, 0 or 1 the legacy
// default stream, 2 the thread's, BATON_NO_STREAM none. BATON_EXPIRED: as of baton_tensor_written.
baton_status baton_tensor_use_on(const DLManagedTensorVersioned *tensor, int64_t stream);

// Waits on the processor until a tensor's sender has written it: BATON_TIMEOUT. BATON_EXPIRED: the sender
// ended before, or the lender of the memory has ended. A stream whose sender died comes through and has
// read what was there before: who must not use that asks here, when the stream has passed.
baton_status baton_tensor_written(const DLManagedTensorVersioned *tensor, int64_t timeout_ns);

// 1 where streams wait for each other when it is handed over; 0: the processor does, or it is on no GPU.
int32_t baton_tensor_ordered_by_streams(const DLManagedTensorVersioned *tensor);

// The stream for which tensors are taken from a message from now on; until then the legacy default one.
baton_status baton_message_stream(const struct baton_message *message, int64_t stream);

// A tensor of another library in memory of cudaMalloc as it lies, not copied, to be handed to others.
// The tensor given is taken over in any case: its deleter is called when nobody holds the memory any
// more, on a thread of the session's, and on failure before the return. stream: after whose work it is
// written. Others have it while this session lives, then BATON_EXPIRED; what they hold is kept to the end
// of the process. BATON_UNSUPPORTED: the driver cannot lend it (baton_from_dlpack copies it).
baton_status baton_lend(const struct baton_session *session,
                        DLManagedTensorVersioned *tensor,
                        int64_t stream,
                        DLManagedTensorVersioned **out);

// Opens or makes a topic. name: tokens of A-Z a-z 0-9 _ - joined by /; NULL or an empty text makes a
// private one. options may be NULL. Errors: BATON_INVALID_ARGUMENT, BATON_CONFLICT, BATON_TOO_MANY.
baton_status baton_topic_open(const struct baton_session *session,
                              const char *name,
                              const struct baton_topic_options *options,
                              struct baton_topic **out);

// Opens another process's private topic by its token.
baton_status baton_topic_open_private(const struct baton_session *session,
                                      const char *token,
                                      struct baton_topic **out);

// What opens a private topic in another process. The topic's; NULL for NULL.
const char *baton_topic_token(const struct baton_topic *topic);

// Hands a value to every reader. No tensor of Baton's is copied; the message holds them from now on,
// and who sent them does not write them any more. In a lossless topic it waits until the slowest
// reader has made room: BATON_FULL. Other errors: BATON_CLOSED, BATON_INVALID_ARGUMENT,
// BATON_OUT_OF_MEMORY, BATON_QUOTA_EXCEEDED.
baton_status baton_topic_send(const struct baton_topic *topic,
                              const struct baton_payload *value,
                              int64_t timeout_ns);

// Closes the topic for everybody: sends give BATON_CLOSED, and readers get it when they have received
// all that is there.
baton_status baton_topic_end(const struct baton_topic *topic);

// Releases the topic; NULL is nothing. What was sent is still received.
void baton_topic_release(struct baton_topic *topic);

// Joins a topic as a reader of every message, or, with the name of a group and in a lossless topic,
// as one of the readers that share them. start: BATON_START_NEW, _LAST or _ALL; of groups
// BATON_START_NEW. group: one token, NULL for none.
baton_status baton_reader_open(const struct baton_topic *topic,
                               int32_t start,
                               const char *group,
                               struct baton_reader **out);

// Receives the next message, waiting for it: for ever with BATON_FOREVER, not at all with 0. Errors:
// BATON_TIMEOUT; BATON_CLOSED when the topic was closed and everything received, or the session
// ended.
baton_status baton_reader_receive(const struct baton_reader *reader,
                                  struct baton_message **out,
                                  int64_t timeout_ns);

// Messages that went by unseen and that no later message has reported; while another thread receives,
// as it was before. 0 for NULL.
uint64_t baton_reader_lost(const struct baton_reader *reader);

// Releases the reader; NULL is nothing.
void baton_reader_release(struct baton_reader *reader);

// Opens or makes a queue; as baton_topic_open.
baton_status baton_queue_open(const struct baton_session *session,
                              const char *name,
                              const struct baton_topic_options *options,
                              struct baton_queue **out);

// Opens another process's private queue by its token.
baton_status baton_queue_open_private(const struct baton_session *session,
                                      const char *token,
                                      struct baton_queue **out);

// What opens a private queue in another process. The queue's; NULL for NULL.
const char *baton_queue_token(const struct baton_queue *queue);

// Adds an item, which its taker may write, waiting while the queue is full: BATON_FULL. Other errors
// as baton_topic_send.
baton_status baton_queue_put(const struct baton_queue *queue,
                             const struct baton_payload *value,
                             int64_t timeout_ns);

// Takes an item, waiting for one: for ever with BATON_FOREVER, not at all with 0. Errors: BATON_EMPTY;
// BATON_CLOSED when the queue was closed and is empty, or the session ended.
baton_status baton_queue_get(const struct baton_queue *queue, struct baton_message **out, int64_t timeout_ns);

// How many items wait to be taken.
baton_status baton_queue_waiting(const struct baton_queue *queue, size_t *out);

// Closes the queue for everybody: puts give BATON_CLOSED, and takers get it when the queue is empty.
baton_status baton_queue_end(const struct baton_queue *queue);

// Releases the queue; NULL is nothing.
void baton_queue_release(struct baton_queue *queue);

// Publishes a revision of a name: a whole that nobody writes any more, or, with BATON_LIVE, one that
// everybody may. flags: 0, or BATON_LIVE and BATON_EPHEMERAL. revision: its number, may be NULL.
// Errors: BATON_INVALID_ARGUMENT, BATON_EXPIRED, BATON_OUT_OF_MEMORY.
baton_status baton_set(const struct baton_session *session,
                       const char *name,
                       const struct baton_payload *value,
                       uint32_t flags,
                       uint64_t *revision);

// The newest revision of a name, as a message whose sequence is its number. BATON_NOT_FOUND when
// there is none within the time.
baton_status baton_get(const struct baton_session *session,
                       const char *name,
                       struct baton_message **out,
                       int64_t timeout_ns);

// Follows a name: the current revision at once, then always the newest.
baton_status baton_watch_open(const struct baton_session *session,
                              const char *name,
                              struct baton_watch **out);

// The newest revision not seen yet, waiting for one. A name that was deleted may be set again: the
// watch waits for that. Errors: BATON_TIMEOUT, BATON_CLOSED when the session ended.
baton_status baton_watch_receive(const struct baton_watch *watch,
                                 struct baton_message **out,
                                 int64_t timeout_ns);

// Releases the watch; NULL is nothing.
void baton_watch_release(struct baton_watch *watch);

// Removes a name. Bundles that were got stay with their holders. BATON_NOT_FOUND when it is not set.
baton_status baton_delete(const struct baton_session *session, const char *name);

// The names that are set in the session's namespace, in an array that ends with NULL and is released
// with baton_names_free. In the pattern * stands for any run of characters; NULL matches all.
baton_status baton_names(const struct baton_session *session, const char *pattern, char ***out);

// Releases what baton_names gave; NULL is nothing.
void baton_names_free(char **names);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BATON_H */
