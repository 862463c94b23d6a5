// Eight threads share one session: four send and put, four receive, take and look; in the end all
// wait without a timeout and are woken by the end of the session. Then they do all of it in a session that is
// ended in the midst.

#include "kit.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>

enum { SENDERS = 4, READERS = 4, ROUNDS = 200 };

static baton_session *session;
static baton_topic *topic;
static baton_queue *queue;

static void look_at(baton_message *m, uint64_t seed) {
	char broken[100];
	int readonly;
	MUST(check_value(m, seed, 0, &readonly, broken, sizeof broken));
	if (broken[0]) {
		fprintf(stderr, "%s\n", broken);
		exit(1);
	}
	baton_message_release(m);
}

static void look(baton_message *m) { look_at(m, seed_of(m)); }

static void *send_and_put(void *arg) {
	const uint64_t me = (uint64_t)(uintptr_t)arg;
	char name[16], text[64];
	snprintf(name, sizeof name, "n/%d", (int)me);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		struct value v;
		MUST(make_value(session, me * 1000 + i, 2 + (int64_t)(i * 37 % 500), &v));
		MUST(baton_topic_send(topic, &v.payload, BATON_FOREVER));
		MUST(baton_queue_put(queue, &v.payload, BATON_FOREVER));
		if (i % 16 == 0) {
			char *json;
			DLManagedTensorVersioned *t;
			baton_message *m;
			uint64_t revision;
			MUST(baton_set(session, name, &v.payload, 0, &revision));
			MUST(baton_get(session, name, &m, BATON_FOREVER));
			look_at(m, me * 1000 + i);
			MUST(baton_tensor_handle(v.other, 0, &json));
			MUST(baton_open(session, json, &t));
			if (wrong_word(t, me * 1000 + i + 1) >= 0)
				fatal("a handle");
			MUST(baton_handle_release(session, json));
			baton_string_free(json);
			baton_tensor_release(t);
			// Errors are each thread's own.
			snprintf(text, sizeof text, "absent/%d", (int)me);
			if (baton_delete(session, text) != BATON_NOT_FOUND || !strstr(baton_last_error(), text))
				fatal("the error of another thread");
		}
		drop_value(&v);
	}
	MUST(baton_delete(session, name));
	return NULL;
}

static void take_share(void) {
	for (int i = 0; i < SENDERS * ROUNDS / READERS; i++) {
		baton_message *m;
		MUST(baton_queue_get(queue, &m, BATON_FOREVER));
		look(m);
	}
}

static void *receive(void *reader) {
	for (int i = 0; i < SENDERS * ROUNDS; i++) {
		baton_message *m;
		MUST(baton_reader_receive(reader, &m, BATON_FOREVER));
		look(m);
	}
	take_share();
	return NULL;
}

// As receive, in a poll loop.
static void *receive_polling(void *reader) {
	struct pollfd fd = {.fd = baton_session_fd(session), .events = POLLIN};
	if (fd.fd < 0)
		fatal("baton_session_fd");
	for (int got = 0; got < SENDERS * ROUNDS;) {
		baton_message *m;
		poll(&fd, 1, -1);
		MUST(baton_session_fd_clear(session)); // first clear, then take all there is
		while (baton_reader_receive(reader, &m, 0) == BATON_OK) {
			look(m);
			got++;
		}
	}
	take_share();
	return NULL;
}

static void *wait_for_ever(void *reader) {
	baton_message *m;
	if (baton_reader_receive(reader, &m, BATON_FOREVER) != BATON_CLOSED || m)
		fatal("the end of the session");
	return NULL;
}

static int going_on(baton_status s) {
	if (s != BATON_OK && s != BATON_CLOSED)
		fatal("a call in a session that ends");
	return s == BATON_OK;
}

static sem_t rounds;

static void *send_to_the_end(void *arg) {
	struct value v;
	char *json;
	DLManagedTensorVersioned *t;
	for (uint64_t i = (uint64_t)(uintptr_t)arg * 1000;; i++) {
		if (!going_on(make_value(session, i, 2 + (int64_t)(i * 37 % 500), &v)))
			return NULL;
		int on = going_on(baton_topic_send(topic, &v.payload, BATON_FOREVER)) &&
		         going_on(baton_queue_put(queue, &v.payload, BATON_FOREVER)) &&
		         going_on(baton_tensor_handle(v.other, BATON_FOREVER, &json));
		if (on) {
			on = going_on(baton_open(session, json, &t));
			baton_tensor_release(t);
			baton_string_free(json);
		}
		drop_value(&v);
		if (!on)
			return NULL;
	}
}

