// A C library that makes, reads and releases DLPack tensors, for the tests of
// the Go package. The structures are written out from the DLPack 1.3 layout, so
// that the C compiler of the machine says where their fields are.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  uint32_t major, minor;
} DLPackVersion;
typedef struct {
  int32_t device_type, device_id;
} DLDevice;
typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;
typedef struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  struct DLPackExchangeAPIHeader *prev_api;
} DLPackExchangeAPIHeader;
typedef struct {
  DLPackExchangeAPIHeader header;
  int (*managed_tensor_allocator)(DLTensor *, DLManagedTensorVersioned **, void *,
                                  void (*)(void *, const char *, const char *));
  int (*managed_tensor_from_py_object_no_sync)(void *, DLManagedTensorVersioned **);
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned *, void **);
  int (*dltensor_from_py_object_no_sync)(void *, DLTensor *);
  int (*current_work_stream)(int32_t, int32_t, void **);
} DLPackExchangeAPI;

// ---- layout

static void line(char *buf, size_t cap, const char *fmt, ...) {
  size_t used = strlen(buf);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(buf + used, cap - used, fmt, ap);
  va_end(ap);
}

#define STRUCT(T) line(buf, cap, "%s %zu %zu\n", #T, sizeof(T), _Alignof(T))
#define FIELD(T, f) line(buf, cap, "%s.%s %zu %zu\n", #T, #f, offsetof(T, f), sizeof(((T *)0)->f))

// baton_test_layout writes "struct size alignment" and "struct.field offset
// width" lines.
void baton_test_layout(char *buf, size_t cap) {
  buf[0] = 0;
  STRUCT(DLPackVersion);
  FIELD(DLPackVersion, major);
  FIELD(DLPackVersion, minor);
  STRUCT(DLDevice);
  FIELD(DLDevice, device_type);
  FIELD(DLDevice, device_id);
  STRUCT(DLDataType);
  FIELD(DLDataType, code);
  FIELD(DLDataType, bits);
  FIELD(DLDataType, lanes);
  STRUCT(DLTensor);
  FIELD(DLTensor, data);
  FIELD(DLTensor, device);
  FIELD(DLTensor, ndim);
  FIELD(DLTensor, dtype);
  FIELD(DLTensor, shape);
  FIELD(DLTensor, strides);
  FIELD(DLTensor, byte_offset);
  STRUCT(DLManagedTensor);
  FIELD(DLManagedTensor, dl_tensor);
  FIELD(DLManagedTensor, manager_ctx);
  FIELD(DLManagedTensor, deleter);
  STRUCT(DLManagedTensorVersioned);
  FIELD(DLManagedTensorVersioned, version);
  FIELD(DLManagedTensorVersioned, manager_ctx);
  FIELD(DLManagedTensorVersioned, deleter);
  FIELD(DLManagedTensorVersioned, flags);
  FIELD(DLManagedTensorVersioned, dl_tensor);
  STRUCT(DLPackExchangeAPIHeader);
  FIELD(DLPackExchangeAPIHeader, version);
  FIELD(DLPackExchangeAPIHeader, prev_api);
  STRUCT(DLPackExchangeAPI);
  FIELD(DLPackExchangeAPI, header);
  FIELD(DLPackExchangeAPI, managed_tensor_allocator);
  FIELD(DLPackExchangeAPI, managed_tensor_from_py_object_no_sync);
  FIELD(DLPackExchangeAPI, managed_tensor_to_py_object_no_sync);
  FIELD(DLPackExchangeAPI, dltensor_from_py_object_no_sync);
  FIELD(DLPackExchangeAPI, current_work_stream);
}

// ---- consuming what Go exported

