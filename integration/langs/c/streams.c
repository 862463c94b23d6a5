// Streams and functions as arguments in C: with BATON_FUNCTIONS=serve it provides those that streams_role_test.go lists,
// until its standard input ends; else it calls them, whichever language provides them, and checks what it gets.

#include "calls.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

// A tensor of n floats that are all of one value.
static DLManagedTensorVersioned *floats(int64_t n, float value) {
	DLManagedTensorVersioned *x;
	MUST(baton_alloc(session, float_type, 1, &n, &x));
	for (int64_t i = 0; i < n; i++)
		floats_of(x)[i] = value;
	return x;
}

static int64_t int_of(const baton_value *v) {
	int64_t n;
	MUST(baton_value_as_int(v, &n));
	return n;
}

// What the functions do.

static int count(void *state, const baton_value *args, int32_t n, baton_value *result) {
	const baton_current *current = baton_current_call();
	(void)state;
	(void)n;
	for (int64_t i = 0; i < int_of(&args[0]); i++) {
		DLManagedTensorVersioned *x = floats(3, (float)i);
		baton_value both[2] = {baton_value_of_int(i), BATON_VALUE_INIT}, part;
		MUST(baton_value_of_tensor(NULL, x, &both[1]));
		baton_tensor_release(x);
		MUST(baton_value_of_list(both, 2, &part));
		baton_value_release(&both[1]);
		const baton_status s = baton_current_send_part(current, &part);
		baton_value_release(&part);
		if (s != BATON_OK)
			return (int)s;
	}
	*result = args[0]; // a number holds nothing
	return BATON_OK;
}

static int forever(void *state, const baton_value *args, int32_t n, baton_value *result) {
	const baton_current *current = baton_current_call();
	int64_t *sent = state;
	int32_t hold;
	baton_status s = baton_value_as_bool(&args[0], &hold);
	(void)n;
	(void)result;
	__atomic_store_n(sent, 0, __ATOMIC_SEQ_CST);
	if (s == BATON_OK && hold) {
		mark("st/begun");
		CHECK(baton_current_wait(current, BATON_FOREVER) == BATON_CANCELLED);
	}
	for (int64_t i = 0; s == BATON_OK; i++) {
		const baton_value part = baton_value_of_int(i);
		s = baton_current_send_part(current, &part);
		if (s == BATON_OK)
			__atomic_add_fetch(sent, 1, __ATOMIC_SEQ_CST);
	}
	CHECK(s == BATON_CANCELLED);
	mark("st/left");
	return (int)s;
}

static int given(void *state, const baton_value *args, int32_t n, baton_value *result) {
	(void)args;
	(void)n;
	*result = baton_value_of_int(__atomic_load_n((int64_t *)state, __ATOMIC_SEQ_CST));
	return BATON_OK;
}

static baton_status send_numbers(int64_t n) {
	baton_status s = BATON_OK;
	for (int64_t i = 0; i < n && s == BATON_OK; i++) {
		const baton_value part = baton_value_of_int(i);
		s = baton_current_send_part(baton_current_call(), &part);
	}
	return s;
}

static int fails(void *state, const baton_value *args, int32_t n, baton_value *result) {
	(void)state;
	(void)args;
	(void)n;
	(void)result;
	MUST(send_numbers(2));
	return baton_fail("ValueError", "enough", NULL);
}

static int dies(void *state, const baton_value *args, int32_t n, baton_value *result) {
	(void)state;
	(void)n;
	(void)result;
	MUST(send_numbers(int_of(&args[0])));
	kill(getpid(), SIGKILL);
	return 0;
}

static int step(void *state, const baton_value *args, int32_t n, baton_value *result) {
	DLManagedTensorVersioned *x;
	int64_t i;
	baton_status s = n == 2 ? baton_value_as_int(&args[0], &i) : BATON_INVALID_ARGUMENT;
	(void)state;
	if (s == BATON_OK)
		s = baton_value_as_tensor(&args[1], &x);
	if (s != BATON_OK)
		return (int)s;
	floats_of(x)[0]++;
	baton_tensor_release(x);
	*result = baton_value_of_int(i);
	return BATON_OK;
}

// Calls a function as st/step is: what it gives in n.
static baton_status apply_to(const baton_function *f, int64_t i, int64_t *n) {
	baton_value args[2] = {baton_value_of_int(i), BATON_VALUE_INIT}, back;
	DLManagedTensorVersioned *x = floats(1, (float)i);
	MUST(baton_value_of_tensor(NULL, x, &args[1]));
	const baton_status s = baton_function_call(f, args, 2, NULL, &back, BATON_FOREVER);
	if (s == BATON_OK) {
		CHECK(floats_of(x)[0] == (float)i + 1);
		*n = int_of(&back);
	}
	baton_value_release(&back);
	baton_value_release(&args[1]);
	baton_tensor_release(x);
	return s;
}