static void *take_to_the_end(void *reader) {
	char broken[100];
	int readonly, on;
	baton_status got;
	for (;;) {
		baton_message *m;
		if (!going_on(baton_reader_receive(reader, &m, BATON_FOREVER)))
			return NULL;
		on = going_on(check_value(m, seed_of(m), 0, &readonly, broken, sizeof broken));
		baton_message_release(m);
		if (!on)
			return NULL;
		got = baton_queue_get(queue, &m, 0); // every reader has every message, and one of them each item
		if (got != BATON_EMPTY && !going_on(got))
			return NULL;
		baton_message_release(m);
		sem_post(&rounds);
	}
}

static void end_in_the_midst(void) {
	pthread_t threads[SENDERS + READERS];
	baton_reader *readers[READERS];
	const baton_topic_options lossless = {.size = sizeof lossless, .depth = 4, .overwrite = BATON_NO, .linger_ns = BATON_NO_LINGER};
	MUST(baton_connect(NULL, &session));
	MUST(baton_topic_open(session, "t", &lossless, &topic));
	const baton_topic_options brief = {.size = sizeof brief, .linger_ns = BATON_NO_LINGER};
	MUST(baton_queue_open(session, "q", &brief, &queue));
	for (int i = 0; i < READERS; i++)
		MUST(baton_reader_open(topic, BATON_START_NEW, NULL, &readers[i]));
	sem_init(&rounds, 0, 0);
	for (int i = 0; i < SENDERS; i++)
		pthread_create(&threads[i], NULL, send_to_the_end, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < READERS; i++)
		pthread_create(&threads[SENDERS + i], NULL, take_to_the_end, readers[i]);
	for (int i = 0; i < 40; i++)
		sem_wait(&rounds);
	MUST(baton_session_end(session));
	for (int i = 0; i < SENDERS + READERS; i++)
		pthread_join(threads[i], NULL);
	sem_destroy(&rounds);
	for (int i = 0; i < READERS; i++)
		baton_reader_release(readers[i]);
	baton_topic_release(topic);
	baton_queue_release(queue);
	baton_session_release(session);
}

int main(void) {
	pthread_t threads[SENDERS + READERS];
	baton_reader *readers[READERS];
	const baton_topic_options lossless = {.size = sizeof lossless, .depth = 4, .overwrite = BATON_NO, .linger_ns = BATON_NO_LINGER};
	MUST(baton_connect(NULL, &session));
	MUST(baton_topic_open(session, "t", &lossless, &topic));
	// Items are taken after all messages.
	const baton_topic_options deep = {.size = sizeof deep, .depth = SENDERS * ROUNDS, .linger_ns = BATON_NO_LINGER};
	MUST(baton_queue_open(session, "q", &deep, &queue));
	for (int i = 0; i < READERS; i++)
		MUST(baton_reader_open(topic, BATON_START_NEW, NULL, &readers[i]));
	for (int i = 0; i < SENDERS; i++)
		pthread_create(&threads[i], NULL, send_and_put, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < READERS; i++)
		pthread_create(&threads[SENDERS + i], NULL, i ? receive : receive_polling, readers[i]);
	for (int i = 0; i < SENDERS + READERS; i++)
		pthread_join(threads[i], NULL);

	// All on the readers, two on each.
	for (int i = 0; i < SENDERS + READERS; i++)
		pthread_create(&threads[i], NULL, wait_for_ever, readers[i % READERS]);
	for (int i = 0; i < READERS; i++)
		if (baton_reader_lost(readers[i]) != 0) // waits for no session
			fatal("lost in a lossless topic");
	MUST(baton_session_end(session));
	for (int i = 0; i < SENDERS + READERS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < READERS; i++)
		baton_reader_release(readers[i]);
	baton_topic_release(topic);
	baton_queue_release(queue);
	baton_session_release(session);
	end_in_the_midst();
	return 0;
}