// baton_test_sum_float32 reads a tensor as a consumer would. It gives the sum
// of the elements, or minus the number of the first check that failed.
int64_t baton_test_sum_float32(DLManagedTensorVersioned *m, uint64_t flags) {
  if (m->version.major != 1 || m->version.minor != 3) return -1;
  if (m->flags != flags) return -2;
  DLTensor *t = &m->dl_tensor;
  if (t->device.device_type != 1 || t->device.device_id != 0) return -3;
  if (t->dtype.code != 2 || t->dtype.bits != 32 || t->dtype.lanes != 1) return -4;
  if (t->byte_offset != 0 || t->ndim != 2 || !t->shape || !t->strides) return -5;
  if (!m->deleter || !m->manager_ctx) return -6;
  double sum = 0;
  for (int64_t i = 0; i < t->shape[0]; i++)
    for (int64_t j = 0; j < t->shape[1]; j++)
      sum += ((float *)t->data)[i * t->strides[0] + j * t->strides[1]];
  return (int64_t)sum;
}

struct worker {
  pthread_t thread;
  pthread_barrier_t *start;
  void **tensors;
  size_t from, n, step;
  int legacy;
};

static void delete_one(void *tensor, int legacy) {
  if (legacy) {
    DLManagedTensor *m = tensor;
    m->deleter(m);
  } else {
    DLManagedTensorVersioned *m = tensor;
    m->deleter(m);
  }
}

static void *work(void *arg) {
  struct worker *w = arg;
  pthread_barrier_wait(w->start);
  for (size_t i = w->from; i < w->n; i += w->step) delete_one(w->tensors[i], w->legacy);
  return NULL;
}

// baton_test_delete_on_threads calls each tensor's deleter once, spread over
// threads that it creates and that all start at the same moment. 0 if it could.
int baton_test_delete_on_threads(void **tensors, size_t n, int threads, int legacy) {
  struct worker *w = calloc(threads, sizeof *w);
  pthread_barrier_t start;
  if (!w || pthread_barrier_init(&start, NULL, threads)) return -1;
  for (int i = 0; i < threads; i++) {
    w[i] = (struct worker){.start = &start, .tensors = tensors, .from = i, .n = n, .step = threads, .legacy = legacy};
    // The threads started so far wait at the barrier, so there is no way back.
    if (pthread_create(&w[i].thread, NULL, work, &w[i])) abort();
  }
  for (int i = 0; i < threads; i++) pthread_join(w[i].thread, NULL);
  pthread_barrier_destroy(&start);
  free(w);
  return 0;
}

// baton_test_delete_all calls the deleters on the calling thread and gives the
// nanoseconds that it took.
int64_t baton_test_delete_all(void **tensors, size_t n) {
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (size_t i = 0; i < n; i++) delete_one(tensors[i], 0);
  clock_gettime(CLOCK_MONOTONIC, &b);
  return (b.tv_sec - a.tv_sec) * 1000000000LL + (b.tv_nsec - a.tv_nsec);
}

// baton_test_call_null calls a deleter with NULL.
void baton_test_call_null(DLManagedTensorVersioned *m) { m->deleter(NULL); }

// baton_test_registers calls the deleter with a value of its own in each
// register that a callee must keep, and gives 1 if they and the stack pointer
// were kept. In assembly, so that no compiler moves anything.
int baton_test_registers(DLManagedTensorVersioned *m);
uint64_t baton_test_stack;
_Static_assert(offsetof(DLManagedTensorVersioned, deleter) == 16, "as used below");
#if defined(__x86_64__)
__asm__(
    ".pushsection .text\n"
    ".globl baton_test_registers\n"
    ".type baton_test_registers, @function\n"
    "baton_test_registers:\n"
    "  push %rbx\n  push %rbp\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  sub $8, %rsp\n"
    "  mov $0x11, %rbx\n  mov $0x22, %rbp\n  mov $0x33, %r12\n"
    "  mov $0x44, %r13\n  mov $0x55, %r14\n  mov $0x66, %r15\n"
    "  mov baton_test_stack@GOTPCREL(%rip), %rax\n"
    "  mov %rsp, (%rax)\n"
    "  call *16(%rdi)\n"
    "  mov baton_test_stack@GOTPCREL(%rip), %rcx\n"
    "  xor %eax, %eax\n"
    "  cmp (%rcx), %rsp\n  jne 1f\n"
    "  cmp $0x11, %rbx\n  jne 1f\n"
    "  cmp $0x22, %rbp\n  jne 1f\n"
    "  cmp $0x33, %r12\n  jne 1f\n"
    "  cmp $0x44, %r13\n  jne 1f\n"
    "  cmp $0x55, %r14\n  jne 1f\n"
    "  cmp $0x66, %r15\n  jne 1f\n"
    "  mov $1, %eax\n"
    "1:\n"
    "  mov (%rcx), %rsp\n"
    "  add $8, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbp\n  pop %rbx\n"
    "  ret\n"
    ".popsection\n");
