// Functions in C: with BATON_FUNCTIONS=serve it provides those that functions_role_test.go lists, until its standard input
// ends; else it calls them, whichever language provides them, and checks what it gets.

#include "calls.h"
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

// What the functions do.

static int same(void *state, const baton_value *args, int32_t count, baton_value *result) {
	(void)state;
	return count == 1 ? (int)baton_value_copy(&args[0], result) : baton_fail(NULL, "not one argument", NULL);
}

static int given(void *state, const baton_value *args, int32_t count, baton_value *result) {
	const baton_current *call = baton_current_call();
	const char *names[8];
	baton_value values[8], both[2];
	int32_t by_position = 0, by_name = 0;
	(void)state;
	for (int32_t i = 0; i < count && by_name < 8; i++) {
		const char *name = baton_current_name(call, (size_t)i);
		if (!*name) {
			by_position++;
			continue;
		}
		if (baton_current_argument(call, name) != &args[i])
			return baton_fail(NULL, "an argument is not found by its name", NULL);
		names[by_name] = name;
		values[by_name++] = args[i]; // lent, as it is itself
	}
	both[0] = baton_value_of_int(by_position);
	baton_status s = baton_value_of_dict(names, values, (size_t)by_name, &both[1]);
	if (s == BATON_OK)
		s = baton_value_of_list(both, 2, result);
	baton_value_release(&both[1]);
	return (int)s;
}

static int scale(void *state, const baton_value *args, int32_t count, baton_value *result) {
	DLManagedTensorVersioned *x;
	double by;
	baton_status s = baton_value_as_tensor(&args[0], &x);
	(void)state;
	(void)count;
	if (s != BATON_OK)
		return (int)s;
	s = baton_value_as_float(&args[1], &by);
	for (int64_t i = 0; s == BATON_OK && i < count_of(x); i++)
		floats_of(x)[i] *= (float)by;
	if (s == BATON_OK)
		s = baton_value_of_tensor(NULL, x, result);
	baton_tensor_release(x);
	return (int)s;
}

static int add(void *state, const baton_value *args, int32_t count, baton_value *result) {
	int64_t a, b;
	int64_t *added = state;
	baton_status s = baton_value_as_int(&args[0], &a);
	(void)count;
	if (s == BATON_OK)
		s = baton_value_as_int(&args[1], &b);
	if (s == BATON_OK) {
		++*added;
		*result = baton_value_of_int(a + b);
	}
	return (int)s;
}

static int added(void *state, const baton_value *args, int32_t count, baton_value *result) {
	(void)args;
	(void)count;
	*result = baton_value_of_int(*(int64_t *)state);
	return BATON_OK;
}

static int fails_by_itself(void *state, const baton_value *args, int32_t count, baton_value *result) {
	(void)state;
	(void)args;
	(void)count;
	(void)result;
	return baton_fail("test.Own", "an own error", NULL);
}

static int fails(void *state, const baton_value *args, int32_t count, baton_value *result) {
	const char *message;
	size_t size;
	baton_status s = baton_value_as_text(&args[0], &message, &size);
	(void)state;
	(void)count;
	MUST(baton_value_of_text("what is given with an error is let go", result));
	return s == BATON_OK && strlen(message) == size
	           ? baton_fail("ValueError", message, "{\"trace\":\"here\",\"cause\":{\"kind\":\"KeyError\",\"message\":\"k\"}}")
	           : (int)s;
}

static void *watches(void *call) {
	CHECK(baton_current_wait(call, BATON_FOREVER) == BATON_CANCELLED && baton_current_cancelled(call));
	return NULL;
}

static int holds(void *state, const baton_value *args, int32_t count, baton_value *result) {
	const baton_current *call = baton_current_call();
	pthread_t other;
	(void)state;
	(void)args;
	(void)count;
	(void)result;
	CHECK(baton_current_attempt(call) == 1 && *baton_current_caller(call) && !baton_current_cancelled(call));
	CHECK(baton_current_wait(call, 0) == BATON_TIMEOUT && !baton_current_argument(call, "none"));
	CHECK(baton_current_left(call) == BATON_FOREVER);
	mark("fn/begun");
	// another thread looks at the call, too
	CHECK(pthread_create(&other, NULL, watches, (void *)(uintptr_t)call) == 0 && pthread_join(other, NULL) == 0);
	const baton_status s = baton_current_check(call);
	mark("fn/cancelled");
	return (int)s;
}

