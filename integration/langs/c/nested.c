// A function that waits, by other sessions, for what nested_test.go provides: de/work, whose argument says for what. It
// says "waits" before that, and how the wait has ended.

#include "calls.h"

#define ROOM 64

static baton_session *inner, *third;
static baton_function *waits, *gone, *full, *elsewhere, *calls, *parts;
static int fresh; // of sessions that have nothing open
static baton_session *sessions[2];

static void say(const char *word) {
	printf("\"%s\"\n", word);
	fflush(stdout);
}

static baton_status call_of(const baton_function *f) {
	baton_value back;
	const baton_status s = baton_function_call(f, NULL, 0, NULL, &back, BATON_FOREVER);
	baton_value_release(&back);
	return s;
}

static baton_status call_by(const baton_session *by, const char *name) {
	baton_value back;
	const baton_status s = baton_call(by, name, NULL, 0, NULL, &back, BATON_FOREVER);
	baton_value_release(&back);
	return s;
}

static baton_status pending_of(const baton_function *f) {
	baton_pending *pending;
	baton_value back;
	baton_status s = baton_function_submit(f, NULL, 0, NULL, &pending, BATON_FOREVER);
	if (s != BATON_OK)
		return s;
	s = baton_pending_result(pending, &back);
	baton_value_release(&back);
	baton_pending_release(pending);
	return s;
}

static baton_status parts_of(const baton_function *f) {
	baton_parts *stream;
	baton_value part;
	int32_t more = 1;
	baton_status s = baton_function_stream(f, NULL, 0, NULL, 0, &stream, BATON_FOREVER);
	if (s != BATON_OK)
		return s;
	while (s == BATON_OK && more) {
		s = baton_parts_next(stream, &part, &more, BATON_FOREVER);
		if (s == BATON_OK && more)
			baton_value_release(&part);
	}
	baton_parts_release(stream);
	return s;
}

static baton_status absent(void) {
	baton_function *f;
	const baton_status s = baton_function_open(inner, "ne/none", &f, BATON_FOREVER);
	baton_function_release(f);
	return s;
}

// The function that is lent: it waits by a third session.
static int lent(void *state, const baton_value *args, int32_t count, baton_value *result) {
	(void)args;
	(void)count;
	(void)result;
	say("waits");
	*(baton_status *)state = call_of(elsewhere);
	return BATON_OK;
}

static baton_status lends(void) {
	baton_status ended = BATON_OK;
	baton_value f, back;
	MUST(baton_value_of_handler(lent, &ended, NULL, &f));
	(void)baton_function_call(calls, &f, 1, NULL, &back, BATON_FOREVER);
	baton_value_release(&back);
	baton_value_release(&f);
	return ended;
}

static int work(void *state, const baton_value *args, int32_t count, baton_value *result) {
	const char *how;
	size_t size;
	baton_status s = baton_value_as_text(&args[0], &how, &size);
	(void)state;
	(void)count;
	if (s != BATON_OK)
		return (int)s;
	if (strcmp(how, "lent") != 0)
		say("waits");
	if (strcmp(how, "call") == 0)
		s = call_of(waits);
	else if (strcmp(how, "name") == 0)
		s = call_by(inner, "ne/waits");
	else if (strcmp(how, "room") == 0)
		s = call_of(full);
	else if (strcmp(how, "provider") == 0)
		s = call_of(gone);
	else if (strcmp(how, "absent") == 0)
		s = absent();
	else if (strcmp(how, "pending") == 0)
		s = pending_of(waits);
	else if (strcmp(how, "stream") == 0)
		s = parts_of(parts);
	else if (strcmp(how, "lent") == 0)
		s = lends();
	else
		s = call_by(sessions[__atomic_fetch_add(&fresh, 1, __ATOMIC_SEQ_CST)], "ne/waits");
	say(baton_status_name((int32_t)s));
	*result = baton_value_of_int(0);
	return BATON_OK;
}

static void connect_to(baton_session **to) {
	MUST(baton_session_reopen(session, to));
}

int main(void) {
	const baton_parameter how = {"how", "str", NULL, BATON_BY_EITHER, 0};
	baton_function_options o = BATON_FUNCTION_OPTIONS_INIT;
	baton_provided *provided;
	baton_session *crowded;
	baton_pending *crowd[ROOM];
	connect_as_told();
	connect_to(&inner);
	connect_to(&third);
	connect_to(&crowded);
	connect_to(&sessions[0]);
	connect_to(&sessions[1]);
	MUST(baton_function_open(inner, "ne/waits", &waits, 0));
	MUST(baton_function_open(inner, "ne/calls", &calls, 0));
	MUST(baton_function_open(inner, "ne/parts", &parts, 0));
	MUST(baton_function_open(inner, "ne/gone", &gone, BATON_FOREVER));
	MUST(baton_function_open(third, "ne/waits", &elsewhere, 0));
	MUST(baton_function_open(crowded, "ne/waits", &full, 0));
	for (int i = 0; i < ROOM; i++)
		MUST(baton_function_submit(full, NULL, 0, NULL, &crowd[i], BATON_FOREVER));
	o.parameters = &how;
	o.count = 1;
	MUST(baton_provide(session, "de/work", &o, work, NULL, NULL, &provided));
	serve_until_told();
	MUST(baton_provided_end(provided));
	MUST(baton_provided_wait(provided, BATON_FOREVER));
	baton_provided_release(provided);
	for (int i = 0; i < ROOM; i++)
		baton_pending_release(crowd[i]);
	baton_function *all[] = {waits, gone, full, elsewhere, calls, parts};
	for (int i = 0; i < 6; i++)
		baton_function_release(all[i]);
	baton_session *opened[] = {inner, third, crowded, sessions[0], sessions[1], session};
	for (int i = 0; i < 6; i++)
		baton_session_release(opened[i]);
	return 0;
}
