// Calls of a careless program: each is refused with a status and a text, and nothing crashes.

#include "kit.h"

static int wrong;

#define REFUSED(call, want) \
	do { \
		baton_status got = (call); \
		if (got != (want) || (got != BATON_OK && !*baton_last_error())) { \
			fprintf(stderr, "line %d: %s gave %s (%s)\n", __LINE__, #call, baton_status_name(got), baton_last_error()); \
			wrong = 1; \
		} \
	} while (0)
#define ARGUMENT(call) REFUSED(call, BATON_INVALID_ARGUMENT)

static void without_a_session(void) {
	const int64_t shape[2] = {2, 3};
	DLManagedTensorVersioned *t = (void *)&shape;
	DLDataType d;
	baton_session *s;
	baton_topic *topic;
	baton_queue *queue;
	baton_reader *reader;
	baton_watch *watch;
	baton_message *m;
	baton_payload v = BATON_PAYLOAD_INIT;
	baton_options o = BATON_OPTIONS_INIT;
	baton_stats stats = BATON_STATS_INIT;
	char *text, **names;
	size_t waiting;
	ARGUMENT(baton_connect(NULL, NULL));
	o.start = 7;
	ARGUMENT(baton_connect(&o, &s));
	o.start = BATON_NO;
	o.name_space = "no/token";
	ARGUMENT(baton_connect(&o, &s));
	o.name_space = "\xff";
	ARGUMENT(baton_connect(&o, &s));
	o.name_space = NULL;
	o.timeout_ns = 1000000;
	o.address = "unix:/no/broker/is/here";
	REFUSED(baton_connect(&o, &s), BATON_NO_BROKER);
	if (s)
		fatal("a failure left a session");
	ARGUMENT(baton_session_end(NULL));
	ARGUMENT(baton_session_fd_clear(NULL));
	ARGUMENT(baton_session_stats(NULL, &stats));
	ARGUMENT(baton_session_collect(NULL, NULL));
	if (baton_session_fd(NULL) != -1)
		fatal("a descriptor of NULL");
	ARGUMENT(baton_dtype(NULL, &d));
	ARGUMENT(baton_dtype("float33", &d));
	ARGUMENT(baton_dtype("float32", NULL));
	ARGUMENT(baton_alloc(NULL, word_type, 2, shape, &t));
	if (t)
		fatal("a failure left a tensor");
	ARGUMENT(baton_alloc_with(NULL, NULL, word_type, 2, shape, &t));
	ARGUMENT(baton_from_dlpack(NULL, NULL, &t));
	ARGUMENT(baton_tensor_view(NULL, word_type, 1, shape, NULL, 0, &t));
	ARGUMENT(baton_tensor_read_only(NULL, &t));
	ARGUMENT(baton_tensor_handle(NULL, 0, &text));
	ARGUMENT(baton_open(NULL, "{}", &t));
	ARGUMENT(baton_handle_release(NULL, "{}"));
	ARGUMENT(baton_topic_open(NULL, "t", NULL, &topic));
	ARGUMENT(baton_topic_open_private(NULL, "t", &topic));
	ARGUMENT(baton_topic_send(NULL, &v, 0));
	ARGUMENT(baton_topic_end(NULL));
	ARGUMENT(baton_reader_open(NULL, 0, NULL, &reader));
	ARGUMENT(baton_reader_receive(NULL, &m, 0));
	ARGUMENT(baton_queue_open(NULL, "t", NULL, &queue));
	ARGUMENT(baton_queue_open_private(NULL, "t", &queue));
	ARGUMENT(baton_queue_put(NULL, &v, 0));
	ARGUMENT(baton_queue_get(NULL, &m, 0));
	ARGUMENT(baton_queue_waiting(NULL, &waiting));
	ARGUMENT(baton_queue_end(NULL));
	ARGUMENT(baton_set(NULL, "n", &v, 0, NULL));
	ARGUMENT(baton_get(NULL, "n", &m, 0));
	ARGUMENT(baton_watch_open(NULL, "n", &watch));
	ARGUMENT(baton_watch_receive(NULL, &m, 0));
	ARGUMENT(baton_delete(NULL, "n"));
	ARGUMENT(baton_names(NULL, NULL, &names));
	t = (void *)&shape;
	ARGUMENT(baton_message_tensor(NULL, 0, &t));
	if (t)
		fatal("a failure left a tensor");
	ARGUMENT(baton_message_tensor_named(NULL, "x", &t));
	ARGUMENT(baton_message_stream(NULL, 1));
	ARGUMENT(baton_tensor_use_on(NULL, 1));
	ARGUMENT(baton_tensor_written(NULL, 0));
	ARGUMENT(baton_lend(NULL, NULL, 1, &t));
	DLManagedTensor *old = (void *)&shape;
	ARGUMENT(baton_to_legacy(NULL, &old));
	if (old)
		fatal("a failure left a tensor");
	ARGUMENT(baton_to_legacy_private(NULL, &old));
	ARGUMENT(baton_from_legacy(NULL, NULL, &t));
	ARGUMENT(baton_lend_legacy(NULL, NULL, 1, &t));
	ARGUMENT(baton_exchange_api(NULL, NULL));
	ARGUMENT(baton_message_tensors(NULL, 0, 1, NULL));
	ARGUMENT(baton_message_tensors(NULL, 0, 1, &t));
	if (t)
		fatal("a failure left a tensor");
	baton_legacy_release(NULL);
	if (baton_message_count(NULL) || baton_message_name(NULL, 0) || baton_message_meta(NULL) || baton_message_tree(NULL) ||
	    baton_message_sender(NULL) || baton_message_sequence(NULL) || baton_message_stamp(NULL) || baton_message_lost(NULL) ||
	    baton_message_live(NULL) || baton_message_age(NULL) || baton_message_stale(NULL) || baton_reader_lost(NULL) || baton_topic_token(NULL) || baton_queue_token(NULL))
		fatal("something of NULL");
	baton_session_release(NULL);
	baton_topic_release(NULL);
	baton_queue_release(NULL);
	baton_reader_release(NULL);
	baton_watch_release(NULL);
	baton_message_release(NULL);
	baton_tensor_release(NULL);
	baton_string_free(NULL);
	baton_names_free(NULL);
}

static void with_options(baton_session *s) {
	const int64_t none = 0, shape[2] = {2, 3}, too_many = INT64_C(1) << 50;
	baton_alloc_options o = BATON_ALLOC_OPTIONS_INIT;
	DLManagedTensorVersioned *t;
	MUST(baton_alloc_with(s, NULL, word_type, 2, shape, &t));
	baton_tensor_release(t);
	o.timeout_ns = BATON_FOREVER;
	o.device = "cpu";
	MUST(baton_alloc_with(s, &o, word_type, 2, shape, &t));
	baton_tensor_release(t);
	o.timeout_ns = 1000000;
	REFUSED(baton_alloc_with(s, &o, word_type, 1, &too_many, &t), BATON_OUT_OF_MEMORY);
	o.pages = "4K";
	ARGUMENT(baton_alloc_with(s, &o, word_type, 2, shape, &t));
	o.pages = "2M";
	MUST(baton_alloc_with(s, &o, word_type, 1, &none, &t)); // takes none
	baton_tensor_release(t);
	baton_status status = baton_alloc_with(s, &o, word_type, 1, &too_many, &t);
	REFUSED(status, status == BATON_UNSUPPORTED ? BATON_UNSUPPORTED : BATON_OUT_OF_MEMORY); // by what the kernel has
	o.device = "cuda:4096";
	ARGUMENT(baton_alloc_with(s, &o, word_type, 2, shape, &t));
	o.pages = NULL;
	status = baton_alloc_with(s, &o, word_type, 2, shape, &t);
	REFUSED(status, status == BATON_UNSUPPORTED ? BATON_UNSUPPORTED : BATON_NOT_FOUND); // by whether there is a driver
	const char *const odd[] = {"\xff", "tpu", "cuda1", "cuda:-1", "cuda:99999999999999999999"};
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) { // by the name, with a driver or without
		o.device = odd[i];
		ARGUMENT(baton_alloc_with(s, &o, word_type, 2, shape, &t));
	}
	o.device = NULL;
	o.stream = -2;
	ARGUMENT(baton_alloc_with(s, &o, word_type, 2, shape, &t));
}