static int waiting; // calls of fn/wait

static int waits(void *state, const baton_value *args, int32_t count, baton_value *result) {
	const baton_current *call = baton_current_call();
	(void)state;
	(void)args;
	(void)count;
	(void)result;
	__atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
	CHECK(baton_current_left(call) <= 20000000);
	baton_status s = baton_current_wait(call, BATON_FOREVER);
	CHECK(s == BATON_TIMEOUT || s == BATON_CANCELLED);
	s = baton_current_check(call);
	__atomic_sub_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
	return (int)s;
}

static int count_waiting(void *state, const baton_value *args, int32_t count, baton_value *result) {
	(void)state;
	(void)args;
	(void)count;
	*result = baton_value_of_int(__atomic_load_n(&waiting, __ATOMIC_SEQ_CST));
	return BATON_OK;
}

static int dies(void *state, const baton_value *args, int32_t count, baton_value *result) {
	(void)state;
	(void)args;
	(void)count;
	(void)result;
	kill(getpid(), SIGKILL);
	return 0;
}

static int released;

static void count_release(void *state) {
	(void)state;
	released++;
}

static baton_provided *provide(const char *name, baton_handler handler, void *state, const baton_parameter *parameters, size_t count,
                               const char *result) {
	baton_provided *out;
	baton_function_options o = BATON_FUNCTION_OPTIONS_INIT;
	o.parameters = parameters;
	o.count = count;
	o.no_parameters = count == 0 && handler != given ? BATON_YES : BATON_NO;
	o.result = result;
	o.doc = "In C.";
	o.concurrency = handler == holds || handler == waits ? 2 : 0;
	o.over_nats = handler == add ? BATON_YES : BATON_DEFAULT;
	MUST(baton_provide(session, name, &o, handler, state, count_release, &out));
	CHECK(strcmp(baton_provided_name(out), name) == 0 && baton_provided_wait(out, 0) == BATON_TIMEOUT);
	return out;
}

static void serve(void) {
	int64_t sum = 0;
	const baton_value two = baton_value_of_float(2);
	const baton_parameter x = {"x", NULL, NULL, BATON_BY_POSITION, 0}, message = {"message", "str", NULL, BATON_BY_EITHER, 0};
	const baton_parameter scaled[2] = {{"x", "tensor", NULL, BATON_BY_EITHER, 0}, {"by", "float", &two, BATON_BY_NAME, 0}};
	const baton_parameter numbers[2] = {{"a", "int64", NULL, BATON_BY_EITHER, 0}, {"b", "int64", NULL, BATON_BY_EITHER, 0}};
	baton_provided *all[] = {
	    provide("fn/same", same, NULL, &x, 1, NULL),
	    provide("fn/given", given, NULL, NULL, 0, "list"),
	    provide("fn/scale", scale, NULL, scaled, 2, "tensor"),
	    provide("fn/add", add, &sum, numbers, 2, "int64"),
	    provide("fn/added", added, &sum, NULL, 0, "int64"),
	    provide("fn/fail", fails, NULL, &message, 1, "none"),
	    provide("fn/own", fails_by_itself, NULL, NULL, 0, "none"),
	    provide("fn/hold", holds, NULL, NULL, 0, "none"),
	    provide("fn/wait", waits, NULL, NULL, 0, "none"),
	    provide("fn/waits", count_waiting, NULL, NULL, 0, "int64"),
	    provide("fn/die", dies, NULL, NULL, 0, "none"),
	};
	const int count = (int)(sizeof all / sizeof *all);
	serve_until_told();
	for (int i = 0; i < count; i++) {
		MUST(baton_provided_end(all[i]));
		MUST(baton_provided_wait(all[i], BATON_FOREVER));
		CHECK(released == i && baton_provided_running(all[i]) == 0);
		baton_provided_release(all[i]);
		CHECK(released == i + 1);
	}
}

