// A program that is compiled with the header of an older version, and runs with the library of today. It says how long the
// options of a function are in its header.

#include "kit.h"

static int doubles(void *state, const baton_value *args, int32_t count, baton_value *result) {
	int64_t n = 0;
	const baton_status s = count == 1 ? baton_value_as_int(&args[0], &n) : BATON_INVALID_ARGUMENT;
	(void)state;
	*result = baton_value_of_int(2 * n);
	return (int)s;
}

// Puts a structure of this header where 0xff follows: a library that reads more of it than there is takes that for options.
#define FOLLOWED(type, name, init) \
	struct { \
		type one; \
		unsigned char noise[64]; \
	} name##_; \
	const type name##_init = init; \
	memset(&name##_, 0xff, sizeof name##_); \
	name##_.one = name##_init; \
	type *const name = &name##_.one

int main(void) {
	if (BATON_VERSION_NUMBER > baton_version_number())
		fatal("the library is older than the header");

	FOLLOWED(baton_options, options, BATON_OPTIONS_INIT);
	baton_session *session;
	options->name = "older";
	MUST(baton_connect(options, &session));

	FOLLOWED(baton_topic_options, topic_options, BATON_TOPIC_OPTIONS_INIT);
	baton_topic *topic;
	baton_reader *reader;
	topic_options->depth = 4;
	topic_options->linger_ns = BATON_NO_LINGER;
	MUST(baton_topic_open(session, "older/t", topic_options, &topic));
	MUST(baton_reader_open(topic, BATON_START_ALL, NULL, &reader));

	FOLLOWED(baton_alloc_options, alloc_options, BATON_ALLOC_OPTIONS_INIT);
	const int64_t shape = 3;
	DLManagedTensorVersioned *t, *back;
	MUST(baton_alloc_with(session, alloc_options, word_type, 1, &shape, &t));
	words_of(t)[2] = 7;

	FOLLOWED(baton_payload, payload, BATON_PAYLOAD_INIT);
	const baton_item items[] = {{"x", t}, {"y", t}};
	baton_message *m;
	payload->items = items;
	payload->count = 2;
	MUST(baton_topic_send(topic, payload, BATON_FOREVER));
	MUST(baton_reader_receive(reader, &m, BATON_FOREVER));
	MUST(baton_message_tensor_named(m, "y", &back));
	if (words_of(back)[2] != 7 || baton_message_count(m) != 2)
		fatal("what an older program sent came out otherwise");
	baton_tensor_release(back);
	baton_message_release(m);

	FOLLOWED(baton_stats, stats, BATON_STATS_INIT);
	MUST(baton_session_stats(session, stats));
	if (stats->granted == 0 || stats_.noise[0] != 0xff)
		fatal("the stats of an older program");

	FOLLOWED(baton_function_options, function_options, BATON_FUNCTION_OPTIONS_INIT);
	const baton_parameter parameters[] = {{"n", "int", NULL, BATON_BY_EITHER, 0}};
	const baton_value three = baton_value_of_int(3);
	baton_provided *p;
	baton_value result;
	int64_t n;
	function_options->parameters = parameters;
	function_options->count = 1;
	function_options->result = "int";
	MUST(baton_provide(session, "older/f", function_options, doubles, NULL, NULL, &p));
	MUST(baton_call(session, "older/f", &three, 1, NULL, &result, BATON_FOREVER));
	MUST(baton_value_as_int(&result, &n));
	if (n != 6)
		fatal("a function of an older program");
	baton_provided_release(p);

	baton_tensor_release(t);
	baton_reader_release(reader);
	baton_topic_release(topic);
	baton_session_release(session);
	printf("%zu\n", sizeof(baton_function_options));
	return 0;
}