static int apply(void *state, const baton_value *args, int32_t n, baton_value *result) {
	baton_function *f;
	int64_t sum = 0;
	baton_status s = baton_value_as_function(&args[0], &f);
	(void)state;
	(void)n;
	for (int64_t i = 0; s == BATON_OK && i < int_of(&args[1]); i++) {
		int64_t one;
		s = apply_to(f, i, &one);
		if (s == BATON_OK)
			sum += one;
	}
	baton_function_release(f);
	*result = baton_value_of_int(sum);
	return (int)s;
}

static baton_function *kept;

static int keeps(void *state, const baton_value *args, int32_t n, baton_value *result) {
	(void)state;
	(void)n;
	(void)result;
	baton_function_release(kept);
	return (int)baton_value_as_function(&args[0], &kept);
}

static int late(void *state, const baton_value *args, int32_t n, baton_value *result) {
	int64_t one;
	(void)state;
	(void)args;
	(void)n;
	return (int)baton_value_of_text(baton_status_name(apply_to(kept, 0, &one)), result);
}

static int same(void *state, const baton_value *args, int32_t n, baton_value *result) {
	(void)state;
	(void)n;
	return (int)baton_value_copy(&args[0], result);
}

static baton_provided *provide(const char *name, baton_handler handler, void *state, const baton_parameter *parameters, size_t n, int parts) {
	baton_provided *out;
	baton_function_options o = BATON_FUNCTION_OPTIONS_INIT;
	o.parameters = parameters;
	o.count = n;
	o.no_parameters = n == 0 ? BATON_YES : BATON_NO;
	o.parts = parts;
	MUST(baton_provide(session, name, &o, handler, state, NULL, &out));
	return out;
}

static void serve(void) {
	int64_t sent = 0;
	const baton_value no = baton_value_of_bool(0);
	const baton_parameter number = {"n", "int64", NULL, BATON_BY_EITHER, 0}, hold = {"hold", "bool", &no, BATON_BY_EITHER, 0};
	const baton_parameter applied[2] = {{"f", "function", NULL, BATON_BY_EITHER, 0}, number};
	const baton_parameter stepped[2] = {{"i", "int64", NULL, BATON_BY_EITHER, 0}, {"x", "tensor", NULL, BATON_BY_EITHER, 0}};
	baton_provided *all[] = {
	    provide("st/count", count, NULL, &number, 1, BATON_YES),
	    provide("st/forever", forever, &sent, &hold, 1, BATON_YES),
	    provide("st/sent", given, &sent, NULL, 0, BATON_DEFAULT),
	    provide("st/fail", fails, NULL, NULL, 0, BATON_YES),
	    provide("st/die", dies, NULL, &number, 1, BATON_YES),
	    provide("st/step", step, NULL, stepped, 2, BATON_NO),
	    provide("st/apply", apply, NULL, applied, 2, BATON_NO),
	    provide("st/keep", keeps, NULL, applied, 1, BATON_NO),
	    provide("st/late", late, NULL, NULL, 0, BATON_NO),
	    provide("st/same", same, NULL, applied, 1, BATON_NO),
	};
	serve_until_told();
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		baton_provided_release(all[i]);
	baton_function_release(kept);
}

// What a caller sees.

static baton_function *opened(const char *name) {
	baton_function *f;
	MUST(baton_function_open(session, name, &f, BATON_FOREVER));
	return f;
}

static baton_parts *stream_of(const char *name, const baton_value *args, int32_t n, uint32_t ahead) {
	baton_function *f = opened(name);
	baton_parts *parts;
	MUST(baton_function_stream(f, args, n, NULL, ahead, &parts, BATON_FOREVER));
	baton_function_release(f);
	return parts;
}

// Takes the parts from one number to another.
static void take(baton_parts *parts, int64_t from, int64_t to) {
	baton_value part;
	int32_t more;
	for (int64_t i = from; i < to; i++) {
		MUST(baton_parts_next(parts, &part, &more, BATON_FOREVER));
		CHECK(more == 1 && int_of(&part) == i);
	}
}

// The status with which a stream ends that has no more parts.
static baton_status end(baton_parts *parts) {
	baton_value part;
	int32_t more;
	const baton_status s = baton_parts_next(parts, &part, &more, BATON_FOREVER);
	CHECK(more == 0 && baton_value_kind(&part) == BATON_KIND_NONE);
	return s;
}