// What a caller sees.

static int equal(const baton_value *a, const baton_value *b) {
	const int32_t kind = baton_value_kind(a);
	if (kind != baton_value_kind(b) || baton_value_size(a) != baton_value_size(b))
		return 0;
	for (size_t i = 0; i < baton_value_size(a); i++) {
		const baton_value *ka = baton_value_key(a, i), *kb = baton_value_key(b, i);
		if (!ka != !kb || (ka && !equal(ka, kb)) || !equal(baton_value_item(a, i), baton_value_item(b, i)))
			return 0;
	}
	if (kind == BATON_KIND_INT) {
		char *da, *db;
		MUST(baton_value_as_digits(a, &da));
		MUST(baton_value_as_digits(b, &db));
		const int same = strcmp(da, db) == 0;
		baton_string_free(da);
		baton_string_free(db);
		return same;
	}
	if (kind == BATON_KIND_TEXT) {
		const char *ta, *tb;
		size_t na, nb;
		return baton_value_as_text(a, &ta, &na) == BATON_OK && baton_value_as_text(b, &tb, &nb) == BATON_OK && na == nb &&
		       memcmp(ta, tb, na + 1) == 0;
	}
	if (kind == BATON_KIND_BYTES) {
		const void *ba, *bb;
		size_t na, nb;
		return baton_value_as_bytes(a, &ba, &na) == BATON_OK && baton_value_as_bytes(b, &bb, &nb) == BATON_OK && na == nb &&
		       memcmp(ba, bb, na) == 0;
	}
	if (kind == BATON_KIND_TENSOR) {
		DLManagedTensorVersioned *ta, *tb;
		MUST(baton_value_as_tensor(a, &ta));
		MUST(baton_value_as_tensor(b, &tb));
		const int same = ta->dl_tensor.data == tb->dl_tensor.data && count_of(ta) == count_of(tb); // the same memory
		baton_tensor_release(ta);
		baton_tensor_release(tb);
		return same;
	}
	if (kind == BATON_KIND_BOOL || kind == BATON_KIND_FLOAT) {
		double fa, fb;
		return baton_value_as_float(a, &fa) == BATON_OK && baton_value_as_float(b, &fb) == BATON_OK && fa == fb;
	}
	if (kind == BATON_KIND_DTYPE) {
		DLDataType da, db;
		return baton_value_as_dtype(a, &da) == BATON_OK && baton_value_as_dtype(b, &db) == BATON_OK && memcmp(&da, &db, sizeof da) == 0;
	}
	if (kind == BATON_KIND_DEVICE) {
		DLDevice da, db;
		return baton_value_as_device(a, &da) == BATON_OK && baton_value_as_device(b, &db) == BATON_OK &&
		       da.device_type == db.device_type && da.device_id == db.device_id;
	}
	return 1;
}

// All kinds of values come back as they went.
static void values(const DLManagedTensorVersioned *x) {
	const DLDevice gpu = {kDLCUDA, 1};
	baton_value v[11] = {BATON_VALUE_INIT}, inner[3], back;
	size_t n = 1; // the first is None
	v[n++] = baton_value_of_bool(7);
	v[n++] = baton_value_of_int(-3);
	MUST(baton_value_of_digits("-1180591620717411303424", &v[n++]));
	v[n++] = baton_value_of_uint(UINT64_MAX);
	v[n++] = baton_value_of_float(0.5);
	MUST(baton_value_of_sized_text("a\0b\xc3\xbc", 5, &v[n++]));
	MUST(baton_value_of_bytes("\0\xff", 2, &v[n++]));
	MUST(baton_value_of_tensor(NULL, x, &v[n++]));
	// [-3, (0.5, None, tensor), {"k": tensor, "l": text}]
	inner[0] = v[2];
	const baton_value three[3] = {v[5], v[0], v[8]}, two[2] = {v[8], v[6]};
	const char *const keys[2] = {"k", "l"};
	MUST(baton_value_of_tuple(three, 3, &inner[1]));
	MUST(baton_value_of_dict(keys, two, 2, &inner[2]));
	MUST(baton_value_of_list(inner, 3, &v[n++]));
	MUST(baton_value_of_pairs(&v[2], &v[5], 1, &v[n])); // {-3: 0.5}
	n++;
	baton_value_release(&inner[1]);
	baton_value_release(&inner[2]);
	for (size_t i = 0; i < n; i++) {
		MUST(call("fn/same", &v[i], 1, &back));
		if (!equal(&v[i], &back)) {
			fprintf(stderr, "value %zu came back as the kind %d\n", i, baton_value_kind(&back));
			exit(1);
		}
		baton_value_release(&back);
	}
	CHECK(baton_value_get(baton_value_item(&v[9], 2), "l") == baton_value_item(baton_value_item(&v[9], 2), 1));
	for (size_t i = 0; i < n; i++)
		baton_value_release(&v[i]);
	const baton_value types[2] = {baton_value_of_device(gpu), baton_value_of_dtype(float_type)};
	for (int i = 0; i < 2; i++) {
		MUST(call("fn/same", &types[i], 1, &back));
		CHECK(equal(&types[i], &back) || baton_value_kind(&back) == BATON_KIND_TEXT); // in Python they are texts
		baton_value_release(&back);
	}
}

