// The C driver of the tests across languages: it does what lines of JSON on its standard input ask
// for, one after the other, and answers each with a line. See order in godriver_test.go.

#include "kit.h"
#include "order.h"
#include <unistd.h>

// Tells a driver that it is one that replaced another by exec.
#define REPLACED "BATON_DRIVER_REPLACED"

static baton_session *session;

// Objects by name.
struct named {
	char name[64];
	void *object;
};
static struct named topics[16], queues[16], readers[16];

// What is held until it is released.
static struct {
	baton_message *message;
	DLManagedTensorVersioned *tensor; // where there is no message
	uint64_t seed;
} held[1 << 12];
static size_t held_count;

static int hold(baton_message *m, DLManagedTensorVersioned *t, uint64_t seed) {
	if (held_count == sizeof held / sizeof *held)
		return 0;
	held[held_count].message = m;
	held[held_count].tensor = t;
	held[held_count++].seed = seed;
	return 1;
}

static struct named *find(struct named table[16], const char *name) {
	for (int i = 0; i < 16; i++) {
		if (!table[i].name[0])
			snprintf(table[i].name, sizeof table[i].name, "%s", name);
		if (strcmp(table[i].name, name) == 0)
			return &table[i];
	}
	fatal("too many names");
	return NULL;
}

static baton_topic_options options(const char *line) {
	baton_topic_options o = BATON_TOPIC_OPTIONS_INIT;
	o.linger_ns = BATON_NO_LINGER;
	o.depth = (uint32_t)number(line, "depth", 0);
	if (flag(line, "lossless"))
		o.overwrite = BATON_NO;
	if (flag(line, "redeliver"))
		o.redeliver = BATON_YES;
	return o;
}

static baton_status topic(const char *line, baton_topic **out) {
	char name[64];
	struct named *n = find(topics, text(line, "topic", name));
	baton_status s = BATON_OK;
	if (!n->object) {
		baton_topic_options o = options(line);
		s = baton_topic_open(session, name, &o, (baton_topic **)&n->object);
	}
	*out = n->object;
	return s;
}

static baton_status queue(const char *line, baton_queue **out) {
	char name[64];
	struct named *n = find(queues, text(line, "queue", name));
	baton_status s = BATON_OK;
	if (!n->object) {
		baton_topic_options o = options(line);
		s = baton_queue_open(session, name, &o, (baton_queue **)&n->object);
	}
	*out = n->object;
	return s;
}

static baton_status send_all(const char *line) {
	uint64_t seed = (uint64_t)number(line, "seed", 0);
	int64_t count = number(line, "count", 1), words = number(line, "words", 1000);
	baton_topic *t = NULL;
	baton_queue *q = NULL;
	baton_status s = at(line, "topic") ? topic(line, &t) : queue(line, &q);
	for (int64_t i = 0; s == BATON_OK && i < count; i++) {
		struct value v;
		s = flag(line, "lone") ? make_lone(session, seed + (uint64_t)i, words, &v) : make_value(session, seed + (uint64_t)i, words, &v);
		if (s != BATON_OK)
			return s;
		s = t ? baton_topic_send(t, &v.payload, patience(line)) : baton_queue_put(q, &v.payload, patience(line));
		drop_value(&v);
	}
	return s;
}

static baton_status open_reader(const char *line) {
	char name[64], start[64], group[64];
	struct named *n = find(readers, text(line, "topic", name));
	baton_topic *t;
	baton_status s = topic(line, &t);
	if (s != BATON_OK)
		return s;
	text(line, "start", start);
	int32_t from = strcmp(start, "all") == 0 ? BATON_START_ALL : strcmp(start, "last") == 0 ? BATON_START_LAST : BATON_START_NEW;
	baton_reader_release(n->object);
	return baton_reader_open(t, from, text(line, "group", group)[0] ? group : NULL, (baton_reader **)&n->object);
}