static void counts(int64_t n) {
	const baton_value number = baton_value_of_int(n);
	baton_parts *parts = stream_of("st/count", &number, 1, (uint32_t)(1 + n / 3));
	baton_value part;
	int32_t more;
	int64_t got = 0;
	for (; baton_parts_next(parts, &part, &more, BATON_FOREVER) == BATON_OK && more; got++) {
		DLManagedTensorVersioned *x;
		MUST(baton_value_as_tensor(baton_value_item(&part, 1), &x));
		CHECK(int_of(baton_value_item(&part, 0)) == got && count_of(x) == 3 && floats_of(x)[2] == (float)got);
		baton_tensor_release(x);
		baton_value_release(&part);
	}
	CHECK(got == n && end(parts) == BATON_OK);
	MUST(baton_parts_result(parts, &part));
	CHECK(baton_value_kind(&part) == BATON_KIND_NONE || int_of(&part) == n);
	CHECK(baton_parts_result(parts, &part) == BATON_CLOSED && end(parts) == BATON_CLOSED);
	MUST(baton_parts_cancel(parts)); // it is over
	CHECK(end(parts) == BATON_CLOSED);
	baton_parts_release(parts);
}

// Waits until st/forever has given so many parts, and no more.
static void ahead(int64_t want) {
	baton_value back;
	for (int looks = 0; looks < 5;) {
		MUST(call("st/sent", NULL, 0, &back));
		CHECK(int_of(&back) <= want);
		looks += int_of(&back) == want;
	}
}

static void *cancels(void *parts) {
	marked("st/begun");
	MUST(baton_parts_cancel(parts));
	return NULL;
}

static void *waits(void *parts) {
	baton_value back;
	CHECK(baton_parts_result(parts, &back) == BATON_CANCELLED);
	return NULL;
}

static void streams(void) {
	const baton_value yes = baton_value_of_bool(1);
	baton_parts *first, *second;
	baton_value part;
	int32_t more;
	pthread_t other;
	counts(0);
	counts(3);
	counts(150);

	first = stream_of("st/forever", NULL, 0, 2);
	take(first, 0, 1);
	ahead(3);
	take(first, 1, 3);
	ahead(5);
	second = stream_of("st/forever", NULL, 0, 0); // in the place of the first
	take(second, 0, 4);
	baton_parts_release(second);
	marked("st/left");
	take(first, 3, 4);
	MUST(baton_parts_cancel(first)); // no thread waits for it
	CHECK(end(first) == BATON_CANCELLED && end(first) == BATON_CLOSED);
	marked("st/left");
	baton_parts_release(first);

	first = stream_of("st/forever", &yes, 1, 1); // while a thread waits for a part, and for the end
	CHECK(baton_parts_next(first, &part, &more, 0) == BATON_EMPTY && baton_parts_next(first, &part, &more, 1000) == BATON_EMPTY);
	CHECK(pthread_create(&other, NULL, cancels, first) == 0);
	CHECK(end(first) == BATON_CANCELLED);
	CHECK(pthread_join(other, NULL) == 0);
	marked("st/left");
	baton_parts_release(first);
	first = stream_of("st/forever", &yes, 1, 1);
	CHECK(pthread_create(&other, NULL, waits, first) == 0);
	cancels(first);
	CHECK(pthread_join(other, NULL) == 0);
	marked("st/left");
	baton_parts_release(first);

	first = stream_of("st/fail", NULL, 0, 0);
	take(first, 0, 2);
	CHECK(end(first) == BATON_REMOTE && strcmp(baton_last_detail("kind"), "ValueError") == 0);
	CHECK(strcmp(baton_last_detail("message"), "enough") == 0);
	CHECK(end(first) == BATON_CLOSED && baton_parts_result(first, &part) == BATON_CLOSED);
	baton_parts_release(first);
	first = stream_of("st/fail", NULL, 0, 0);
	CHECK(baton_parts_result(first, &part) == BATON_REMOTE); // the parts are let go
	baton_parts_release(first);

	// Whether it gives parts is looked at before anything is sent.
	CHECK(call("st/count", &yes, 1, &part) == BATON_INVALID_ARGUMENT);
	baton_function *f = opened("st/sent");
	CHECK(baton_function_stream(f, NULL, 0, NULL, 0, &second, BATON_FOREVER) == BATON_INVALID_ARGUMENT && !second);
	baton_function_release(f);
	f = opened("st/fail");
	CHECK(baton_function_stream(f, NULL, 0, NULL, 64, &second, BATON_FOREVER) == BATON_INVALID_ARGUMENT && !second);
	baton_function_release(f);
}

// A function of this program with what it has seen.
struct seen {
	pthread_t here;
	int elsewhere, calls, fail;
	const baton_function *other;
};

static int releases;

