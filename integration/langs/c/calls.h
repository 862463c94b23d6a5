// What the programs of functions in C share.

#ifndef BATON_TEST_CALLS_H
#define BATON_TEST_CALLS_H

#include "kit.h"

static baton_session *session;

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #what, baton_last_error()); \
			exit(1); \
		} \
	} while (0)

static const DLDataType float_type = {kDLFloat, 32, 1};

static inline float *floats_of(const DLManagedTensorVersioned *t) {
	return (float *)(void *)((char *)t->dl_tensor.data + t->dl_tensor.byte_offset);
}

static inline baton_value text_value(const char *text) {
	baton_value v;
	MUST(baton_value_of_text(text, &v));
	return v;
}

static inline baton_status call(const char *name, const baton_value *args, int32_t count, baton_value *result) {
	return baton_call(session, name, args, count, NULL, result, BATON_FOREVER);
}

// Sets a name, for which another process waits.
static inline void mark(const char *name) {
	baton_payload none = BATON_PAYLOAD_INIT;
	MUST(baton_set(session, name, &none, 0, NULL));
}

// Waits for a name and deletes it.
static inline void marked(const char *name) {
	baton_message *m;
	MUST(baton_get(session, name, &m, BATON_FOREVER));
	baton_message_release(m);
	MUST(baton_delete(session, name));
}

// Says a word on the standard output, and goes on when the standard input ends.
static inline void serve_until_told(void) {
	char line[16];
	printf("\"ready\"\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin))
		;
}

// Connects as the provider or the caller that the environment asks for: whether it is the provider.
static inline int connect_as_told(void) {
	const char *what = getenv("BATON_FUNCTIONS");
	const int serves = what && strcmp(what, "serve") == 0;
	baton_options o = BATON_OPTIONS_INIT;
	o.name = serves ? "provider" : "caller";
	MUST(baton_connect(&o, &session));
	return serves;
}

#endif
