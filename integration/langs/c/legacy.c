// Tensors for other libraries of the process: the structure before DLPack 1.0, the exchange table, and all
// tensors of a message at once.

#include "kit.h"

static baton_session *session;

static int deleted;

static void count_deletion(DLManagedTensor *self) {
	(void)self;
	deleted++;
}

// What libraries that know no newer structure give and take.
static void legacy(void) {
	uint64_t theirs[4] = {1, 2, 3, 4};
	int64_t shape = 4, stride = 1;
	DLManagedTensor foreign = {{theirs, {kDLCPU, 0}, 1, {kDLUInt, 64, 1}, &shape, &stride, 0}, NULL, count_deletion};
	DLManagedTensorVersioned *t, *again;
	DLManagedTensor *old;
	MUST(baton_from_legacy(session, &foreign, &t));
	theirs[1] = 9;
	if (words_of(t)[1] != 2 || deleted != 0)
		fatal("a tensor that is lent is copied once");
	MUST(baton_to_legacy(t, &old));
	if (old->dl_tensor.data != t->dl_tensor.data || old->dl_tensor.shape[0] != 4)
		fatal("it lies where it lay");
	MUST(baton_from_legacy(session, old, &again));
	if (words_of(again) != words_of(t))
		fatal("what lies in shared memory is not copied");
	baton_tensor_release(again);
	baton_legacy_release(old);

	DLManagedTensorVersioned *read_only;
	MUST(baton_tensor_read_only(t, &read_only));
	if (baton_to_legacy(read_only, &old) != BATON_READ_ONLY || old)
		fatal("the old structure cannot say that it is read-only");
	MUST(baton_to_legacy_private(read_only, &old));
	uint64_t *mine = (uint64_t *)(void *)((char *)old->dl_tensor.data + old->dl_tensor.byte_offset);
	mine[0] = 99;
	if (words_of(t)[0] != 1 || mine[0] != 99 || mine[3] != 4)
		fatal("what is written stays with its writer");
	baton_legacy_release(old);
	baton_tensor_release(read_only);
	baton_tensor_release(t);

	// Memory of the machine is not lent; it is given back all the same.
	if (baton_lend_legacy(session, &foreign, BATON_NO_STREAM, &t) == BATON_OK || t || deleted != 1)
		fatal("a tensor that cannot be lent is given back");
}

static void all_at_once(void) {
	baton_item items[3];
	const int64_t shape = 2;
	char names[3][2] = {"a", "b", "c"};
	DLManagedTensorVersioned *t[3], *got[4];
	for (int i = 0; i < 3; i++) {
		MUST(baton_alloc(session, word_type, 1, &shape, &t[i]));
		words_of(t[i])[1] = (uint64_t)i;
		items[i].name = names[i];
		items[i].tensor = t[i];
	}
	baton_payload v = BATON_PAYLOAD_INIT;
	v.items = items;
	v.count = 3;
	MUST(baton_set(session, "three", &v, BATON_EPHEMERAL, NULL));
	for (int i = 0; i < 3; i++)
		baton_tensor_release(t[i]);
	baton_message *m;
	MUST(baton_get(session, "three", &m, 0));
	MUST(baton_message_tensors(m, 0, 3, got));
	for (int i = 0; i < 3; i++) {
		if (words_of(got[i])[1] != (uint64_t)i || !(got[i]->flags & DLPACK_FLAG_BITMASK_READ_ONLY))
			fatal("tensors in their order");
		baton_tensor_release(got[i]);
	}
	MUST(baton_message_tensors(m, 1, 2, got));
	if (words_of(got[0])[1] != 1 || words_of(got[1])[1] != 2)
		fatal("some of the tensors");
	baton_tensor_release(got[0]);
	baton_tensor_release(got[1]);
	MUST(baton_message_tensors(m, 3, 0, NULL));
	for (int i = 0; i < 4; i++)
		got[i] = (void *)&shape;
	if (baton_message_tensors(m, 0, 4, got) != BATON_NOT_FOUND || got[0] || got[3] ||
	    baton_message_tensors(m, SIZE_MAX, 2, got) != BATON_NOT_FOUND)
		fatal("more tensors than there are");
	baton_message_release(m);
}

static char said[200];

static void note(void *context, const char *kind, const char *message) {
	snprintf(said, sizeof said, "%s %s: %s", (const char *)context, kind, message);
}

// A library that gets its memory by the table.
static void exchange(void) {
	DLPackExchangeAPI table;
	MUST(baton_exchange_api(session, &table));
	if (table.header.version.major != 1 || table.header.version.minor < 2 || table.header.prev_api)
		fatal("the version of the table");
	if (table.managed_tensor_from_py_object_no_sync || table.managed_tensor_to_py_object_no_sync || table.dltensor_from_py_object_no_sync)
		fatal("functions for Python");
	int64_t shape[2] = {2, 3};
	DLTensor like = {NULL, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0};
	DLManagedTensorVersioned *t, *taken;
	char context[] = "at";
	if (table.managed_tensor_allocator(&like, &t, context, note) != 0)
		fatal(said);
	MUST(baton_from_dlpack(session, t, &taken));
	if (taken->dl_tensor.data != t->dl_tensor.data || t->dl_tensor.shape[1] != 3)
		fatal("the allocator's memory is the session's");
	baton_tensor_release(taken);
	baton_tensor_release(t);
	like.device.device_type = kDLVulkan;
	if (table.managed_tensor_allocator(&like, &t, context, note) == 0 || strncmp(said, "at BufferError: ", 16) != 0)
		fatal("the allocator reports what it cannot do");
	void *stream = context;
	if (table.current_work_stream(kDLCPU, 0, &stream) != 0 || stream)
		fatal("the CPU has no stream");
}

int main(void) {
	MUST(baton_connect(NULL, &session));
	legacy();
	all_at_once();
	exchange();
	// The table's allocator keeps the session open, so the program ends it.
	MUST(baton_session_end(session));
	baton_session_release(session);
	return 0;
}
