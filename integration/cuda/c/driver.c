// The C driver of the tests of GPUs: it does what lines of JSON on its standard input ask for with
// tensors on a GPU, one after the other, and answers each with a line. See order in langs_test.go.

#include "../../langs/c/kit.h"
#include "../../langs/c/order.h"

#include <dlfcn.h>
#include <pthread.h>

static const DLDataType byte_type = {1, 8, 1};

static baton_session *session;
static baton_queue *queue;

// The answer: what was seen, or a handle.
static char seen[4096];
static char *handle;

// What is held until it is released, and what was lent until it is freed.
static baton_message *held[64];
static size_t held_count;

// How many bytes of an allocation lie before what is lent of it.
enum { BEFORE = 1000 };

struct lent {
	DLManagedTensorVersioned managed;
	int64_t shape[1];
	uint64_t at;
	int let_go;
};
static struct lent *lent[64];
static size_t lent_count;
static pthread_mutex_t lent_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t lent_news = PTHREAD_COND_INITIALIZER;

// The driver of the GPU, as a program has it that makes kernels of its own.
static struct {
	int (*init)(unsigned flags), (*retain)(void **context, int device), (*push)(void *context);
	int (*alloc)(uint64_t *at, size_t n), (*release)(uint64_t at);
	int (*fill)(uint64_t at, unsigned char value, size_t n, void *stream);
	int (*copy_out)(void *to, uint64_t at, size_t n, void *stream);
	int (*new_stream)(void **stream, unsigned flags), (*synchronize)(void *stream);
	void *stream;
} cuda;

// ISO C knows no way from a symbol's address to a function.
static void find(void *library, const char *name, void *function) {
	void *found = dlsym(library, name);
	memcpy(function, &found, sizeof found);
}

static void done(int result, const char *what) {
	if (result != 0) {
		fprintf(stderr, "%s: %d\n", what, result);
		exit(1);
	}
}

// The stream of this program's own, made when it is first needed.
static int64_t stream(void) {
	if (!cuda.stream) {
		void *context, *library = dlopen("libcuda.so.1", RTLD_NOW);
		find(library, "cuInit", &cuda.init);
		find(library, "cuDevicePrimaryCtxRetain", &cuda.retain);
		find(library, "cuCtxPushCurrent_v2", &cuda.push);
		find(library, "cuMemAlloc_v2", &cuda.alloc);
		find(library, "cuMemFree_v2", &cuda.release);
		find(library, "cuMemsetD8Async", &cuda.fill);
		find(library, "cuMemcpyDtoHAsync_v2", &cuda.copy_out);
		find(library, "cuStreamCreate", &cuda.new_stream);
		find(library, "cuStreamSynchronize", &cuda.synchronize);
		done(cuda.init(0), "start the driver");
		done(cuda.retain(&context, 0), "retain");
		done(cuda.push(context), "push");
		done(cuda.new_stream(&cuda.stream, 1), "make a stream");
	}
	return (int64_t)(intptr_t)cuda.stream;
}

static uint64_t device_address(const DLManagedTensorVersioned *t) {
	return (uint64_t)(uintptr_t)t->dl_tensor.data + t->dl_tensor.byte_offset;
}

// A tensor on the GPU whose bytes are all one number, when the stream has come so far.
static baton_status filled_by(const char *line, uint64_t seed, DLManagedTensorVersioned **out) {
	const int64_t n = number(line, "bytes", 4096);
	baton_alloc_options o = {.size = sizeof o, .device = "cuda:0"};
	baton_status s = baton_alloc_with(session, &o, byte_type, 1, &n, out);
	if (s == BATON_OK && (s = baton_tensor_use_on(*out, stream())) == BATON_OK)
		done(cuda.fill(device_address(*out), (unsigned char)seed, (size_t)n, cuda.stream), "fill");
	return s;
}

