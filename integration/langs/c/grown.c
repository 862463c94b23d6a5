// Programs that were compiled for another version of the library: their structures are shorter, or longer.

#define _GNU_SOURCE
#include "kit.h"
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

// As a header of long ago may have had them: fewer members.
struct old_options {
	size_t size;
	const char *address, *name_space, *name;
};
struct old_topic_options {
	size_t size;
	uint32_t depth, description;
	int64_t linger_ns;
};
struct old_alloc_options {
	size_t size;
	const char *pages;
};
struct old_payload {
	size_t size, item_size;
	const baton_item *items;
	size_t count;
};
struct old_stats {
	size_t size;
	uint64_t granted;
};
struct old_function_options {
	size_t size, parameter_size;
	const baton_parameter *parameters;
	size_t count;
	const char *result, *doc;
	int32_t no_parameters;
	uint32_t concurrency;
};

// As a later header may have them: one more.
struct new_options {
	baton_options known;
	int64_t more;
};
struct new_topic_options {
	baton_topic_options known;
	int64_t more;
};
struct new_alloc_options {
	baton_alloc_options known;
	int64_t more;
};
struct new_item {
	baton_item known;
	int64_t more;
};
struct new_payload {
	baton_payload known;
	int64_t more;
};
struct new_stats {
	baton_stats known;
	uint64_t more;
};
struct new_parameter {
	baton_parameter known;
	int64_t more;
};
struct new_function_options {
	baton_function_options known;
	int64_t more;
};
struct new_wait {
	baton_wait known;
	int64_t more;
};

// Puts a structure where the memory behind its last byte may not be touched.
static void *at_the_edge(const void *what, size_t size) {
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (two == MAP_FAILED || mprotect(two + page, page, PROT_NONE) != 0)
		fatal("mmap");
	return memcpy(two + page - size, what, size);
}
#define EDGE(object) at_the_edge(&(object), sizeof(object))