static int given_back;

static void give_back(DLManagedTensorVersioned *t) {
	(void)t;
	given_back++;
}

// What is not to be lent is given back at once, and streams mean nothing to memory of the machine.
static void lending(baton_session *s) {
	int64_t shape[1] = {4};
	uint64_t words[4] = {0};
	DLManagedTensorVersioned foreign = {.version = {1, 0}, .deleter = give_back}, *t = &foreign;
	foreign.dl_tensor = (DLTensor){.data = words, .device = {1, 0}, .ndim = 1, .dtype = word_type, .shape = shape};
	REFUSED(baton_lend(s, &foreign, 1, &t), BATON_UNSUPPORTED);
	if (t || given_back != 1)
		fatal("what was refused was not given back");
	ARGUMENT(baton_lend(s, &foreign, -2, &t));
	ARGUMENT(baton_lend(NULL, &foreign, 1, &t));
	ARGUMENT(baton_lend(s, &foreign, 1, NULL));
	foreign.version.major = 2;
	REFUSED(baton_lend(s, &foreign, 1, &t), BATON_UNSUPPORTED);
	if (given_back != 5)
		fatal("what was refused was not given back");
	MUST(baton_alloc(s, word_type, 1, shape, &t));
	ARGUMENT(baton_tensor_use_on(t, -2));
	ARGUMENT(baton_tensor_use_on(&foreign, 1));
	MUST(baton_tensor_use_on(t, 0));
	MUST(baton_tensor_use_on(t, BATON_NO_STREAM));
	MUST(baton_tensor_written(t, 0));
	baton_tensor_release(t);
}

