// How the drivers in C read what they are asked to do, a line of JSON each, and answer.

#ifndef BATON_TEST_ORDER_H
#define BATON_TEST_ORDER_H

#include <baton.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Commands are flat but for the handle, whose keys are others.
static inline const char *at(const char *line, const char *key) {
	char quoted[40];
	snprintf(quoted, sizeof quoted, "\"%s\":", key);
	const char *found = strstr(line, quoted);
	return found ? found + strlen(quoted) : NULL;
}

static inline const char *text(const char *line, const char *key, char out[64]) {
	const char *from = at(line, key);
	out[0] = 0;
	if (from)
		sscanf(from, "\"%63[^\"]\"", out);
	return out;
}

static inline int64_t number(const char *line, const char *key, int64_t otherwise) {
	const char *from = at(line, key);
	return from ? strtoll(from, NULL, 10) : otherwise;
}

static inline int flag(const char *line, const char *key) {
	const char *from = at(line, key);
	return from && strncmp(from, "true", 4) == 0;
}

// The handle, which is an object without objects in it.
static inline void handle_of(const char *line, char *out, size_t size) {
	const char *from = at(line, "handle");
	const char *end = from ? strchr(from, '}') : NULL;
	out[0] = 0;
	if (end)
		snprintf(out, size, "%.*s", (int)(end - from + 1), from);
}

static inline int64_t patience(const char *line) { return number(line, "timeout_ms", 90000) * 1000000; }

static inline void quoted(const char *text) {
	putchar('"');
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			putchar('\\');
		putchar((unsigned char)*text < ' ' ? ' ' : *text);
	}
	putchar('"');
}

// Answers with what failed; or, unless it was answered, that it was done.
static inline void answer(baton_status s, int answered) {
	if (s != BATON_OK) {
		printf("{\"code\":\"%s\",\"message\":", baton_status_name(s));
		quoted(baton_last_error());
		puts("}");
	} else if (!answered) {
		puts("{}");
	}
}

#endif