static void named(DLManagedTensorVersioned *x) {
	const char *const names[3] = {NULL, "", "k"}, *const by[2] = {NULL, "by"};
	baton_value args[3] = {baton_value_of_int(1), baton_value_of_int(2), baton_value_of_int(3)}, back;
	int64_t n, k;
	MUST(baton_call(session, "fn/given", args, 3, names, &back, BATON_FOREVER));
	MUST(baton_value_as_int(baton_value_item(&back, 0), &n));
	MUST(baton_value_as_int(baton_value_get(baton_value_item(&back, 1), "k"), &k));
	CHECK(n == 2 && k == 3 && baton_value_size(&back) == 2 && baton_value_size(baton_value_item(&back, 1)) == 1);
	baton_value_release(&back);

	// Written in place; the default is 2.
	MUST(baton_value_of_tensor(session, x, &args[0]));
	args[1] = baton_value_of_int(3);
	MUST(baton_call(session, "fn/scale", args, 2, by, &back, BATON_FOREVER));
	CHECK(floats_of(x)[0] == 3 && floats_of(x)[2] == 9 && equal(&args[0], &back));
	baton_value_release(&back);
	MUST(call("fn/scale", args, 1, &back));
	CHECK(floats_of(x)[0] == 6 && floats_of(x)[2] == 18);
	baton_value_release(&back);
	baton_value_release(&args[0]);
}

static int64_t count_added(void) {
	baton_value back;
	int64_t n;
	MUST(call("fn/added", NULL, 0, &back));
	MUST(baton_value_as_int(&back, &n));
	return n;
}