static void in_a_session(baton_session *s) {
	const int64_t shape[2] = {2, 3}, negative[1] = {-1}, huge[2] = {INT64_MAX, INT64_MAX}, six[1] = {6};
	const DLDataType odd = {99, 7, 0};
	DLManagedTensorVersioned *t, *view;
	baton_topic *topic;
	baton_queue *queue;
	size_t waiting;
	baton_reader *reader;
	baton_message *m;
	baton_topic_options o = BATON_TOPIC_OPTIONS_INIT;
	baton_item items[2] = {{NULL, NULL}, {NULL, NULL}};
	baton_payload v = {sizeof(baton_payload), sizeof(baton_item), items, 1, NULL, NULL, 0};
	ARGUMENT(baton_alloc(s, word_type, 2, shape, NULL));
	ARGUMENT(baton_alloc(s, word_type, 2, NULL, &t));
	ARGUMENT(baton_alloc(s, word_type, -1, shape, &t));
	ARGUMENT(baton_alloc(s, word_type, 65, shape, &t));
	ARGUMENT(baton_alloc(s, word_type, 1, negative, &t));
	ARGUMENT(baton_alloc(s, word_type, 2, huge, &t));
	ARGUMENT(baton_alloc(s, odd, 2, shape, &t));
	MUST(baton_alloc(s, word_type, 0, NULL, &t));
	baton_tensor_release(t);
	MUST(baton_alloc(s, word_type, 2, shape, &t));
	ARGUMENT(baton_tensor_view(t, word_type, 1, six, NULL, 8, &view));
	ARGUMENT(baton_tensor_view(t, word_type, 1, six, NULL, UINT64_MAX, &view));
	ARGUMENT(baton_tensor_view(t, word_type, 1, six, negative, 0, &view));
	ARGUMENT(baton_topic_open(s, "no name", NULL, &topic));
	o.overwrite = 3;
	ARGUMENT(baton_topic_open(s, "t", &o, &topic));
	o.overwrite = BATON_NO;
	ARGUMENT(baton_queue_open(s, "q", &o, &queue));
	o.linger_ns = -7;
	ARGUMENT(baton_topic_open(s, "t", &o, &topic));
	o = (baton_topic_options){.size = sizeof(baton_topic_options), .create = BATON_NO};
	REFUSED(baton_topic_open(s, "absent", &o, &topic), BATON_NOT_FOUND);
	o = (baton_topic_options){.size = sizeof(baton_topic_options), .depth = 5, .linger_ns = BATON_NO_LINGER};
	MUST(baton_topic_open(s, "t", &o, &topic));
	o.depth = 6;
	baton_topic *other;
	REFUSED(baton_topic_open(s, "t", &o, &other), BATON_CONFLICT);
	ARGUMENT(baton_reader_open(topic, 9, NULL, &reader));
	ARGUMENT(baton_reader_open(topic, BATON_START_ALL, "g", &reader));
	MUST(baton_reader_open(topic, BATON_START_NEW, NULL, &reader));
	REFUSED(baton_reader_receive(reader, &m, 0), BATON_TIMEOUT);
	ARGUMENT(baton_reader_receive(reader, NULL, 0));
	baton_wait wait = BATON_WAIT_FOR(reader, BATON_WAIT_READER);
	ARGUMENT(baton_wait_any(NULL, 0, &waiting, 0));
	ARGUMENT(baton_wait_any(NULL, 1, &waiting, 0));
	ARGUMENT(baton_wait_any(&wait, 0, &waiting, 0));
	ARGUMENT(baton_wait_any(&wait, SIZE_MAX, &waiting, 0));
	ARGUMENT(baton_wait_any(&wait, 1, NULL, 0));
	REFUSED(baton_wait_any(&wait, 1, &waiting, 0), BATON_TIMEOUT);
	wait.kind = 0;
	ARGUMENT(baton_wait_any(&wait, 1, &waiting, 0));
	wait = (baton_wait)BATON_WAIT_FOR(NULL, BATON_WAIT_READER);
	ARGUMENT(baton_wait_any(&wait, 1, &waiting, 0));
	ARGUMENT(baton_topic_send(topic, NULL, 0));
	ARGUMENT(baton_topic_send(topic, &v, 0)); // without a tensor
	items[0].tensor = items[1].tensor = t;
	v.count = 2;
	ARGUMENT(baton_topic_send(topic, &v, 0)); // two without names
	v.count = SIZE_MAX;
	ARGUMENT(baton_topic_send(topic, &v, 0));
	v.count = 1;
	v.meta = "{";
	ARGUMENT(baton_topic_send(topic, &v, 0));
	v.meta = NULL;
	v.tree = "[1,";
	ARGUMENT(baton_topic_send(topic, &v, 0));
	v.tree = NULL;
	items[0].name = "\xc0\x80";
	ARGUMENT(baton_topic_send(topic, &v, 0));
	items[0].name = NULL;
	uint64_t revision = 7;
	ARGUMENT(baton_set(s, "n", &v, 4, &revision));
	if (revision != 0)
		fatal("a failure left a revision");
	o = (baton_topic_options){.size = sizeof(baton_topic_options), .depth = 2, .linger_ns = BATON_NO_LINGER};
	MUST(baton_queue_open(s, "q", &o, &queue));
	for (size_t n = 1; n <= 2; n++) {
		MUST(baton_queue_put(queue, &v, 0));
		MUST(baton_queue_waiting(queue, &waiting));
		if (waiting != n)
			fatal("what waits in the queue");
	}
	REFUSED(baton_queue_put(queue, &v, 0), BATON_FULL);
	MUST(baton_queue_get(queue, &m, 0));
	baton_message_release(m);
	MUST(baton_queue_waiting(queue, &waiting));
	if (waiting != 1)
		fatal("what is left in the queue");
	baton_queue_release(queue);
	MUST(baton_topic_send(topic, &v, 0));
	MUST(baton_reader_receive(reader, &m, BATON_FOREVER));
	REFUSED(baton_message_tensor(m, 1, &view), BATON_NOT_FOUND);
	REFUSED(baton_message_tensor_named(m, "x", &view), BATON_NOT_FOUND);
	if (baton_message_name(m, 1) || strcmp(baton_message_name(m, 0), "") != 0 || strcmp(baton_message_meta(m), "") != 0)
		fatal("the message");
	baton_message_release(m);
	REFUSED(baton_open(s, "{}", &view), BATON_INVALID_HANDLE);
	ARGUMENT(baton_open(s, NULL, &view));
	REFUSED(baton_get(s, "absent", &m, 0), BATON_NOT_FOUND);
	REFUSED(baton_delete(s, "absent"), BATON_NOT_FOUND);
	MUST(baton_session_end(s));
	REFUSED(baton_alloc(s, word_type, 2, shape, &view), BATON_CLOSED);
	REFUSED(baton_topic_send(topic, &v, 0), BATON_CLOSED);
	REFUSED(baton_reader_receive(reader, &m, BATON_FOREVER), BATON_CLOSED);
	baton_reader_release(reader);
	baton_topic_release(topic);
	baton_tensor_release(t);
}