// Answers with what a message is.
static baton_status message(const char *line, baton_message *m, uint64_t seed, int revision) {
	char broken[100];
	int readonly = 0;
	baton_status s = check_value(m, seed, flag(line, "write"), &readonly, broken, sizeof broken);
	if (s == BATON_OK && broken[0])
		printf("{\"broken\":\"%s\"}\n", broken);
	else if (s == BATON_OK && revision)
		printf("{\"readonly\":%s,\"seed\":%llu,\"revision\":%llu}\n", readonly ? "true" : "false",
		       (unsigned long long)seed_of(m), (unsigned long long)baton_message_sequence(m));
	else if (s == BATON_OK)
		printf("{\"readonly\":%s,\"seed\":%llu,\"sequence\":%llu,\"lost\":%llu}\n", readonly ? "true" : "false",
		       (unsigned long long)seed, (unsigned long long)baton_message_sequence(m), (unsigned long long)baton_message_lost(m));
	if (s != BATON_OK || !flag(line, "hold") || !hold(m, NULL, seed))
		baton_message_release(m);
	return s;
}

static baton_status set(const char *line) {
	char name[64];
	struct value v;
	uint64_t revision;
	baton_status s = make_value(session, (uint64_t)number(line, "seed", 0), number(line, "words", 1000), &v);
	if (s != BATON_OK)
		return s;
	s = baton_set(session, text(line, "name", name), &v.payload, flag(line, "live") ? BATON_LIVE : 0, &revision);
	drop_value(&v);
	if (s == BATON_OK)
		printf("{\"revision\":%llu}\n", (unsigned long long)revision);
	return s;
}

static baton_status make_handle(const char *line) {
	DLManagedTensorVersioned *t;
	char *json = NULL;
	char pages[64];
	const char *size = text(line, "pages", pages)[0] ? pages : NULL;
	baton_status s = filled_in(session, size, (uint64_t)number(line, "seed", 0), number(line, "words", 1000), &t);
	if (s == BATON_OK)
		s = baton_tensor_handle(t, 0, &json);
	if (s == BATON_OK)
		printf("{\"handle\":%s}\n", json);
	baton_string_free(json);
	baton_tensor_release(t);
	return s;
}

static baton_status open_handle(const char *line) {
	char json[4096];
	DLManagedTensorVersioned *t;
	handle_of(line, json, sizeof json);
	baton_status s = baton_open(session, json, &t);
	if (s != BATON_OK)
		return s;
	int64_t bad = wrong_word(t, (uint64_t)number(line, "seed", 0));
	if (bad >= 0)
		printf("{\"broken\":\"word %lld\"}\n", (long long)bad);
	else
		printf("{\"readonly\":%s}\n", t->flags & DLPACK_FLAG_BITMASK_READ_ONLY ? "true" : "false");
	if (!flag(line, "hold") || !hold(NULL, t, (uint64_t)number(line, "seed", 0)))
		baton_tensor_release(t);
	return BATON_OK;
}

// Looks at every word of what is held once more. It has answered where *answered is set.
static baton_status check(int *answered) {
	for (size_t i = 0; i < held_count && !*answered; i++) {
		char broken[100] = "";
		int readonly;
		baton_status s = BATON_OK;
		if (held[i].message)
			s = check_value(held[i].message, held[i].seed, 0, &readonly, broken, sizeof broken);
		else if (wrong_word(held[i].tensor, held[i].seed) >= 0)
			snprintf(broken, sizeof broken, "the tensor of seed %llu", (unsigned long long)held[i].seed);
		if (s != BATON_OK)
			return s;
		if (broken[0]) {
			printf("{\"broken\":\"held: %s\"}\n", broken);
			*answered = 1;
		}
	}
	return BATON_OK;
}

static void release(void) {
	while (held_count > 0) {
		baton_message_release(held[--held_count].message);
		baton_tensor_release(held[held_count].tensor);
	}
}

static void forget(void) {
	for (int i = 0; i < 16; i++) {
		baton_reader_release(readers[i].object);
		baton_topic_release(topics[i].object);
		baton_queue_release(queues[i].object);
	}
	memset(readers, 0, sizeof readers);
	memset(topics, 0, sizeof topics);
	memset(queues, 0, sizeof queues);
}