// Notes the number that all bytes of a tensor are, as the stream reads them.
static baton_status see(const DLManagedTensorVersioned *t) {
	baton_status s = baton_tensor_use_on(t, stream());
	if (s != BATON_OK)
		return s;
	const size_t n = (size_t)count_of(t);
	unsigned char *all = malloc(n);
	done(cuda.copy_out(all, device_address(t), n, cuda.stream), "copy");
	done(cuda.synchronize(cuda.stream), "synchronize");
	size_t same = 1;
	while (same < n && all[same] == all[0])
		same++;
	const size_t end = strlen(seen);
	snprintf(seen + end, sizeof seen - end, same == n ? "%s%u" : "%s\"a mixture\"", end ? "," : "", all[0]);
	free(all);
	return BATON_OK;
}

// As see, of the first tensor of a message.
static baton_status see_message(const baton_message *m) {
	DLManagedTensorVersioned *t;
	baton_status s = baton_message_stream(m, stream());
	if (s == BATON_OK)
		s = baton_message_tensor(m, 0, &t);
	if (s == BATON_OK) {
		s = see(t);
		baton_tensor_release(t);
	}
	return s;
}

static baton_status open_queue(const char *line) {
	char name[64];
	baton_topic_options o = {.size = sizeof o, .depth = 4, .linger_ns = 1000000};
	return queue ? BATON_OK : baton_queue_open(session, text(line, "queue", name), &o, &queue);
}

static baton_status put_tensor(const DLManagedTensorVersioned *t) {
	const baton_item item = {NULL, t};
	const baton_payload value = {.size = sizeof value, .item_size = sizeof(baton_item), .items = &item, .count = 1, .stream = stream()};
	return baton_queue_put(queue, &value, 30000000000);
}

// What the library calls when no session holds lent memory any more.
static void let_go(DLManagedTensorVersioned *managed) {
	struct lent *l = managed->manager_ctx;
	pthread_mutex_lock(&lent_lock);
	l->let_go = 1;
	pthread_cond_signal(&lent_news);
	pthread_mutex_unlock(&lent_lock);
}

// Memory of another library's, lent as it lies.
static baton_status lend(const char *line, uint64_t seed, DLManagedTensorVersioned **out) {
	struct lent *l = lent[lent_count] = calloc(1, sizeof *l);
	const int64_t s = stream(), n = l->shape[0] = number(line, "bytes", 4096);
	done(cuda.alloc(&l->at, BEFORE + (size_t)n), "allocate");
	done(cuda.fill(l->at + BEFORE, (unsigned char)seed, (size_t)n, cuda.stream), "fill");
	l->managed = (DLManagedTensorVersioned){.version = {1, 3}, .manager_ctx = l, .deleter = let_go};
	l->managed.dl_tensor = (DLTensor){.data = (void *)(uintptr_t)l->at, .device = {2, 0}, .ndim = 1, .dtype = byte_type, .shape = l->shape, .byte_offset = BEFORE};
	lent_count++;
	return baton_lend(session, &l->managed, s, out);
}

// Frees what was lent, once no session has it.
static void free_lent(void) {
	while (lent_count > 0) {
		struct lent *l = lent[--lent_count];
		pthread_mutex_lock(&lent_lock);
		while (!l->let_go)
			pthread_cond_wait(&lent_news, &lent_lock);
		pthread_mutex_unlock(&lent_lock);
		done(cuda.synchronize(cuda.stream), "synchronize");
		done(cuda.release(l->at), "free");
		free(l);
	}
}

static baton_status put(const char *line, int lending) {
	const uint64_t seed = (uint64_t)number(line, "seed", 0);
	const int64_t count = number(line, "count", 1);
	baton_status s = open_queue(line);
	for (int64_t i = 0; s == BATON_OK && i < count; i++) {
		DLManagedTensorVersioned *t;
		s = lending ? lend(line, seed + (uint64_t)i, &t) : filled_by(line, seed + (uint64_t)i, &t);
		if (s == BATON_OK)
			s = put_tensor(t);
		baton_tensor_release(t);
	}
	return s;
}