// A tree that receivers could not read, or that says something else than its items, is refused where it
// is sent; one that was received is sent on as it came.
static void trees(baton_session *s) {
	const int64_t shape[1] = {1};
	const baton_topic_options brief = {.size = sizeof brief, .linger_ns = BATON_NO_LINGER};
	DLManagedTensorVersioned *t[2], *got;
	baton_topic *topic;
	baton_reader *reader;
	baton_message *m;
	for (uint64_t i = 0; i < 2; i++) {
		MUST(baton_alloc(s, word_type, 1, shape, &t[i]));
		*words_of(t[i]) = i;
	}
	MUST(baton_topic_open(s, "trees", &brief, &topic));
	MUST(baton_reader_open(topic, BATON_START_NEW, NULL, &reader));

	baton_item items[2] = {{"a/b", t[0]}, {"c~1d/0", t[1]}};
	const char *right = "{\"a\": {\"b\": {\"$\":\"tensor\",\"i\":0}}, \"c/d\": [{\"$\":\"tensor\",\"i\":1}]}";
	baton_payload v = {sizeof(baton_payload), sizeof(baton_item), items, 2, NULL, right, 0};
	for (int hop = 0; hop < 3; hop++) { // with paths, without, and sent on
		MUST(baton_topic_send(topic, &v, 0));
		if (hop)
			baton_message_release(m);
		MUST(baton_reader_receive(reader, &m, BATON_FOREVER));
		MUST(baton_message_tensor_named(m, "c~1d/0", &got));
		if (*words_of(got) != 1)
			fatal("the tensor of a path");
		baton_tensor_release(got);
		for (size_t i = 0; i < 2; i++)
			items[i].name = hop ? baton_message_name(m, i) : NULL;
		if (hop) {
			v.meta = baton_message_meta(m);
			v.tree = baton_message_tree(m);
		}
	}
	baton_message_release(m);
	v.meta = NULL;
	v.tree = right;
	items[0].name = items[1].name = "a/b";
	ARGUMENT(baton_topic_send(topic, &v, 0));
	items[0].name = "c~1d/0";
	ARGUMENT(baton_topic_send(topic, &v, 0));
	items[0].name = items[1].name = NULL;
	const char *const odd[] = {
	    "[]", "[{\"$\":\"tensor\",\"i\":0}]", // without both
	    "[{\"$\":\"tensor\",\"i\":1},{\"$\":\"tensor\",\"i\":0}]", // in another order
	    "[{\"$\":\"tensor\",\"i\":0},{\"$\":\"tensor\",\"i\":0}]",
	    "[{\"$\":\"tensor\",\"i\":0},{\"$\":\"tensor\",\"i\":1},{\"$\":\"tensor\",\"i\":0}]",
	    "[{\"$\":\"tensor\",\"i\":0},{\"$\":\"tensor\",\"i\":2}]", // that is not there
	    "[{\"$\":\"tensor\",\"i\":0},{\"$\":\"tensor\",\"i\":-1}]",
	    "{\"a\":{\"$\":\"tensor\",\"i\":0},\"a\":{\"$\":\"tensor\",\"i\":1}}", // a key twice
	    "{\"$\":\"dict\",\"v\":[[{\"$\":\"tensor\",\"i\":0},{\"$\":\"tensor\",\"i\":1}]]}", // a tensor as key
	    "[{\"$\":\"tensor\",\"i\":0},{\"$\":\"tensor\",\"i\":1},{\"$\":\"void\"}]",
	    "[{\"$\":\"tensor\",\"i\":0},{\"$\":\"tensor\",\"i\":1},9007199254740993]",
	};
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
		v.tree = odd[i];
		ARGUMENT(baton_topic_send(topic, &v, 0));
		ARGUMENT(baton_set(s, "trees", &v, 0, NULL));
	}
	char deep[402];
	memset(deep, '[', 200);
	memset(deep + 200, ']', 200);
	deep[400] = 0;
	v = (baton_payload){sizeof(baton_payload), sizeof(baton_item), NULL, 0, NULL, deep, 0};
	ARGUMENT(baton_topic_send(topic, &v, 0));
	v.tree = "[1, \"two\"]";
	MUST(baton_topic_send(topic, &v, 0));
	v.tree = v.meta = "";
	MUST(baton_topic_send(topic, &v, 0));
	baton_reader_release(reader);
	baton_topic_release(topic);
	baton_tensor_release(t[0]);
	baton_tensor_release(t[1]);
}

