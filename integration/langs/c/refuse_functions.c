// Careless programs and functions: each call is refused with a status and a text, and nothing crashes.

#include "kit.h"

static int wrong;

#define REFUSED(call, want) \
	do { \
		baton_status got = (call); \
		if (got != (want) || (got != BATON_OK && !*baton_last_error())) { \
			fprintf(stderr, "line %d: %s gave %s (%s)\n", __LINE__, #call, baton_status_name(got), baton_last_error()); \
			wrong = 1; \
		} \
	} while (0)
#define ARGUMENT(call) REFUSED(call, BATON_INVALID_ARGUMENT)

static int no_function(void *state, const baton_value *args, int32_t count, baton_value *result) {
	(void)state;
	(void)args;
	(void)count;
	(void)result;
	return 1000; // no status
}

static int states_released;

static void state_released(void *state) {
	(void)state;
	states_released++;
}

static void without_a_session(void) {
	baton_value v = BATON_VALUE_INIT, out, noise = {77, 0, 5};
	baton_function *f;
	baton_function_list *list;
	baton_function_info info = BATON_FUNCTION_INFO_INIT;
	baton_provided *p;
	baton_pending *pending;
	baton_parts *parts;
	uint32_t n;
	int32_t yes;
	int64_t number;
	uint64_t word;
	double real;
	size_t size;
	char *text;
	const char *lent;
	const void *bytes;
	const char *names[2] = {"a", NULL};
	DLManagedTensorVersioned *t = (void *)&v;
	DLDataType dtype;
	DLDevice device;
	ARGUMENT(baton_value_of_digits(NULL, &out));
	const char *const odd[] = {"", "-", "1.5", "+1", " 1", "0x1", "1e3", "\xff"};
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
		ARGUMENT(baton_value_of_digits(odd[i], &out));
	MUST(baton_value_of_digits("-000000000000000000000000000000012", &out));
	MUST(baton_value_as_int(&out, &number));
	if (number != -12)
		fatal("an integer with zeros before it");
	ARGUMENT(baton_value_of_text(NULL, &out));
	ARGUMENT(baton_value_of_text("\xff", &out));
	ARGUMENT(baton_value_of_text("a", NULL));
	ARGUMENT(baton_value_of_sized_text(NULL, 1, &out));
	ARGUMENT(baton_value_of_sized_text("\xff", 1, &out));
	ARGUMENT(baton_value_of_bytes(NULL, SIZE_MAX, &out));
	ARGUMENT(baton_value_of_tensor(NULL, NULL, &out));
	ARGUMENT(baton_value_of_list(NULL, 1, &out));
	ARGUMENT(baton_value_of_list(&noise, 1, &out));
	ARGUMENT(baton_value_of_tuple(&v, SIZE_MAX, &out));
	ARGUMENT(baton_value_of_dict(NULL, &v, 1, &out));
	ARGUMENT(baton_value_of_dict(&names[1], &v, 1, &out));
	ARGUMENT(baton_value_of_pairs(NULL, &v, 1, &out));
	ARGUMENT(baton_value_of_dataclass(NULL, names, &v, 1, &out));
	ARGUMENT(baton_value_of_handler(NULL, NULL, state_released, &out));
	ARGUMENT(baton_value_of_handler(no_function, NULL, state_released, NULL));
	ARGUMENT(baton_value_of_function_name(NULL, &out));
	ARGUMENT(baton_value_of_function_name("no name", &out));
	ARGUMENT(baton_value_of_function_name("f", NULL));
	ARGUMENT(baton_value_of_function(NULL, &out));
	if (states_released != 2)
		fatal("the state of a function that is no value");
	states_released = 0;
	ARGUMENT(baton_value_copy(NULL, &out));
	ARGUMENT(baton_value_copy(&noise, &out));
	for (int i = 0; i < 2; i++) {
		const baton_value *of = i ? &noise : NULL;
		ARGUMENT(baton_value_as_bool(of, &yes));
		ARGUMENT(baton_value_as_int(of, &number));
		ARGUMENT(baton_value_as_uint(of, &word));
		ARGUMENT(baton_value_as_float(of, &real));
		ARGUMENT(baton_value_as_digits(of, &text));
		ARGUMENT(baton_value_as_text(of, &lent, NULL));
		ARGUMENT(baton_value_as_bytes(of, &bytes, &size));
		ARGUMENT(baton_value_as_tensor(of, &t));
		ARGUMENT(baton_value_as_function(of, &f));
		ARGUMENT(baton_value_as_dtype(of, &dtype));
		ARGUMENT(baton_value_as_device(of, &device));
		if (baton_value_size(of) || baton_value_item(of, 0) || baton_value_key(of, 0) || baton_value_get(of, "a") || baton_value_class(of))
			fatal("something of no value");
	}
	if (text || lent || bytes || size || t)
		fatal("a failure left something");
	ARGUMENT(baton_value_as_bytes(&v, &bytes, NULL));
	ARGUMENT(baton_value_as_int(&v, NULL));
	ARGUMENT(baton_call(NULL, "f", NULL, 0, NULL, &out, 0));
	ARGUMENT(baton_function_open(NULL, "f", &f, 0));
	ARGUMENT(baton_function_call(NULL, NULL, 0, NULL, &out, 0));
	ARGUMENT(baton_function_submit(NULL, NULL, 0, NULL, &pending, 0));
	ARGUMENT(baton_function_doc(NULL, &text));
	ARGUMENT(baton_function_signature(NULL, &text));
	ARGUMENT(baton_function_remove(NULL, "f", &n));
	ARGUMENT(baton_functions(NULL, NULL, &list));
	ARGUMENT(baton_function_list_get(NULL, 0, &info));
	ARGUMENT(baton_function_list_get(NULL, 0, NULL));
	ARGUMENT(baton_function_list_provider(NULL, 0, 0, NULL));
	ARGUMENT(baton_function_stream(NULL, NULL, 0, NULL, 0, &parts, 0));
	ARGUMENT(baton_parts_next(NULL, &out, &yes, 0));
	ARGUMENT(baton_parts_next(NULL, &out, NULL, 0));
	ARGUMENT(baton_parts_next(NULL, NULL, &yes, 0));
	ARGUMENT(baton_parts_result(NULL, &out));
	ARGUMENT(baton_parts_cancel(NULL));
	ARGUMENT(baton_current_send_part(NULL, &v));
	ARGUMENT(baton_pending_wait(NULL, 0));
	ARGUMENT(baton_pending_result(NULL, &out));
	ARGUMENT(baton_pending_cancel(NULL));
	ARGUMENT(baton_provide(NULL, "f", NULL, no_function, NULL, state_released, &p));
	ARGUMENT(baton_provided_wait(NULL, 0));
	ARGUMENT(baton_provided_end(NULL));
	ARGUMENT(baton_current_check(NULL));
	ARGUMENT(baton_current_wait(NULL, 0));
	if (states_released != 1 || f || pending || parts || list || p)
		fatal("what was refused left something, or kept a state");
	if (baton_current_call() || baton_current_cancelled(NULL) || baton_current_left(NULL) != BATON_FOREVER || baton_current_attempt(NULL) ||
	    baton_current_caller(NULL) || baton_current_name(NULL, 0) || baton_current_argument(NULL, "a") || baton_function_name(NULL) ||
	    baton_function_providers(NULL) || baton_function_list_count(NULL) || baton_provided_name(NULL) || baton_provided_running(NULL) ||
	    baton_value_kind(NULL) != BATON_KIND_NONE)
		fatal("something of NULL");
	if (baton_fail(NULL, NULL, NULL) != BATON_REMOTE || baton_fail("\xff", "\xff", "{") != BATON_REMOTE || *baton_last_detail("kind"))
		fatal("a failure outside of a function");
	baton_value_release(NULL);
	baton_value_release(&v);
	baton_function_release(NULL);
	baton_function_list_release(NULL);
	baton_pending_release(NULL);
	baton_parts_release(NULL);
	baton_provided_release(NULL);
}

// What a function is asked to do that it may not.
static int odd(void *state, const baton_value *args, int32_t count, baton_value *result) {
	const baton_current *current = baton_current_call();
	const int gives_parts = *(int *)state;
	const baton_value one = baton_value_of_int(1);
	baton_value own, noise = {77, 0, 5};
	ARGUMENT(baton_current_send_part(current, NULL));
	ARGUMENT(baton_current_send_part(current, &noise));
	REFUSED(baton_current_send_part(current, &one), gives_parts ? BATON_OK : BATON_INVALID_ARGUMENT);
	MUST(baton_value_of_handler(no_function, NULL, state_released, &own));
	ARGUMENT(baton_current_send_part(current, &own)); // a function is an argument alone
	if (gives_parts)
		MUST(baton_current_send_part(current, &one)); // others can be sent still
	else if (count == 2) { // the function that came is its receiver's alone, even as it is
		baton_function *f;
		baton_value back, again;
		MUST(baton_value_as_function(&args[1], &f));
		MUST(baton_value_of_function(f, &again));
		ARGUMENT(baton_function_call(f, &args[1], 1, NULL, &back, BATON_FOREVER));
		ARGUMENT(baton_function_call(f, &again, 1, NULL, &back, BATON_FOREVER));
		baton_value_release(&again);
		baton_function_release(f);
	}
	if (count > 0)
		*result = own; // nor is it a result
	else
		baton_value_release(&own);
	return BATON_OK;
}

static void functions_as_values(baton_session *s) {
	int no = 0, yes = 1;
	baton_function_options o = BATON_FUNCTION_OPTIONS_INIT;
	baton_provided *plain, *gives;
	baton_function *f;
	baton_parts *parts;
	baton_value args[2] = {BATON_VALUE_INIT, BATON_VALUE_INIT}, back;
	int32_t more, n = 0;
	states_released = 0;
	MUST(baton_provide(s, "odd", NULL, odd, &no, NULL, &plain));
	o.parts = BATON_YES;
	MUST(baton_provide(s, "odd/parts", &o, odd, &yes, NULL, &gives));
	MUST(baton_value_of_handler(no_function, NULL, state_released, &args[1]));
	MUST(baton_call(s, "odd", NULL, 0, NULL, &back, BATON_FOREVER));
	for (int count = 1; count < 3; count++) {
		REFUSED(baton_call(s, "odd", args, count, NULL, &back, BATON_FOREVER), BATON_REMOTE);
		if (strcmp(baton_last_detail("kind"), "baton.InvalidArgument") != 0)
			fatal("a function as a result");
	}
	baton_value_release(&args[1]);
	if (states_released != 4)
		fatal("the states of functions that are values");

	MUST(baton_function_open(s, "odd/parts", &f, 0));
	ARGUMENT(baton_function_stream(f, NULL, -1, NULL, 0, &parts, 0));
	ARGUMENT(baton_function_stream(f, NULL, 1, NULL, 0, &parts, 0));
	ARGUMENT(baton_function_stream(f, NULL, 0, NULL, 64, &parts, 0));
	ARGUMENT(baton_function_stream(f, NULL, 0, NULL, 0, NULL, 0));
	MUST(baton_function_stream(f, NULL, 0, NULL, 0, &parts, BATON_FOREVER));
	ARGUMENT(baton_parts_next(parts, &back, NULL, 0));
	ARGUMENT(baton_parts_next(parts, NULL, &more, 0));
	ARGUMENT(baton_parts_result(parts, NULL));
	while (baton_parts_next(parts, &back, &more, BATON_FOREVER) == BATON_OK && more)
		n++;
	if (n != 2)
		fatal("what was refused took parts");
	MUST(baton_parts_result(parts, &back));
	baton_parts_release(parts);
	baton_function_release(f);
	baton_provided_release(gives);
	baton_provided_release(plain);
}

static void in_a_session(baton_session *s) {
	baton_value two[2] = {BATON_VALUE_INIT, BATON_VALUE_INIT}, out, deep = BATON_VALUE_INIT;
	const char *const names[2] = {"a", "a"};
	baton_parameter parameter[2] = {{"x", "int", NULL, BATON_BY_EITHER, 0}, {"x", NULL, NULL, BATON_BY_EITHER, 0}};
	baton_function_options o = BATON_FUNCTION_OPTIONS_INIT;
	baton_provided *p;
	baton_pending *pending;
	baton_function *f;
	DLManagedTensorVersioned *t;
	int levels = 0;
	states_released = 0;
	ARGUMENT(baton_provide(s, NULL, NULL, no_function, NULL, state_released, &p));
	ARGUMENT(baton_provide(s, "no name", NULL, no_function, NULL, state_released, &p));
	ARGUMENT(baton_provide(s, "f", NULL, NULL, NULL, state_released, &p));
	ARGUMENT(baton_provide(s, "f", NULL, no_function, NULL, state_released, NULL));
	o.count = 1;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p)); // without parameters
	o.parameters = parameter;
	o.count = 2;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p)); // one name twice
	o.count = 1;
	o.no_parameters = BATON_YES;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
	o.no_parameters = BATON_NO;
	o.concurrency = 1025;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
	o.concurrency = 0;
	o.replace = 7;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
	o.replace = BATON_DEFAULT;
	o.parts = 2;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
	o.parts = BATON_DEFAULT;
	o.over_nats = -2;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
	o.over_nats = BATON_DEFAULT;
	o.reserved = 1;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
	o.reserved = 0;
	o.linger_ns = -1;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
	o.linger_ns = 0;
	o.parameter_size = 8;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
	o.parameter_size = sizeof(baton_parameter);
	parameter[0].by = 9;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
	parameter[0].by = BATON_BY_POSITION;
	MUST(filled(s, 1, 1, &t));
	MUST(baton_value_of_tensor(NULL, t, &out));
	baton_tensor_release(t);
	parameter[0].otherwise = &out;
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p)); // a tensor
	baton_value_release(&out);
	parameter[0].otherwise = NULL;
	static const char *const odd_types[] = {"", "int|", "float99", "int\n", "m:A B"};
	for (size_t i = 0; i < sizeof odd_types / sizeof *odd_types; i++) {
		parameter[0].types = odd_types[i];
		ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
		if (!strstr(baton_last_error(), "the parameter x has "))
			fatal("the types of a parameter");
	}
	parameter[0].types = "int";
	static const char *const odd_names[] = {"", "a b", "a\x1b[31m"};
	for (size_t i = 0; i < sizeof odd_names / sizeof *odd_names; i++) {
		parameter[0].name = odd_names[i];
		ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
		if (!strstr(baton_last_error(), "parameter 1 has "))
			fatal("the name of a parameter");
	}
	parameter[0].name = "x";
	o.result = "float99";
	ARGUMENT(baton_provide(s, "f", &o, no_function, NULL, state_released, &p));
	if (!strstr(baton_last_error(), "the result has the type float99, which is none"))
		fatal("the types of a result");
	o.result = NULL;
	ARGUMENT(baton_provide(s, "f@", &o, no_function, NULL, state_released, &p));
	ARGUMENT(baton_provide(s, "f@1\n", &o, no_function, NULL, state_released, &p));
	if (states_released != 27)
		fatal("the state of a function that was refused");

	MUST(baton_provide(s, "f", NULL, no_function, NULL, NULL, &p));
	REFUSED(baton_call(s, "f", NULL, 0, NULL, &out, BATON_FOREVER), BATON_REMOTE);
	if (strcmp(baton_last_detail("kind"), "error") != 0 || !strstr(baton_last_detail("message"), "1000"))
		fatal("a number that is no status");
	ARGUMENT(baton_call(s, "f", NULL, 1, NULL, &out, 0));
	static const char *const named_alike[] = {"k", "k"};
	ARGUMENT(baton_call(s, "f", two, 2, named_alike, &out, BATON_FOREVER));
	if (!strstr(baton_last_error(), "the argument k is given twice"))
		fatal("two arguments of one name");
	ARGUMENT(baton_call(s, "f", two, -1, NULL, &out, 0));
	ARGUMENT(baton_call(s, NULL, two, 1, NULL, &out, 0));
	ARGUMENT(baton_call(s, "f", two, 1, NULL, NULL, 0));
	// What no value can be is found where it is sent.
	MUST(baton_value_of_dict(names, two, 2, &out));
	ARGUMENT(baton_call(s, "f", &out, 1, NULL, &two[0], BATON_FOREVER));
	baton_value_release(&out);
	MUST(baton_value_of_dataclass("no class", names, two, 1, &out));
	ARGUMENT(baton_call(s, "f", &out, 1, NULL, &two[0], BATON_FOREVER));
	baton_value_release(&out);
	for (baton_status status = BATON_OK; status == BATON_OK; levels++) {
		status = baton_value_of_list(&deep, 1, &out);
		if (status == BATON_OK) {
			baton_value_release(&deep);
			deep = out;
		}
	}
	if (levels != 101)
		fatal("how deep a list is");
	baton_value_release(&deep);

	MUST(baton_function_open(s, "f", &f, 0));
	MUST(baton_function_submit(f, NULL, 0, NULL, &pending, BATON_FOREVER));
	REFUSED(baton_pending_result(pending, &out), BATON_REMOTE);
	REFUSED(baton_pending_result(pending, &out), BATON_CLOSED);
	MUST(baton_pending_wait(pending, 0));
	MUST(baton_pending_cancel(pending));
	baton_pending_release(pending);
	baton_provided_release(p);
	REFUSED(baton_function_call(f, NULL, 0, NULL, &out, BATON_FOREVER), BATON_NO_PROVIDER);
	baton_function_release(f);
	REFUSED(baton_function_open(s, "g", &f, 1), BATON_NOT_FOUND);
	REFUSED(baton_function_remove(s, "g", NULL), BATON_NOT_FOUND);
}

int main(void) {
	baton_session *s;
	without_a_session();
	MUST(baton_connect(NULL, &s));
	in_a_session(s);
	functions_as_values(s);
	baton_session_release(s);
	return wrong;
}
