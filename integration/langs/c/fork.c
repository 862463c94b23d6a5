// A program that forks: the child reads what it inherited, sends it on and makes its own, while the
// parent has long let go of what the child reads. The child of a function that forks is within no call.

#include "kit.h"

#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 1000 };

static baton_session *session;
static baton_queue *queue, *answers;
static baton_topic *topic;
static baton_reader *reader;

static void whole(const DLManagedTensorVersioned *t, uint64_t seed) {
	if (wrong_word(t, seed) >= 0) {
		fprintf(stderr, "%d: a word of seed %llu is another's\n", (int)getpid(), (unsigned long long)seed);
		exit(1);
	}
}

static void put(baton_queue *to, DLManagedTensorVersioned *t) {
	const baton_item item = {NULL, t};
	const baton_payload payload = {sizeof(baton_payload), sizeof(baton_item), &item, 1, NULL, NULL, 0};
	MUST(baton_queue_put(to, &payload, BATON_FOREVER));
}

static void take(baton_queue *from, uint64_t seed) {
	baton_message *m;
	DLManagedTensorVersioned *t;
	MUST(baton_queue_get(from, &m, BATON_FOREVER));
	MUST(baton_message_tensor(m, 0, &t));
	whole(t, seed);
	baton_tensor_release(t);
	baton_message_release(m);
}

static void receive(uint64_t seed) {
	char broken[100];
	int readonly;
	baton_message *m;
	MUST(baton_reader_receive(reader, &m, BATON_FOREVER));
	MUST(check_value(m, seed, 0, &readonly, broken, sizeof broken));
	if (broken[0])
		fatal(broken);
	baton_message_release(m);
}

static void send_value(uint64_t seed) {
	struct value v;
	MUST(make_value(session, seed, WORDS, &v));
	MUST(baton_topic_send(topic, &v.payload, BATON_FOREVER));
	drop_value(&v);
}

static void end(void) {
	baton_reader_release(reader);
	baton_topic_release(topic);
	baton_queue_release(queue);
	baton_queue_release(answers);
	baton_session_release(session);
}

// What the child does with the tensor of seed 1 and the message of seed 10 that it inherited.
static void child(DLManagedTensorVersioned *t, baton_message *m) {
	char broken[100];
	int readonly;
	DLManagedTensorVersioned *view, *mine;
	const int64_t one = 1;
	take(queue, 3); // put when the parent had let go
	whole(t, 1);
	MUST(check_value(m, 10, 0, &readonly, broken, sizeof broken));
	if (broken[0])
		fatal(broken);
	baton_message_release(m);
	receive(20); // sent before the fork, and seen by the parent, too
	MUST(baton_tensor_view(t, word_type, 1, &one, NULL, 0, &view));
	put(answers, t);
	baton_tensor_release(t);
	MUST(filled(session, 2, WORDS, &mine));
	put(answers, mine);
	baton_tensor_release(mine);
	if (words_of(view)[0] != word_at(1, 0))
		fatal("a view");
	baton_tensor_release(view);
	if (baton_session_fd(session) < 0)
		fatal("baton_session_fd");
	end();
	// Not exit: what belongs to the parent, threads among it, is no leak of the child's.
	_exit(0);
}

static int one(void *state, const baton_value *args, int32_t count, baton_value *result) {
	(void)state;
	(void)args;
	(void)count;
	*result = baton_value_of_int(1);
	return BATON_OK;
}

static int forks(void *state, const baton_value *args, int32_t count, baton_value *result) {
	const baton_current *call = baton_current_call();
	baton_value got = BATON_VALUE_INIT;
	int64_t n = 0;
	int status = 0;
	(void)state;
	(void)args;
	(void)count;
	const pid_t pid = fork();
	if (pid == 0) {
		if (baton_current_call() || baton_current_cancelled(call))
			fatal("a child within a call");
		if (baton_current_wait(call, BATON_FOREVER) != BATON_CLOSED)
			fatal("a child that waits for the end of a call");
		MUST(baton_call(session, "one", NULL, 0, NULL, &got, BATON_FOREVER));
		MUST(baton_value_as_int(&got, &n));
		baton_session_release(session);
		_exit(n == 1 ? 0 : 1);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || baton_current_call() != call)
		return baton_fail(NULL, "fork", NULL);
	*result = baton_value_of_int(status);
	return BATON_OK;
}

static void call_what_forks(void) {
	baton_provided *both[2];
	baton_value got = BATON_VALUE_INIT;
	int64_t status = 1;
	MUST(baton_provide(session, "one", NULL, one, NULL, NULL, &both[0]));
	MUST(baton_provide(session, "forks", NULL, forks, NULL, NULL, &both[1]));
	MUST(baton_call(session, "forks", NULL, 0, NULL, &got, BATON_FOREVER));
	MUST(baton_value_as_int(&got, &status));
	if (status != 0)
		fatal("the end of a function's child");
	baton_provided_release(both[0]);
	baton_provided_release(both[1]);
}

int main(void) {
	DLManagedTensorVersioned *t, *later;
	baton_message *m;
	int status;
	MUST(baton_connect(NULL, &session));
	call_what_forks();
	const baton_topic_options options = {.size = sizeof options, .depth = 64, .linger_ns = BATON_NO_LINGER};
	MUST(baton_queue_open(session, "q", &options, &queue));
	MUST(baton_queue_open(session, "answers", &options, &answers));
	MUST(baton_topic_open(session, "t", &options, &topic));
	MUST(baton_reader_open(topic, BATON_START_NEW, NULL, &reader));
	MUST(filled(session, 1, WORDS, &t));
	send_value(10);
	send_value(20);
	MUST(baton_reader_receive(reader, &m, BATON_FOREVER));

	const pid_t pid = fork();
	if (pid < 0)
		fatal("fork");
	if (pid == 0)
		child(t, m);
	baton_tensor_release(t);
	baton_message_release(m);
	receive(20);
	for (uint64_t i = 0; i < 20; i++)
		send_value(100 + i); // into whatever is free
	MUST(filled(session, 3, WORDS, &later));
	put(queue, later);
	baton_tensor_release(later);
	take(answers, 1);
	take(answers, 2);
	if (waitpid(pid, &status, 0) != pid || status != 0)
		fatal("the child's end");
	end();
	return 0;
}
