// How a process ends whose last thread does, in the way that its argument says. What is held is never released: the
// handler of exit looks at it, which runs where the C library ends the process, and nowhere else.

#include "kit.h"

#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 1000 };

static baton_session *session;
static DLManagedTensorVersioned *held;
static const char *how;

static int is(const char *what) {
	return strcmp(how, what) == 0;
}

// A session works in it as in any other: its threads are there.
static void at_exit(void) {
	DLManagedTensorVersioned *more;
	MUST(filled(session, 2, WORDS, &more));
	if (wrong_word(held, 1) >= 0 || wrong_word(more, 2) >= 0) {
		fprintf(stderr, "another's word\n");
		_exit(1);
	}
	printf("exit\n");
}

static int main_thread_has_ended(void) {
	char line[300];
	FILE *stat = fopen("/proc/self/stat", "r");
	if (!stat || !fgets(line, sizeof line, stat))
		fatal("/proc/self/stat");
	fclose(stat);
	return strstr(line, ") Z ") != NULL;
}

// The last thread of the program.
static void *worker(void *unused) {
	while (!main_thread_has_ended())
		sched_yield();
	const baton_item item = {NULL, held};
	const baton_payload payload = {sizeof(baton_payload), sizeof(baton_item), &item, 1, NULL, NULL, 0};
	MUST(baton_set(session, "seen", &payload, BATON_EPHEMERAL, NULL));
	printf("worked\n");
	return unused;
}

// Forks in a thread. The child's only thread is this one, and ends.
static void *forks(void *unused) {
	int status = -1;
	fflush(stdout);
	const pid_t pid = fork();
	if (pid < 0)
		fatal("fork");
	if (pid == 0) {
		if (is("fork and pthread_exit"))
			pthread_exit(NULL);
		return unused;
	}
	if (waitpid(pid, &status, 0) != pid || status != 0)
		fatal("the child's end");
	printf("waited\n");
	return unused;
}

static int one(void *state, const baton_value *args, int32_t count, baton_value *result) {
	(void)state;
	(void)args;
	(void)count;
	*result = baton_value_of_int(1);
	return BATON_OK;
}

int main(int argc, char **argv) {
	pthread_t thread;
	how = argc > 1 ? argv[1] : "";
	MUST(baton_connect(NULL, &session));
	MUST(filled(session, 1, WORDS, &held));
	if (atexit(at_exit))
		fatal("atexit");
	if (is("function")) {
		baton_provided *provided;
		MUST(baton_provide(session, "one", NULL, one, NULL, NULL, &provided));
	}
	if (is("worker") && pthread_create(&thread, NULL, worker, NULL))
		fatal("pthread_create");
	if (strncmp(how, "fork", 4) == 0 && (pthread_create(&thread, NULL, forks, NULL) || pthread_join(thread, NULL)))
		fatal("pthread_create");
	printf("main\n");
	fflush(stdout);
	pthread_exit(NULL);
}