// What does not fit is refused here, and the function does not run for it.
static void refused(void) {
	const char *const c[2] = {NULL, "c"}, *const a[2] = {NULL, "a"}, *const late[2] = {"a", NULL};
	const int64_t before = count_added();
	int64_t sum;
	DLManagedTensorVersioned *zero, *row;
	const int64_t three = 3;
	baton_value args[3] = {baton_value_of_int(2), baton_value_of_bool(1), baton_value_of_int(3)}, back, odd[5] = {BATON_VALUE_INIT};
	MUST(call("fn/add", args, 2, &back));
	MUST(baton_value_as_int(&back, &sum));
	CHECK(sum == 3);
	MUST(baton_alloc(session, word_type, 0, NULL, &zero));
	*words_of(zero) = 40;
	MUST(baton_value_of_tensor(NULL, zero, &args[0]));
	MUST(call("fn/add", args, 2, &back)); // its number
	MUST(baton_value_as_int(&back, &sum));
	CHECK(sum == 41 && count_added() == before + 2);
	baton_value_release(&args[0]);
	baton_tensor_release(zero);

	odd[1] = text_value("2");
	odd[2] = baton_value_of_float(2);
	MUST(baton_value_of_digits("1180591620717411303424", &odd[3]));
	MUST(filled(session, 1, three, &row));
	MUST(baton_value_of_tensor(session, row, &odd[4]));
	baton_tensor_release(row);
	baton_function *f;
	char *signature;
	MUST(baton_function_open(session, "fn/add", &f, 0));
	MUST(baton_function_signature(f, &signature));
	const int any_size = !strstr(signature, "int64"); // Python's
	baton_string_free(signature);
	baton_function_release(f);
	for (size_t i = 0; i < 5; i++) {
		args[0] = odd[i];
		if (i == 3 && any_size) {
			baton_value_release(&odd[i]);
			continue;
		}
		CHECK(call("fn/add", args, 2, &back) == BATON_INVALID_ARGUMENT && strstr(baton_last_error(), "parameter a"));
		CHECK(baton_value_kind(&back) == BATON_KIND_NONE);
		baton_value_release(&odd[i]);
	}
	args[0] = baton_value_of_int(2);
	CHECK(call("fn/add", args, 0, &back) == BATON_INVALID_ARGUMENT);
	CHECK(call("fn/add", args, 1, &back) == BATON_INVALID_ARGUMENT && strstr(baton_last_error(), "parameter b"));
	CHECK(call("fn/add", args, 3, &back) == BATON_INVALID_ARGUMENT);
	CHECK(baton_call(session, "fn/add", args, 2, c, &back, BATON_FOREVER) == BATON_INVALID_ARGUMENT && strstr(baton_last_error(), "c"));
	CHECK(baton_call(session, "fn/add", args, 2, a, &back, BATON_FOREVER) == BATON_INVALID_ARGUMENT);
	CHECK(baton_call(session, "fn/add", args, 2, late, &back, BATON_FOREVER) == BATON_INVALID_ARGUMENT);
	CHECK(call("fn/none", NULL, 0, &back) == BATON_NOT_FOUND && call("no name", NULL, 0, &back) == BATON_INVALID_ARGUMENT);
	CHECK(count_added() == before + 2);
}

static void errors(void) {
	baton_value message = text_value("no such thing"), back;
	CHECK(call("fn/fail", &message, 1, &back) == BATON_REMOTE && baton_last_status() == BATON_REMOTE);
	CHECK(strcmp(baton_last_detail("kind"), "ValueError") == 0 && strcmp(baton_last_detail("message"), "no such thing") == 0);
	CHECK(strcmp(baton_last_detail("provider"), "provider") == 0 && strcmp(baton_last_detail("function"), "fn/fail") == 0);
	CHECK(strcmp(baton_last_detail("cause/kind"), "KeyError") == 0 && strchr(baton_last_detail("cause/message"), 'k'));
	CHECK(!*baton_last_detail("cause/cause/kind") && !*baton_last_detail("pid") && baton_last_detail(NULL)[0] == '{');
	CHECK(strstr(baton_last_error(), "ValueError: no such thing"));
	baton_value_release(&message);
	CHECK(call("fn/own", NULL, 0, &back) == BATON_REMOTE && strcmp(baton_last_detail("kind"), "test.Own") == 0);
	CHECK(strstr(baton_last_detail("message"), "own error"));
}

static void *takes(void *pending) {
	baton_value back;
	CHECK(baton_pending_result(pending, &back) == BATON_CANCELLED && baton_value_kind(&back) == BATON_KIND_NONE);
	return NULL;
}

// Waits until no call of a function waits or runs.
static void ended(const char *name) {
	baton_function_info info = BATON_FUNCTION_INFO_INIT;
	do {
		baton_function_list *list;
		MUST(baton_functions(session, name, &list));
		MUST(baton_function_list_get(list, 0, &info));
		info.name = NULL; // the list's
		baton_function_list_release(list);
	} while (info.waiting + info.running > 0);
}

