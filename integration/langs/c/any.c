// One wait for a reader, a queue and a watch, of two sessions: what comes is sent back, whichever it is, until the topic
// is closed.

#include "kit.h"

enum { READER, QUEUE, WATCH, OBJECTS };

int main(void) {
	baton_session *session, *second;
	baton_topic *topic, *back;
	baton_reader *reader;
	baton_queue *queue;
	baton_watch *watch;
	baton_message *m;
	size_t ready = 7;
	MUST(baton_connect(NULL, &session));
	MUST(baton_connect(NULL, &second));
	MUST(baton_topic_open(session, "any/t", NULL, &topic));
	MUST(baton_topic_open(session, "any/back", NULL, &back));
	MUST(baton_reader_open(topic, BATON_START_NEW, NULL, &reader));
	MUST(baton_queue_open(second, "any/q", NULL, &queue));
	MUST(baton_watch_open(session, "any/w", &watch));
	baton_wait all[OBJECTS + 1] = {
	    BATON_WAIT_FOR(reader, BATON_WAIT_READER), BATON_WAIT_FOR(queue, BATON_WAIT_QUEUE), BATON_WAIT_FOR(watch, BATON_WAIT_WATCH),
	    BATON_WAIT_FOR(queue, BATON_WAIT_QUEUE)};
	all[0].ready = all[3].ready = 9;
	if (baton_wait_any(all, OBJECTS + 1, &ready, 0) != BATON_TIMEOUT || ready != 0 || all[0].ready || all[3].ready)
		fatal("nothing was there");
	puts("ready");
	fflush(stdout);
	for (;;) {
		MUST(baton_wait_any(all, OBJECTS + 1, &ready, BATON_FOREVER));
		size_t named = 0;
		for (int i = 0; i <= OBJECTS; i++)
			named += all[i].ready == 1;
		if (named != ready || named == 0) // of the queue that stands there twice one look may find what the other did not
			fatal("what is ready");
		baton_status status = BATON_OK;
		for (int i = 0; i < OBJECTS; i++) {
			if (!all[i].ready)
				continue;
			status = i == READER ? baton_reader_receive(reader, &m, 0) : i == QUEUE ? baton_queue_get(queue, &m, 0) : baton_watch_receive(watch, &m, 0);
			if (status == BATON_CLOSED)
				break;
			if (status != BATON_OK)
				fatal("what is ready is not there");
			char meta[16];
			snprintf(meta, sizeof meta, "%d", i);
			baton_payload answer = BATON_PAYLOAD_INIT;
			answer.meta = meta;
			MUST(baton_topic_send(back, &answer, BATON_FOREVER));
			baton_message_release(m);
		}
		if (status == BATON_CLOSED)
			break;
	}
	baton_watch_release(watch);
	baton_queue_release(queue);
	baton_reader_release(reader);
	baton_topic_release(back);
	baton_topic_release(topic);
	baton_session_release(second);
	baton_session_release(session);
	return 0;
}
