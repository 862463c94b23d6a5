// The function of the tests of deaths: with BATON_FUNCTIONS=serve it provides de/work, as deaths_role_test.go says, else it
// calls it as it is told.

#include "calls.h"
#include <sys/wait.h>
#include <unistd.h>

static int told; // lines that came on the standard input

static void say(const char *word) {
	printf("\"%s\"\n", word);
	fflush(stdout);
}

// The word between the quotes of a line of JSON; 0 at the end of the input.
static int heard(char *word, size_t size) {
	char line[64];
	if (!fgets(line, sizeof line, stdin))
		return 0;
	line[strcspn(line + 1, "\"") + 1] = 0;
	snprintf(word, size, "%s", line + 1);
	return 1;
}

// Says that it runs, and waits until it is told to go on, or wanted no more.
static int hold(void) {
	const baton_current *call = baton_current_call();
	const int before = __atomic_load_n(&told, __ATOMIC_SEQ_CST);
	say("begun");
	while (__atomic_load_n(&told, __ATOMIC_SEQ_CST) == before)
		if (baton_current_wait(call, 1000000) != BATON_TIMEOUT || baton_current_cancelled(call)) {
			say("cancelled");
			return (int)baton_current_check(call);
		}
	return BATON_OK;
}

static int nothing(void *state, const baton_value *args, int32_t count, baton_value *result) {
	(void)state;
	(void)args;
	(void)count;
	(void)result;
	return BATON_OK;
}

static int work(void *state, const baton_value *args, int32_t count, baton_value *result) {
	const char *how;
	size_t size;
	int s = (int)baton_value_as_text(&args[0], &how, &size);
	(void)state;
	(void)count;
	if (s != BATON_OK)
		return s;
	if (strcmp(how, "hold") == 0)
		s = hold();
	else if (strcmp(how, "raise") == 0)
		s = baton_fail("test.Raised", "as asked", NULL);
	else if (strcmp(how, "exit") == 0)
		_exit(3);
	else if (strcmp(how, "exec") == 0)
		execl("/bin/true", "true", (char *)NULL);
	else if (strcmp(how, "unsendable") == 0)
		return (int)baton_value_of_handler(nothing, NULL, NULL, result);
	else if (strcmp(how, "tensor") == 0) {
		const int64_t floats = 256;
		DLManagedTensorVersioned *x;
		s = (int)baton_alloc(session, float_type, 1, &floats, &x);
		if (s == BATON_OK) {
			s = (int)baton_value_of_tensor(NULL, x, result);
			baton_tensor_release(x);
		}
		return s;
	} else if (strcmp(how, "fork") == 0) {
		const pid_t child = fork();
		if (child == 0)
			_exit(0);
		waitpid(child, NULL, 0);
	}
	*result = baton_value_of_int(getpid());
	return s;
}

static void serve(void) {
	const baton_parameter how = {"how", "str", NULL, BATON_BY_EITHER, 0};
	baton_function_options o = BATON_FUNCTION_OPTIONS_INIT;
	baton_provided *provided;
	char line[64];
	o.parameters = &how;
	o.count = 1;
	MUST(baton_provide(session, "de/work", &o, work, NULL, NULL, &provided));
	say("ready");
	while (heard(line, sizeof line))
		__atomic_add_fetch(&told, 1, __ATOMIC_SEQ_CST);
	MUST(baton_provided_end(provided));
	MUST(baton_provided_wait(provided, BATON_FOREVER));
	baton_provided_release(provided);
}

// How many parts come, and how the stream ends.
static void count_parts(const char *how, char *answer, size_t size) {
	baton_function *f;
	baton_parts *parts;
	baton_value arg = text_value(how), part;
	baton_status s;
	int32_t more = 1;
	int n = 0;
	MUST(baton_function_open(session, "de/parts", &f, BATON_FOREVER));
	MUST(baton_function_stream(f, &arg, 1, NULL, 0, &parts, BATON_FOREVER));
	while ((s = baton_parts_next(parts, &part, &more, BATON_FOREVER)) == BATON_OK && more) {
		baton_value_release(&part);
		n++;
	}
	snprintf(answer, size, "%d%s%s", n, s == BATON_OK ? "" : " ", s == BATON_OK ? "" : baton_status_name(s));
	baton_parts_release(parts);
	baton_function_release(f);
	baton_value_release(&arg);
}

static void ask(void) {
	char how[64], answer[64];
	say("ready");
	while (heard(how, sizeof how)) {
		if (strncmp(how, "parts:", 6) == 0) {
			count_parts(how + 6, answer, sizeof answer);
			say(answer);
			continue;
		}
		char *limit = strchr(how, ' ');
		if (limit)
			*limit++ = 0;
		baton_value arg = text_value(how), back;
		const baton_status s =
		    baton_call(session, "de/work", &arg, 1, NULL, &back, limit ? 1000000 * (int64_t)atoi(limit) : BATON_FOREVER);
		int64_t pid = 0;
		if (s == BATON_OK && baton_value_kind(&back) == BATON_KIND_TENSOR) {
			DLManagedTensorVersioned *x;
			MUST(baton_value_as_tensor(&back, &x));
			snprintf(answer, sizeof answer, "%lld bytes", 4 * (long long)count_of(x));
			baton_tensor_release(x);
		} else if (s == BATON_OK) {
			MUST(baton_value_as_int(&back, &pid));
			snprintf(answer, sizeof answer, "%lld", (long long)pid);
		} else {
			snprintf(answer, sizeof answer, "%s", s == BATON_REMOTE ? baton_last_detail("kind") : baton_status_name(s));
		}
		baton_value_release(&back);
		baton_value_release(&arg);
		say(answer);
	}
}

int main(void) {
	if (connect_as_told())
		serve();
	else
		ask();
	baton_session_release(session);
	return 0;
}