static baton_status hoard(const char *line) {
	uint64_t seed = (uint64_t)number(line, "seed", 0);
	int64_t count = number(line, "count", 1);
	baton_status s = BATON_OK;
	for (int64_t i = 0; s == BATON_OK && i < count; i++, seed++) {
		DLManagedTensorVersioned *t;
		s = filled(session, seed, number(line, "words", 1000), &t);
		if (s == BATON_OK && !hold(NULL, t, seed))
			baton_tensor_release(t);
	}
	return s;
}

// Closes the session, with all but what is held, and opens another.
static baton_status reconnect(void) {
	forget();
	baton_session_release(session);
	session = NULL;
	baton_options o = BATON_OPTIONS_INIT;
	o.name = "c-driver";
	return baton_connect(&o, &session);
}

// Carries a command out. It has answered unless answered is left 0.
static baton_status carry_out(const char *line, int *answered) {
	char what[64], name[64];
	baton_message *m;
	baton_status s;
	text(line, "do", what);
	if (strcmp(what, "read") == 0)
		return open_reader(line);
	if (strcmp(what, "send") == 0 || strcmp(what, "put") == 0)
		return send_all(line);
	if (strcmp(what, "end") == 0) {
		baton_topic *t;
		baton_queue *q;
		if (at(line, "queue"))
			return (s = queue(line, &q)) != BATON_OK ? s : baton_queue_end(q);
		return (s = topic(line, &t)) != BATON_OK ? s : baton_topic_end(t);
	}
	if (strcmp(what, "delete") == 0)
		return baton_delete(session, text(line, "name", name));
	if (strcmp(what, "check") == 0)
		return check(answered);
	if (strcmp(what, "release") == 0) {
		s = check(answered);
		release();
		return s;
	}
	if (strcmp(what, "hoard") == 0)
		return hoard(line);
	if (strcmp(what, "close") == 0)
		return reconnect();
	if (strcmp(what, "exec") == 0) {
		setenv(REPLACED, "1", 1);
		execl("/proc/self/exe", "driver", (char *)NULL);
		fatal("exec");
	}
	if (strcmp(what, "forget") == 0) {
		forget();
		return BATON_OK;
	}
	*answered = 1;
	if (strcmp(what, "receive") == 0) {
		s = baton_reader_receive(find(readers, text(line, "topic", name))->object, &m, patience(line));
		return s != BATON_OK ? s : message(line, m, seed_of(m), 0);
	}
	if (strcmp(what, "take") == 0) {
		baton_queue *q;
		if ((s = queue(line, &q)) == BATON_OK)
			s = baton_queue_get(q, &m, patience(line));
		return s != BATON_OK ? s : message(line, m, seed_of(m), 0);
	}
	if (strcmp(what, "set") == 0)
		return set(line);
	if (strcmp(what, "get") == 0) {
		s = baton_get(session, text(line, "name", name), &m, patience(line));
		return s != BATON_OK ? s : message(line, m, (uint64_t)number(line, "seed", 0), 1);
	}
	if (strcmp(what, "handle") == 0)
		return make_handle(line);
	if (strcmp(what, "open") == 0)
		return open_handle(line);
	if (strcmp(what, "collect") == 0) {
		uint64_t bytes;
		if ((s = baton_session_collect(session, &bytes)) == BATON_OK)
			printf("{\"bytes\":%llu}\n", (unsigned long long)bytes);
		return s;
	}
	printf("{\"broken\":\"unknown: %s\"}\n", what);
	return BATON_OK;
}

int main(void) {
	static char line[1 << 16];
	baton_options o = BATON_OPTIONS_INIT;
	o.name = "c-driver";
	MUST(baton_connect(&o, &session));
	if (getenv(REPLACED)) {
		puts("{}");
		fflush(stdout);
	}
	while (fgets(line, sizeof line, stdin)) {
		int answered = 0;
		baton_status s = carry_out(line, &answered);
		answer(s, answered);
		fflush(stdout);
	}
	release();
	forget();
	baton_session_release(session);
	return 0;
}