#define GIVES(call, want) \
	do { \
		baton_status got = (call); \
		if (got != (want)) { \
			fprintf(stderr, "line %d: %s gave %s (%s)\n", __LINE__, #call, baton_status_name(got), baton_last_error()); \
			exit(1); \
		} \
	} while (0)

static baton_session *session;

static int doubles(void *state, const baton_value *args, int32_t count, baton_value *result) {
	int64_t n = 0;
	const baton_status s = count == 1 ? baton_value_as_int(&args[0], &n) : BATON_INVALID_ARGUMENT;
	(void)state;
	*result = baton_value_of_int(2 * n);
	return (int)s;
}

// Provides a function by options of any version, and calls it.
static void provides(const void *options) {
	const baton_value three = baton_value_of_int(3);
	baton_value back;
	baton_provided *p;
	int64_t n;
	MUST(baton_provide(session, "f", options, doubles, NULL, NULL, &p));
	MUST(baton_call(session, "f", &three, 1, NULL, &back, BATON_FOREVER));
	MUST(baton_value_as_int(&back, &n));
	if (n != 6)
		fatal("a function of another version");
	baton_provided_release(p);
}

static void older(void) {
	const struct old_options o = {sizeof o, NULL, NULL, "older"};
	MUST(baton_connect(EDGE(o), &session));

	const struct old_topic_options to = {sizeof to, 4, 0, BATON_NO_LINGER};
	baton_topic *topic;
	baton_queue *queue;
	baton_reader *reader;
	MUST(baton_topic_open(session, "t", EDGE(to), &topic));
	MUST(baton_queue_open(session, "q", EDGE(to), &queue));
	MUST(baton_reader_open(topic, BATON_START_ALL, NULL, &reader));

	const struct old_alloc_options ao = {sizeof ao, NULL};
	const int64_t shape = 3;
	DLManagedTensorVersioned *t, *back;
	MUST(baton_alloc_with(session, EDGE(ao), word_type, 1, &shape, &t));
	words_of(t)[2] = 7;

	baton_wait all[2] = {BATON_WAIT_FOR(reader, BATON_WAIT_READER), BATON_WAIT_FOR(queue, BATON_WAIT_QUEUE)};
	size_t ready;
	GIVES(baton_wait_any(EDGE(all), 2, &ready, 0), BATON_TIMEOUT);
	all[1].size = sizeof(struct new_wait); // and all others have another one
	GIVES(baton_wait_any(EDGE(all), 2, &ready, 0), BATON_INVALID_ARGUMENT);

	const baton_item item = {"x", t};
	const struct old_payload v = {sizeof v, sizeof item, EDGE(item), 1};
	baton_message *m;
	MUST(baton_topic_send(topic, EDGE(v), BATON_FOREVER));
	MUST(baton_queue_put(queue, EDGE(v), BATON_FOREVER));
	MUST(baton_set(session, "n", EDGE(v), 0, NULL));
	MUST(baton_reader_receive(reader, &m, BATON_FOREVER));
	MUST(baton_message_tensor_named(m, "x", &back));
	if (words_of(back)[2] != 7 || *baton_message_meta(m) || *baton_message_tree(m))
		fatal("what an older program sent came out otherwise");
	baton_tensor_release(back);
	baton_message_release(m);
	MUST(baton_queue_get(queue, &m, BATON_FOREVER));
	baton_message_release(m);

	const struct old_stats none = {sizeof none, 99};
	struct old_stats *stats = EDGE(none);
	MUST(baton_session_stats(session, (baton_stats *)stats));
	if (stats->size != sizeof none || stats->granted == 0 || stats->granted == 99)
		fatal("the stats of an older program");
	const baton_parameter parameter = {"n", "int", NULL, BATON_BY_EITHER, 0};
	const struct old_function_options function_options = {sizeof function_options, sizeof parameter, EDGE(parameter), 1, "int", NULL, 0, 1};
	provides(EDGE(function_options));
	baton_tensor_release(t);
	baton_reader_release(reader);
	baton_topic_release(topic);
	baton_queue_release(queue);
	MUST(baton_delete(session, "n"));
}

static void newer(void) {
	baton_session *other;
	struct new_options o = {BATON_OPTIONS_INIT, 0};
	o.known.size = sizeof o;
	MUST(baton_connect(EDGE(o), &other));
	baton_session_release(other);
	o.more = 1;
	GIVES(baton_connect(EDGE(o), &other), BATON_UNSUPPORTED);
	if (other || !strstr(baton_last_error(), "baton_options") || !strstr(baton_last_error(), baton_version()))
		fatal("it is not said what is too new");

	struct new_topic_options to = {BATON_TOPIC_OPTIONS_INIT, 0};
	to.known.size = sizeof to;
	to.known.linger_ns = BATON_NO_LINGER;
	baton_topic *topic;
	baton_queue *queue;
	MUST(baton_topic_open(session, "t2", EDGE(to), &topic));
	baton_reader *reader;
	MUST(baton_reader_open(topic, BATON_START_ALL, NULL, &reader));
	struct new_wait all[2] = {{BATON_WAIT_FOR(reader, BATON_WAIT_READER), 0}, {BATON_WAIT_FOR(reader, BATON_WAIT_READER), 0}}, *each;
	all[0].known.size = all[1].known.size = sizeof *all;
	all[0].known.ready = all[1].known.ready = 9;
	size_t ready;
	each = EDGE(all);
	GIVES(baton_wait_any(&each->known, 2, &ready, 0), BATON_TIMEOUT);
	if (each[0].known.ready || each[1].known.ready || ready)
		fatal("longer objects of a wait");
	all[1].more = 1;
	each = EDGE(all);
	GIVES(baton_wait_any(&each->known, 2, &ready, 0), BATON_UNSUPPORTED);
	baton_reader_release(reader);
	baton_topic_release(topic);
	to.more = 1;
	GIVES(baton_topic_open(session, "t2", EDGE(to), &topic), BATON_UNSUPPORTED);
	GIVES(baton_queue_open(session, "q2", EDGE(to), &queue), BATON_UNSUPPORTED);

	struct new_alloc_options ao = {BATON_ALLOC_OPTIONS_INIT, 0};
	ao.known.size = sizeof ao;
	const int64_t shape = 3;
	DLManagedTensorVersioned *t, *u;
	MUST(baton_alloc_with(session, EDGE(ao), word_type, 1, &shape, &t));
	ao.more = 1;
	GIVES(baton_alloc_with(session, EDGE(ao), word_type, 1, &shape, &u), BATON_UNSUPPORTED);

	struct new_item items[2] = {{{"x", t}, 0}, {{"y", t}, 0}};
	struct new_payload v = {BATON_PAYLOAD_INIT, 0};
	v.known.size = sizeof v;
	v.known.item_size = sizeof items[0];
	v.known.items = EDGE(items);
	v.known.count = 2;
	MUST(baton_set(session, "n", EDGE(v), 0, NULL));
	baton_message *m;
	MUST(baton_get(session, "n", &m, 0));
	if (baton_message_count(m) != 2 || strcmp(baton_message_name(m, 1), "y") != 0)
		fatal("longer items");
	baton_message_release(m);
	MUST(baton_delete(session, "n"));
	items[1].more = 1;
	v.known.items = EDGE(items);
	GIVES(baton_set(session, "n", EDGE(v), 0, NULL), BATON_UNSUPPORTED);
	items[1].more = 0;
	v.known.items = EDGE(items);
	v.more = 1;
	GIVES(baton_set(session, "n", EDGE(v), 0, NULL), BATON_UNSUPPORTED);
	baton_tensor_release(t);

	const struct new_parameter parameter = {{"n", "int", NULL, BATON_BY_EITHER, 0}, 0};
	struct new_function_options function_options = {BATON_FUNCTION_OPTIONS_INIT, 0};
	baton_provided *p;
	function_options.known.size = sizeof function_options;
	function_options.known.parameter_size = sizeof parameter;
	function_options.known.parameters = EDGE(parameter);
	function_options.known.count = 1;
	provides(EDGE(function_options));
	function_options.more = 1;
	GIVES(baton_provide(session, "f", EDGE(function_options), doubles, NULL, NULL, &p), BATON_UNSUPPORTED);

	struct new_stats noise, *stats;
	memset(&noise, 0xff, sizeof noise);
	noise.known.size = sizeof noise;
	stats = EDGE(noise);
	MUST(baton_session_stats(session, &stats->known));
	if (stats->more != 0 || stats->known.handovers == 0 || stats->known.size != sizeof noise)
		fatal("the stats of a newer program");
}

// A size that was left out, or is no size.
static void without(void) {
	baton_session *other;
	baton_options o = {0};
	const size_t wrong[] = {0, 4, sizeof o + 1, sizeof o + 4, 1 << 20, SIZE_MAX};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		o.size = wrong[i];
		GIVES(baton_connect(EDGE(o), &other), BATON_INVALID_ARGUMENT);
		if (!strstr(baton_last_error(), "BATON_OPTIONS_INIT"))
			fatal("it is not said how to begin");
	}
	baton_stats stats = {0};
	GIVES(baton_session_stats(session, &stats), BATON_INVALID_ARGUMENT);
	const baton_item item = {0};
	baton_payload v = BATON_PAYLOAD_INIT;
	v.items = &item;
	v.count = 1;
	v.item_size = 0;
	GIVES(baton_set(session, "n", &v, 0, NULL), BATON_INVALID_ARGUMENT);
	v.item_size = sizeof item - 8;
	GIVES(baton_set(session, "n", &v, 0, NULL), BATON_INVALID_ARGUMENT);
	baton_wait all = BATON_WAIT_INIT;
	size_t ready;
	const size_t short_of_it[] = {0, sizeof all - 8, sizeof all + 1, SIZE_MAX};
	for (size_t i = 0; i < sizeof short_of_it / sizeof *short_of_it; i++) {
		all.size = short_of_it[i];
		GIVES(baton_wait_any(&all, 1, &ready, 0), BATON_INVALID_ARGUMENT);
		if (!strstr(baton_last_error(), "BATON_WAIT_INIT"))
			fatal("it is not said how to begin");
	}
	baton_topic_options to = BATON_TOPIC_OPTIONS_INIT;
	baton_topic *topic;
	to.reserved = 1;
	GIVES(baton_topic_open(session, "t3", &to, &topic), BATON_INVALID_ARGUMENT);
}

int main(void) {
	if (strcmp(baton_version(), BATON_VERSION) != 0 || baton_version_number() != BATON_VERSION_NUMBER)
		fatal("header and library are of one version here");
	older();
	newer();
	without();
	baton_session_release(session);
	return 0;
}