#elif defined(__aarch64__)
#define KEPT(CHECK)                                                              \
  CHECK("x19", "0x11") CHECK("x20", "0x22") CHECK("x21", "0x33") CHECK("x22", "0x44") CHECK("x23", "0x55") \
  CHECK("x24", "0x66") CHECK("x25", "0x77") CHECK("x26", "0x88") CHECK("x27", "0x99") CHECK("x28", "0xaa") \
  CHECK("x29", "0xbb")
#define SET(reg, value) "  mov " reg ", #" value "\n"
#define SAME(reg, value) "  cmp " reg ", #" value "\n  b.ne 1f\n"
__asm__(
    ".pushsection .text\n"
    ".globl baton_test_registers\n"
    ".type baton_test_registers, %function\n"
    "baton_test_registers:\n"
    "  stp x29, x30, [sp, #-96]!\n"
    "  stp x19, x20, [sp, #16]\n  stp x21, x22, [sp, #32]\n  stp x23, x24, [sp, #48]\n"
    "  stp x25, x26, [sp, #64]\n  stp x27, x28, [sp, #80]\n"
    KEPT(SET)
    "  adrp x1, :got:baton_test_stack\n  ldr x1, [x1, :got_lo12:baton_test_stack]\n"
    "  mov x2, sp\n  str x2, [x1]\n"
    "  ldr x9, [x0, #16]\n"
    "  blr x9\n"
    "  adrp x1, :got:baton_test_stack\n  ldr x1, [x1, :got_lo12:baton_test_stack]\n"
    "  ldr x2, [x1]\n"
    "  mov w0, #0\n"
    "  mov x3, sp\n  cmp x3, x2\n  b.ne 1f\n"
    KEPT(SAME)
    "  mov w0, #1\n"
    "1:\n"
    "  mov sp, x2\n"
    "  ldp x19, x20, [sp, #16]\n  ldp x21, x22, [sp, #32]\n  ldp x23, x24, [sp, #48]\n"
    "  ldp x25, x26, [sp, #64]\n  ldp x27, x28, [sp, #80]\n"
    "  ldp x29, x30, [sp], #96\n"
    "  ret\n"
    ".popsection\n");
#else
#error "no deleter for this architecture"
#endif

// ---- producing for Go

static _Atomic int64_t made, deleted;

int64_t baton_test_made(void) { return atomic_load(&made); }
int64_t baton_test_deleted(void) { return atomic_load(&deleted); }

struct owned {
  int64_t shape[2], strides[2];
  float data[];
};

// Freed memory is made unusable first: a second call, or a read afterwards,
// shows.
static void delete_versioned(DLManagedTensorVersioned *m) {
  atomic_fetch_add(&deleted, 1);
  free(m->manager_ctx);
  memset(m, 0xee, sizeof *m);
  free(m);
}

static void delete_legacy(DLManagedTensor *m) {
  atomic_fetch_add(&deleted, 1);
  free(m->manager_ctx);
  memset(m, 0xee, sizeof *m);
  free(m);
}

