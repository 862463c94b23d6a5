// The normalising stage of the pipeline: gives each picture mean 0 and deviation 1, in the memory in
// which the loader left it, and hands it on.

#include <baton.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIXELS = 64 };

static void check(baton_status status) {
	if (status != BATON_OK) {
		fprintf(stderr, "normalise: %s: %s\n", baton_status_name(status), baton_last_error());
		exit(1);
	}
}

// CLOCK_MONOTONIC, which is the same in all processes.
static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// Where memory really is: inode and offset of the shared file, from the kernel.
static void place(const void *memory, char *out, size_t size) {
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	out[0] = 0;
	while (maps && fgets(line, sizeof line, maps)) {
		uint64_t from, to, offset, inode, at = (uint64_t)(uintptr_t)memory;
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %" SCNu64, &from, &to, &offset, &inode) == 4 && from <= at && at < to)
			snprintf(out, size, "%" PRIu64 ":%" PRIu64, inode, offset + (at - from));
	}
	if (maps)
		fclose(maps);
}

static void normalise(float *pictures, int64_t count) {
	for (int64_t i = 0; i < count; i++) {
		float *x = pictures + i * PIXELS, sum = 0, squares = 0;
		for (int p = 0; p < PIXELS; p++)
			sum += x[p];
		for (int p = 0; p < PIXELS; p++)
			squares += (x[p] - sum / PIXELS) * (x[p] - sum / PIXELS);
		const float deviation = sqrtf(squares / PIXELS) + 1e-6f;
		for (int p = 0; p < PIXELS; p++)
			x[p] = (x[p] - sum / PIXELS) / deviation;
	}
}

// Hands one message on; 0 for the last.
static int stage(baton_queue *from, baton_queue *to) {
	baton_message *m;
	check(baton_queue_get(from, &m, BATON_FOREVER));
	const uint64_t began = now();
	const size_t count = baton_message_count(m);
	baton_item items[8];
	char meta[2048], at[64] = "";
	if (count > sizeof items / sizeof *items) {
		fprintf(stderr, "normalise: %zu tensors in a message\n", count);
		exit(1);
	}
	for (size_t i = 0; i < count; i++) {
		DLManagedTensorVersioned *t;
		check(baton_message_tensor(m, i, &t));
		items[i].name = baton_message_name(m, i);
		items[i].tensor = t;
		if (strcmp(items[i].name, "images") == 0) {
			float *x = (float *)(void *)((char *)t->dl_tensor.data + t->dl_tensor.byte_offset);
			normalise(x, t->dl_tensor.shape[0]);
			place(x, at, sizeof at);
		}
	}
	// The trace is the last entry of the meta, and ends with ]}.
	const char *before = baton_message_meta(m);
	const size_t length = strlen(before);
	baton_payload value = {.size = sizeof value, .item_size = sizeof(baton_item), .items = items, .count = count};
	if (count > 0 && length > 2) {
		snprintf(meta, sizeof meta, "%.*s,{\"stage\":\"normalise\",\"at\":\"%s\",\"in\":%" PRIu64 ",\"out\":%" PRIu64 "}]}",
		         (int)length - 2, before, at, began, now());
		value.meta = meta;
	}
	check(baton_queue_put(to, &value, BATON_FOREVER));
	for (size_t i = 0; i < count; i++)
		baton_tensor_release((DLManagedTensorVersioned *)items[i].tensor);
	baton_message_release(m);
	return count > 0;
}

int main(void) {
	const baton_options options = {.size = sizeof options, .name = "normalise"};
	baton_session *session;
	baton_queue *from, *to;
	check(baton_connect(&options, &session));
	check(baton_queue_open(session, "pipeline/augmented", NULL, &from));
	check(baton_queue_open(session, "pipeline/normalised", NULL, &to));
	while (stage(from, to)) {
	}
	baton_queue_release(from);
	baton_queue_release(to);
	baton_session_release(session);
	return 0;
}
