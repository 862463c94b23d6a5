// A plug-in host: loads the library given, has a thread use it, and closes it at once, again and again.

#include <baton.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *library;

// Copied, as ISO C has no conversion from an object's address to a function's.
#define FIND(name) \
	__typeof__(&name) the_##name; \
	do { \
		void *at = dlsym(library, #name); \
		if (!at) \
			fail(#name); \
		memcpy(&the_##name, &at, sizeof at); \
	} while (0)

static void fail(const char *what) {
	const char *why = dlerror();
	fprintf(stderr, "%s: %s\n", what, why ? why : "failed");
	exit(1);
}

static void *use(void *unused) {
	FIND(baton_connect);
	FIND(baton_alloc);
	FIND(baton_tensor_release);
	FIND(baton_session_release);
	const DLDataType float32 = {2, 32, 1};
	const int64_t shape[] = {4};
	baton_session *session = NULL;
	DLManagedTensorVersioned *tensor = NULL;
	if (the_baton_connect(NULL, &session) != BATON_OK || the_baton_alloc(session, float32, 1, shape, &tensor) != BATON_OK)
		fail("use the library");
	the_baton_tensor_release(tensor);
	the_baton_session_release(session);
	return unused;
}

int main(int argc, char **argv) {
	if (argc != 2 || dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD))
		fail("the library is to be named, and not linked");
	for (int i = 0; i < 30; i++) {
		library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
		if (!library)
			fail("dlopen");
		pthread_t thread;
		if (pthread_create(&thread, NULL, use, NULL) || pthread_join(thread, NULL))
			fail("thread");
		if (dlclose(library))
			fail("dlclose");
		// Its thread may be at its end still, and has no other code to run.
		void *again = dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD);
		if (!again)
			fail("stay loaded");
		dlclose(again);
		// What the library has registered for a fork is still there as well.
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		int status = 0;
		if (child < 0 || waitpid(child, &status, 0) != child || status)
			fail("fork");
	}
	return 0;
}
