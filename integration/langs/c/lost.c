// A session whose broker ends for good: a call that waits says so, what is held can be read, and the program
// goes on with another session.

#include "kit.h"

static void say(const char *line) {
	puts(line);
	fflush(stdout);
}

int main(void) {
	baton_session *session, *next, *none;
	baton_topic *topic;
	baton_reader *reader;
	baton_message *m;
	DLManagedTensorVersioned *t, *more;
	char line[16];
	MUST(baton_connect(NULL, &session));
	MUST(filled(session, 7, 1000, &t));
	MUST(baton_topic_open(session, "t", NULL, &topic));
	MUST(baton_reader_open(topic, BATON_START_NEW, NULL, &reader));
	say("ready");
	if (baton_reader_receive(reader, &m, BATON_FOREVER) != BATON_SESSION_LOST)
		fatal("a wait that the loss of the session should end");
	if (filled(session, 8, 10, &more) != BATON_SESSION_LOST)
		fatal("an allocation in a lost session");
	if (wrong_word(t, 7) >= 0)
		fatal("what was held has changed");
	say("lost");
	if (!fgets(line, sizeof line, stdin))
		fatal("nothing was said");
	MUST(baton_session_reopen(session, &next));
	MUST(filled(next, 9, 10, &more));
	// What the lost session has goes on in the next one as a copy.
	DLManagedTensorVersioned *copied, *same;
	MUST(baton_from_dlpack(next, t, &copied));
	if (words_of(copied) == words_of(t) || wrong_word(copied, 7) >= 0)
		fatal("a tensor of a lost session was not copied");
	baton_queue *queue;
	baton_item items[1] = {{NULL, t}};
	baton_payload p = BATON_PAYLOAD_INIT;
	p.items = items;
	p.count = 1;
	MUST(baton_queue_open(next, "q", NULL, &queue));
	if (baton_queue_put(queue, &p, 0) != BATON_INVALID_ARGUMENT || !strstr(baton_last_error(), "baton_from_dlpack"))
		fatal("a tensor of a lost session is sent, or the error names no call");
	items[0].tensor = copied;
	MUST(baton_queue_put(queue, &p, 0));
	MUST(baton_queue_get(queue, &m, 0));
	baton_message_release(m);
	// One of its own stays where it is.
	MUST(baton_from_dlpack(next, more, &same));
	if (words_of(same) != words_of(more))
		fatal("a tensor of the session was copied");
	baton_tensor_release(same);
	baton_tensor_release(copied);
	baton_queue_release(queue);
	if (baton_session_reopen(NULL, &none) != BATON_INVALID_ARGUMENT || none)
		fatal("a session of NULL was opened anew");
	if (wrong_word(t, 7) >= 0 || wrong_word(more, 9) >= 0)
		fatal("a tensor has changed");
	baton_tensor_release(more);
	baton_tensor_release(t);
	baton_reader_release(reader);
	baton_topic_release(topic);
	baton_session_release(session);
	baton_session_release(next);
	say("done");
	return 0;
}