static baton_status take(const char *line) {
	const int64_t count = number(line, "count", 1);
	baton_status s = open_queue(line);
	for (int64_t i = 0; s == BATON_OK && i < count; i++) {
		baton_message *m;
		if ((s = baton_queue_get(queue, &m, 30000000000)) != BATON_OK)
			break;
		if (flag(line, "unread")) {
			const size_t end = strlen(seen);
			snprintf(seen + end, sizeof seen - end, "%s%llu", end ? "," : "", (unsigned long long)baton_message_lost(m));
		} else {
			s = see_message(m);
		}
		if (flag(line, "hold") || flag(line, "unread"))
			held[held_count++] = m;
		else
			baton_message_release(m);
	}
	return s;
}

static baton_status wait_for(const char *line) {
	baton_message *m = NULL;
	DLManagedTensorVersioned *t = NULL;
	baton_status s = open_queue(line);
	if (s == BATON_OK)
		s = baton_queue_get(queue, &m, 30000000000);
	if (s == BATON_OK)
		s = baton_message_stream(m, stream());
	if (s == BATON_OK)
		s = baton_message_tensor(m, 0, &t);
	if (s == BATON_OK)
		s = baton_tensor_written(t, 30000000000);
	baton_tensor_release(t);
	baton_message_release(m);
	return s;
}

// Takes one and puts it back, for which there is a tenth of a second.
static baton_status pass(const char *line) {
	baton_message *m = NULL;
	DLManagedTensorVersioned *t = NULL;
	baton_status s = open_queue(line);
	if (s == BATON_OK)
		s = baton_queue_get(queue, &m, 30000000000);
	if (s == BATON_OK)
		s = baton_message_stream(m, BATON_NO_STREAM);
	if (s == BATON_OK)
		s = baton_message_tensor(m, 0, &t);
	if (s == BATON_OK) {
		const baton_item item = {NULL, t};
		const baton_payload value = {.size = sizeof value, .item_size = sizeof(baton_item), .items = &item, .count = 1, .stream = stream()};
		s = baton_queue_put(queue, &value, 100000000);
	}
	baton_tensor_release(t);
	baton_message_release(m);
	return s;
}

// Lets the stream use each tensor of a message, twice, and tells how often the driver was told to wait.
static baton_status follow(const char *line) {
	baton_message *m = NULL;
	baton_status s = open_queue(line);
	if (s == BATON_OK)
		s = baton_queue_get(queue, &m, 30000000000);
	if (s == BATON_OK)
		s = baton_message_stream(m, stream());
	if (s != BATON_OK)
		return s;
	unsigned long long (*calls)(const char *name);
	find(dlopen("libcuda.so.1", RTLD_NOW), "standin_calls", &calls);
	const unsigned long long before = calls("cuStreamWaitValue64_v2");
	const size_t n = baton_message_count(m);
	for (size_t i = 0; s == BATON_OK && i < 2 * n; i++) {
		DLManagedTensorVersioned *t;
		if ((s = baton_message_tensor(m, i % n, &t)) == BATON_OK)
			baton_tensor_release(t);
	}
	snprintf(seen, sizeof seen, "%zu,%llu", n, calls("cuStreamWaitValue64_v2") - before);
	held[held_count++] = m;
	return s;
}

static baton_status set(const char *line) {
	char name[64];
	DLManagedTensorVersioned *t;
	baton_status s = filled_by(line, (uint64_t)number(line, "seed", 0), &t);
	const baton_item item = {NULL, t};
	const baton_payload value = {.size = sizeof value, .item_size = sizeof(baton_item), .items = &item, .count = 1};
	if (s == BATON_OK)
		s = baton_set(session, text(line, "name", name), &value, 0, NULL);
	baton_tensor_release(t);
	return s;
}

static baton_status make_handle(const char *line) {
	DLManagedTensorVersioned *t;
	baton_status s = filled_by(line, (uint64_t)number(line, "seed", 0), &t);
	if (s == BATON_OK)
		s = baton_tensor_handle(t, BATON_FOREVER, &handle);
	baton_tensor_release(t);
	return s;
}