static DLTensor new_tensor(int64_t rows, int64_t cols, struct owned **ctx) {
  struct owned *o = malloc(sizeof *o + sizeof(float) * rows * cols);
  if (!o) abort();
  o->shape[0] = rows;
  o->shape[1] = cols;
  o->strides[0] = cols;
  o->strides[1] = 1;
  for (int64_t i = 0; i < rows * cols; i++) o->data[i] = i;
  *ctx = o;
  atomic_fetch_add(&made, 1);
  return (DLTensor){.data = rows && cols ? o->data : NULL,
                    .device = {1, 0},
                    .ndim = 2,
                    .dtype = {2, 32, 1},
                    .shape = o->shape,
                    .strides = o->strides};
}

DLManagedTensorVersioned *baton_test_new(int64_t rows, int64_t cols, uint64_t flags) {
  struct owned *o;
  DLManagedTensorVersioned *m = malloc(sizeof *m);
  if (!m) abort();
  *m = (DLManagedTensorVersioned){{1, 3}, NULL, delete_versioned, flags, new_tensor(rows, cols, &o)};
  m->manager_ctx = o;
  return m;
}

DLManagedTensor *baton_test_new_legacy(int64_t rows, int64_t cols) {
  struct owned *o;
  DLManagedTensor *m = malloc(sizeof *m);
  if (!m) abort();
  *m = (DLManagedTensor){new_tensor(rows, cols, &o), NULL, delete_legacy};
  m->manager_ctx = o;
  return m;
}

// baton_test_static gives a tensor that need not be freed: its deleter is
// NULL.
DLManagedTensorVersioned *baton_test_static(void) {
  static float data[6] = {0, 1, 2, 3, 4, 5};
  static int64_t shape[2] = {2, 3}, strides[2] = {3, 1};
  static DLManagedTensorVersioned m = {{1, 0}, NULL, NULL, 0, {data, {1, 0}, 2, {2, 32, 1}, shape, strides, 0}};
  return &m;
}

static void delete_future(DLManagedTensorVersioned *m) {
  atomic_fetch_add(&deleted, 1);
  long page = sysconf(_SC_PAGESIZE);
  munmap((char *)((uintptr_t)m & ~(uintptr_t)(page - 1)), 2 * page);
}

// baton_test_new_future gives a tensor of major version 2 that ends behind the
// deleter: everything else lies on a page that cannot be read, and manager_ctx
// is not an address. With or without a deleter.
DLManagedTensorVersioned *baton_test_new_future(int with_deleter) {
  long page = sysconf(_SC_PAGESIZE);
  char *p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED || mprotect(p + page, page, PROT_NONE)) abort();
  DLManagedTensorVersioned *m = (void *)(p + page - offsetof(DLManagedTensorVersioned, flags));
  m->version = (DLPackVersion){2, 9};
  m->manager_ctx = (void *)(uintptr_t)0x5a5a5a5a5a5a5a5a;
  m->deleter = with_deleter ? delete_future : NULL;
  atomic_fetch_add(&made, 1);
  return m;
}

// ---- exchange table

static int allocate(DLTensor *like, DLManagedTensorVersioned **out, void *ctx,
                    void (*fail)(void *, const char *, const char *)) {
  (void)ctx, (void)fail;
  if (like->ndim != 2 || like->dtype.code != 2 || like->dtype.bits != 32) return -1;
  *out = baton_test_new(like->shape[0], like->shape[1], 0);
  return 0;
}

static int stream(int32_t type, int32_t id, void **out) {
  (void)type, (void)id;
  *out = NULL;
  return 0;
}

// baton_test_exchange gives a header of version 2.0, on a page of its own whose
// neighbour cannot be read, before a table of version 1.3 that lacks the Python
// entries.
void *baton_test_exchange(void) {
  static DLPackExchangeAPI ours = {
      .header = {{1, 3}, NULL}, .managed_tensor_allocator = allocate, .current_work_stream = stream};
  long page = sysconf(_SC_PAGESIZE);
  char *p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED || mprotect(p + page, page, PROT_NONE)) abort();
  DLPackExchangeAPIHeader *newer = (void *)(p + page - sizeof *newer);
  *newer = (DLPackExchangeAPIHeader){{2, 0}, &ours.header};
  return newer;
}