static int deleted;

static void count_deletion(DLManagedTensorVersioned *t) {
	(void)t;
	deleted++;
}

// Tensors of other libraries are copied once, also by a send, and stay their owner's.
static void foreign(baton_session *s) {
	uint64_t words[6] = {1, 2, 3, 4, 5, 6};
	int64_t shape[2] = {3, 2}, strides[2] = {1, 3};
	DLManagedTensorVersioned mine = {{1, 3}, NULL, count_deletion, 0, {words, {1, 0}, 2, word_type, shape, strides, 0}};
	DLManagedTensorVersioned *t, *again;
	MUST(baton_from_dlpack(s, &mine, &t)); // without gaps: the dimensions keep their order
	if (t->dl_tensor.strides[0] != 1 || t->dl_tensor.strides[1] != 3 || memcmp(words_of(t), words, sizeof words))
		fatal("the copy");
	MUST(baton_from_dlpack(s, t, &again));
	if (words_of(t) != words_of(again))
		fatal("what is shared was copied");
	baton_tensor_release(again);
	baton_tensor_release(t);
	shape[0] = 2; // now every third element is left out
	MUST(baton_from_dlpack(s, &mine, &t));
	for (int i = 0; i < 4; i++)
		if (t->dl_tensor.strides[0] != 2 || t->dl_tensor.strides[1] != 1 || words_of(t)[i] != words[i % 2 * 3 + i / 2])
			fatal("the copy of what has gaps");
	baton_tensor_release(t);
	shape[0] = 3;
	const baton_item item = {"x", &mine};
	const baton_payload v = {sizeof(baton_payload), sizeof(baton_item), &item, 1, NULL, NULL, 0};
	uint64_t revision;
	baton_message *m;
	char **names;
	MUST(baton_set(s, "some/name", &v, BATON_EPHEMERAL, &revision));
	MUST(baton_names(s, "some/*", &names));
	if (!names[0] || strcmp(names[0], "some/name") != 0 || names[1])
		fatal("the names");
	baton_names_free(names);
	MUST(baton_get(s, "some/name", &m, BATON_FOREVER));
	if (baton_message_sequence(m) != revision || baton_message_live(m) || !baton_message_age(m) || baton_message_stale(m))
		fatal("the revision");
	MUST(baton_message_tensor_named(m, "x", &t));
	baton_message_release(m);
	if (memcmp(words_of(t), words, sizeof words) || !(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY))
		fatal("the tensor of the name");
	baton_tensor_release(t);
	mine.version.major = 2;
	REFUSED(baton_from_dlpack(s, &mine, &t), BATON_UNSUPPORTED);
	mine.version.major = 1;
	mine.dl_tensor.device.device_type = 2;
	REFUSED(baton_from_dlpack(s, &mine, &t), BATON_UNSUPPORTED);
	if (deleted != 0)
		fatal("a tensor that was lent was released");
}

int main(void) {
	baton_session *s;
	if (*baton_last_error() || strcmp(baton_status_name(12), "Expired") != 0 || strcmp(baton_status_name(77), "unknown") != 0)
		fatal("texts");
	without_a_session();
	const baton_options patient = {.size = sizeof patient, .timeout_ns = BATON_FOREVER};
	MUST(baton_connect(&patient, &s));
	foreign(s);
	with_options(s);
	lending(s);
	trees(s);
	in_a_session(s);
	baton_session_release(s);
	return wrong;
}