static void cancelled(void) {
	baton_function *f;
	baton_pending *p;
	baton_value back;
	pthread_t other;
	char *text;
	MUST(baton_function_open(session, "fn/hold", &f, BATON_FOREVER));
	CHECK(strcmp(baton_function_name(f), "fn/hold") == 0 && baton_function_providers(f) == 1);
	MUST(baton_function_signature(f, &text));
	CHECK(strncmp(text, "()", 2) == 0);
	baton_string_free(text);
	MUST(baton_function_doc(f, &text));
	baton_string_free(text);

	for (int way = 0; way < 3; way++) { // while another thread waits, while none does, and by the release
		MUST(baton_function_submit(f, NULL, 0, NULL, &p, BATON_FOREVER));
		marked("fn/begun");
		CHECK(baton_pending_wait(p, 0) == BATON_TIMEOUT);
		if (way == 0)
			CHECK(pthread_create(&other, NULL, takes, p) == 0);
		if (way < 2)
			MUST(baton_pending_cancel(p));
		if (way == 0)
			CHECK(pthread_join(other, NULL) == 0 && baton_pending_result(p, &back) == BATON_CLOSED);
		if (way == 1)
			CHECK(baton_pending_wait(p, BATON_FOREVER) == BATON_OK && baton_pending_result(p, &back) == BATON_CANCELLED);
		baton_pending_release(p);
		marked("fn/cancelled");
	}
	CHECK(baton_function_call(f, NULL, 0, NULL, &back, 0) == BATON_TIMEOUT); // not begun
	baton_function_release(f);

	MUST(baton_function_open(session, "fn/wait", &f, BATON_FOREVER));
	CHECK(baton_function_call(f, NULL, 0, NULL, &back, 20000000) == BATON_TIMEOUT);
	MUST(baton_function_submit(f, NULL, 0, NULL, &p, 20000000));
	CHECK(baton_pending_wait(p, BATON_FOREVER) == BATON_OK && baton_pending_result(p, &back) == BATON_TIMEOUT);
	baton_pending_release(p);
	MUST(baton_function_submit(f, NULL, 0, NULL, &p, 20000000));
	ended("fn/wait"); // with the function's own error, which is read behind the deadline
	CHECK(baton_pending_wait(p, BATON_FOREVER) == BATON_OK && baton_pending_result(p, &back) == BATON_TIMEOUT);
	baton_pending_release(p);
	baton_function_release(f);
	int64_t n;
	do { // until those that have begun have ended
		MUST(call("fn/waits", NULL, 0, &back));
		MUST(baton_value_as_int(&back, &n));
	} while (n > 0);
}

static void listed(baton_provider_info *provider) {
	baton_function_list *list;
	baton_function_info info = BATON_FUNCTION_INFO_INIT;
	MUST(baton_functions(session, "fn/*", &list));
	CHECK(baton_function_list_count(list) == 11);
	for (size_t i = 0; i < 11; i++) {
		MUST(baton_function_list_get(list, i, &info));
		MUST(baton_function_list_provider(list, i, 0, provider));
		CHECK(strncmp(info.name, "fn/", 3) == 0 && info.providers == 1 && *info.signature == '(' && info.doc);
		CHECK(strcmp(provider->name, "provider") == 0 && provider->pid > 1 && provider->concurrency > 0 && !provider->stopped);
	}
	CHECK(baton_function_list_get(list, 11, &info) == BATON_NOT_FOUND && !info.name);
	CHECK(baton_function_list_provider(list, 0, 1, provider) == BATON_NOT_FOUND);
	MUST(baton_function_list_provider(list, 0, 0, provider));
	provider->name = NULL; // the list's
	baton_function_list_release(list);
}

static void calls(void) {
	const int64_t three = 3;
	DLManagedTensorVersioned *x;
	baton_provider_info provider = BATON_PROVIDER_INFO_INIT;
	baton_value back;
	MUST(baton_alloc(session, float_type, 1, &three, &x));
	for (int i = 0; i < 3; i++)
		floats_of(x)[i] = (float)(i + 1);
	values(x);
	named(x);
	baton_tensor_release(x);
	refused();
	errors();
	cancelled();
	listed(&provider);
	CHECK(call("fn/die", NULL, 0, &back) == BATON_PROVIDER_DIED);
	CHECK(strtoul(baton_last_detail("pid"), NULL, 10) == provider.pid && *baton_last_detail("reason"));
	CHECK(call("fn/added", NULL, 0, &back) == BATON_NO_PROVIDER);
	baton_function *f;
	CHECK(baton_function_open(session, "fn/added", &f, 1000000) == BATON_NO_PROVIDER && !f);
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