static void count_release(void *state) {
	(void)state;
	__atomic_add_fetch(&releases, 1, __ATOMIC_SEQ_CST);
}

static int own(void *state, const baton_value *args, int32_t n, baton_value *result) {
	struct seen *seen = state;
	seen->calls++;
	CHECK(!!pthread_equal(seen->here, pthread_self()) != seen->elsewhere);
	CHECK(strcmp(baton_current_caller(baton_current_call()), "provider") == 0 && !*baton_last_error());
	if (seen->fail)
		return baton_fail("ValueError", "no step", NULL);
	if (seen->other) // a call within one that waits for this
		return (int)baton_function_call(seen->other, args, n, NULL, result, BATON_FOREVER);
	return step(NULL, args, n, result);
}

static int64_t applied(const baton_value *f) {
	const baton_value args[2] = {*f, baton_value_of_int(10)};
	baton_value back;
	MUST(call("st/apply", args, 2, &back));
	return int_of(&back);
}

static void lent(void) {
	struct seen seen = {pthread_self(), 0, 0, 0, NULL};
	baton_function *steps = opened("st/step"), *f;
	baton_pending *pending;
	baton_value v, args[2] = {BATON_VALUE_INIT, baton_value_of_int(10)}, back;
	int64_t n;

	// What a thread has read of its last failure stays while functions run within its calls.
	CHECK(call("st/none", NULL, 0, &back) == BATON_NOT_FOUND);
	const char *before = baton_last_error();
	MUST(baton_value_of_handler(own, &seen, count_release, &v));
	CHECK(baton_value_kind(&v) == BATON_KIND_FUNCTION && baton_value_as_function(&v, &f) == BATON_INVALID_ARGUMENT && !f);
	CHECK(call("st/none", NULL, 0, &back) == BATON_NOT_FOUND);
	before = baton_last_error();
	CHECK(applied(&v) == 45 && seen.calls == 10 && strstr(before, "st/none") && baton_last_error() == before);
	seen.other = steps;
	CHECK(applied(&v) == 45 && seen.calls == 20);
	seen.fail = 1;
	args[0] = v;
	CHECK(call("st/apply", args, 2, &back) == BATON_REMOTE && strcmp(baton_last_detail("kind"), "ValueError") == 0);
	CHECK(strcmp(baton_last_detail("message"), "no step") == 0 && seen.calls == 21);
	seen.fail = 0;
	seen.elsewhere = 1; // in a thread of the library
	f = opened("st/apply");
	MUST(baton_function_submit(f, args, 2, NULL, &pending, BATON_FOREVER));
	MUST(baton_pending_result(pending, &back));
	CHECK(int_of(&back) == 45 && seen.calls == 31);
	baton_pending_release(pending);
	baton_function_release(f);
	seen.elsewhere = 0;
	MUST(call("st/keep", &v, 1, &back));
	CHECK(__atomic_load_n(&releases, __ATOMIC_SEQ_CST) == 0);
	baton_value_release(&v);
	while (__atomic_load_n(&releases, __ATOMIC_SEQ_CST) != 1)
		sched_yield(); // the thread that ran it last lets it go
	MUST(call("st/late", NULL, 0, &back));
	const char *code;
	MUST(baton_value_as_text(&back, &code, NULL));
	CHECK(strcmp(code, "Closed") == 0);
	baton_value_release(&back);

	for (int way = 0; way < 2; way++) { // by its name
		if (way == 0)
			MUST(baton_value_of_function(steps, &v));
		else
			MUST(baton_value_of_function_name("st/step", &v));
		CHECK(applied(&v) == 45);
		MUST(call("st/same", &v, 1, &back));
		MUST(baton_value_as_function(&back, &f));
		CHECK(apply_to(f, 7, &n) == BATON_OK && n == 7 && strcmp(baton_function_name(f), "st/step") == 0);
		baton_function_release(f);
		baton_value_release(&back);
		baton_value_release(&v);
	}
	baton_function_release(steps);
}

static void calls(void) {
	const baton_value three = baton_value_of_int(3);
	baton_value back;
	streams();
	lent();
	baton_parts *dies_at_three = stream_of("st/die", &three, 1, 0);
	take(dies_at_three, 0, 3);
	CHECK(end(dies_at_three) == BATON_PROVIDER_DIED && strtoul(baton_last_detail("pid"), NULL, 10) > 1);
	baton_parts_release(dies_at_three);
	CHECK(call("st/sent", NULL, 0, &back) == BATON_NO_PROVIDER);
}

int main(void) {
	const int serves = connect_as_told();
	if (serves)
		serve();
	else
		calls();
	baton_session_release(session);
	if (!serves)
		printf("\"done\"\n");
	return 0;
}