// The handle in a line, a text in which quotes have a backslash.
static baton_status open_handle(const char *line) {
	char json[4096];
	size_t n = 0;
	const char *from = at(line, "handle");
	for (from = from ? from + 1 : ""; *from && *from != '"' && n < sizeof json - 1; from++)
		if (*from != '\\' || *++from)
			json[n++] = *from;
	json[n] = 0;
	DLManagedTensorVersioned *t;
	baton_status s = baton_open(session, json, &t);
	if (s == BATON_OK)
		s = see(t);
	baton_tensor_release(t);
	return s;
}

static baton_status get(const char *line) {
	char name[64];
	baton_message *m;
	baton_status s = baton_get(session, text(line, "name", name), &m, 0);
	if (s == BATON_OK)
		s = see_message(m);
	baton_message_release(m);
	return s;
}

static baton_status allocate(const char *line) {
	char name[64];
	DLManagedTensorVersioned *t;
	const int64_t n = number(line, "bytes", 4096);
	const baton_alloc_options o = {.size = sizeof o, .device = text(line, "device", name)[0] ? name : "cuda:0"};
	baton_status s = baton_alloc_with(session, &o, byte_type, 1, &n, &t);
	baton_tensor_release(t);
	return s;
}

static baton_status tell_who_waits(const char *line) {
	DLManagedTensorVersioned *t;
	baton_status s = filled_by(line, 1, &t);
	if (s == BATON_OK)
		snprintf(seen, sizeof seen, "%d", baton_tensor_ordered_by_streams(t));
	baton_tensor_release(t);
	return s;
}

static void release(void) {
	while (held_count > 0)
		baton_message_release(held[--held_count]);
}

static baton_status carry_out(const char *line) {
	char what[64], name[64];
	baton_status s = BATON_OK;
	text(line, "do", what);
	if (strcmp(what, "put") == 0 || strcmp(what, "lend") == 0)
		return put(line, what[0] == 'l');
	if (strcmp(what, "take") == 0)
		return take(line);
	if (strcmp(what, "wait") == 0)
		return wait_for(line);
	if (strcmp(what, "pass") == 0)
		return pass(line);
	if (strcmp(what, "ordered") == 0)
		return tell_who_waits(line);
	if (strcmp(what, "follow") == 0)
		return follow(line);
	if (strcmp(what, "set") == 0)
		return set(line);
	if (strcmp(what, "get") == 0)
		return get(line);
	if (strcmp(what, "delete") == 0)
		return baton_delete(session, text(line, "name", name));
	if (strcmp(what, "handle") == 0)
		return make_handle(line);
	if (strcmp(what, "open") == 0)
		return open_handle(line);
	if (strcmp(what, "alloc") == 0)
		return allocate(line);
	if (strcmp(what, "held") == 0) {
		for (size_t i = 0; s == BATON_OK && i < held_count; i++)
			s = see_message(held[i]);
	} else if (strcmp(what, "release") == 0) {
		release();
	} else if (strcmp(what, "free") == 0) {
		free_lent();
	} else {
		fprintf(stderr, "unknown: %s\n", what);
		exit(1);
	}
	return s;
}

int main(void) {
	static char line[1 << 16];
	const baton_options o = {.size = sizeof o, .name = "c-gpu"};
	MUST(baton_connect(&o, &session));
	while (fgets(line, sizeof line, stdin)) {
		seen[0] = 0;
		const baton_status s = carry_out(line);
		if (handle) { // as a text, as the other drivers give it
			printf("{\"handle\":");
			quoted(handle);
			puts("}");
			baton_string_free(handle);
			handle = NULL;
		} else if (seen[0] && s == BATON_OK) {
			printf("{\"seen\":[%s]}\n", seen);
		} else {
			answer(s, 0);
		}
		fflush(stdout);
	}
	release();
	baton_queue_release(queue);
	baton_session_release(session);
	return 0;
}
