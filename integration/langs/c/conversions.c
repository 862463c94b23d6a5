// What becomes of arguments where a parameter has types, as protocol/testdata/conversions.json says for every language. Each
// line of the standard input is a row of its tables: "value", what is given, the types, and what the function has or refused;
// or "call", the arguments, and given or what the error names.

#include "calls.h"

static int64_t runs;

static int same(void *state, const baton_value *args, int32_t count, baton_value *result) {
	(void)state;
	runs++;
	return count == 1 ? (int)baton_value_copy(&args[0], result) : BATON_OK;
}

static const struct {
	const char *name;
	uint8_t code;
} families[] = {{"bool", kDLBool}, {"bfloat", kDLBfloat}, {"complex", kDLComplex}, {"uint", kDLUInt}, {"int", kDLInt}, {"float", kDLFloat}};

static DLDataType dtype_of(const char *text) {
	DLDataType d = {0, 8, 1};
	for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
		const size_t n = strlen(families[i].name);
		if (strncmp(text, families[i].name, n) != 0)
			continue;
		d.code = families[i].code;
		if (text[n])
			d.bits = (uint8_t)atoi(text + n);
		return d;
	}
	fprintf(stderr, "no dtype: %s\n", text);
	exit(1);
}

// Reads bytes that are written as pairs of hexadecimal digits; how many there are.
static size_t bytes_of(const char *text, uint8_t *to) {
	size_t n = 0;
	unsigned byte;
	for (; sscanf(text + 2 * n, "%2x", &byte) == 1; n++)
		to[n] = (uint8_t)byte;
	return n;
}

static uint8_t *data_of(const DLManagedTensorVersioned *t) { return (uint8_t *)t->dl_tensor.data + t->dl_tensor.byte_offset; }

static baton_value tensor_of(const char *text) {
	char dtype[16], shape[8], hex[64];
	const int64_t one = 1;
	DLManagedTensorVersioned *t;
	baton_value v;
	CHECK(sscanf(text, "%15s %7s %63s", dtype, shape, hex) == 3);
	MUST(baton_alloc(session, dtype_of(dtype), strcmp(shape, "1d") == 0, &one, &t));
	bytes_of(hex, data_of(t));
	MUST(baton_value_of_tensor(session, t, &v));
	baton_tensor_release(t);
	return v;
}

// Makes the value of a text.
static baton_value value_of(const char *text) {
	const size_t n = strcspn(text, " ");
	const char *rest = text[n] ? text + n + 1 : "";
	uint8_t bytes[64];
	baton_value v = BATON_VALUE_INIT;
#define IS(kind) (n == strlen(kind) && strncmp(text, kind, n) == 0)
	if (IS("bool"))
		v = baton_value_of_bool(strcmp(rest, "true") == 0);
	else if (IS("int"))
		MUST(baton_value_of_digits(rest, &v));
	else if (IS("float"))
		v = baton_value_of_float(strtod(rest, NULL));
	else if (IS("str"))
		MUST(baton_value_of_text(rest, &v));
	else if (IS("bytes"))
		MUST(baton_value_of_bytes(bytes, bytes_of(rest, bytes), &v));
	else if (IS("list"))
		MUST(baton_value_of_list(NULL, 0, &v));
	else if (IS("tuple"))
		MUST(baton_value_of_tuple(NULL, 0, &v));
	else if (IS("dict"))
		MUST(baton_value_of_dict(NULL, NULL, 0, &v));
	else if (IS("dtype"))
		v = baton_value_of_dtype(dtype_of(rest));
	else if (IS("tensor"))
		return tensor_of(rest);
	else
		CHECK(IS("none"));
	return v;
}

static int same_tensors(const baton_value *a, const baton_value *b) {
	DLManagedTensorVersioned *x, *y;
	MUST(baton_value_as_tensor(a, &x));
	MUST(baton_value_as_tensor(b, &y));
	const DLTensor *s = &x->dl_tensor, *t = &y->dl_tensor;
	const int is = s->ndim == t->ndim && memcmp(&s->dtype, &t->dtype, sizeof s->dtype) == 0 &&
	               memcmp(data_of(x), data_of(y), s->dtype.bits / 8) == 0;
	baton_tensor_release(x);
	baton_tensor_release(y);
	return is;
}

static int same_values(const baton_value *a, const baton_value *b) {
	const int32_t kind = baton_value_kind(a);
	const void *first, *second;
	const char *text, *other;
	size_t n, m;
	char *digits, *more;
	double f, g;
	DLDataType d, e;
	int is;
	if (kind != baton_value_kind(b))
		return 0;
	switch (kind) {
	case BATON_KIND_BOOL:
	case BATON_KIND_INT:
		MUST(baton_value_as_digits(a, &digits));
		MUST(baton_value_as_digits(b, &more));
		is = strcmp(digits, more) == 0;
		baton_string_free(digits);
		baton_string_free(more);
		return is;
	case BATON_KIND_FLOAT:
		MUST(baton_value_as_float(a, &f));
		MUST(baton_value_as_float(b, &g));
		return memcmp(&f, &g, sizeof f) == 0 || (f != f && g != g);
	case BATON_KIND_TEXT:
		MUST(baton_value_as_text(a, &text, &n));
		MUST(baton_value_as_text(b, &other, &m));
		return n == m && memcmp(text, other, n) == 0;
	case BATON_KIND_BYTES:
		MUST(baton_value_as_bytes(a, &first, &n));
		MUST(baton_value_as_bytes(b, &second, &m));
		return n == m && memcmp(first, second, n) == 0;
	case BATON_KIND_DTYPE:
		MUST(baton_value_as_dtype(a, &d));
		MUST(baton_value_as_dtype(b, &e));
		return memcmp(&d, &e, sizeof d) == 0;
	case BATON_KIND_TENSOR:
		return same_tensors(a, b);
	default: // None, and what is empty in the table
		return 1;
	}
}

static baton_provided *provide(const char *name, const baton_parameter *parameters, size_t count) {
	baton_function_options o = BATON_FUNCTION_OPTIONS_INIT;
	baton_provided *p;
	o.parameters = parameters;
	o.count = count;
	MUST(baton_provide(session, name, &o, same, NULL, NULL, &p));
	return p;
}

static void value_row(int row, const char *given, const char *types, const char *wanted) {
	const baton_parameter x = {"x", types, NULL, BATON_BY_EITHER, 0};
	char name[32];
	snprintf(name, sizeof name, "conversions/%d", row);
	baton_provided *p = provide(name, &x, 1);
	baton_value v = value_of(given), got = BATON_VALUE_INIT, want = BATON_VALUE_INIT;
	const int64_t before = runs;
	const baton_status s = call(name, &v, 1, &got);
	int right;
	if (strcmp(wanted, "refused") == 0) {
		right = s == BATON_INVALID_ARGUMENT && strstr(baton_last_error(), "parameter x") && runs == before;
	} else {
		want = value_of(wanted);
		right = s == BATON_OK && same_values(&got, &want);
	}
	if (!right) {
		fprintf(stderr, "%s for %s is %s, and not %s\n", given, types, s ? baton_last_error() : "another value", wanted);
		exit(1);
	}
	baton_value_release(&v);
	baton_value_release(&got);
	baton_value_release(&want);
	baton_provided_release(p);
}

// Whether a word stands in what an error says before it tells what the function takes.
static int names(const char *word) {
	const char *text = baton_last_error(), *end = strstr(text, "; the function takes");
	const size_t n = strlen(word);
	for (const char *at = text; end && (at = strstr(at, word)) && at < end; at++)
		if ((at == text || !strchr("abcdefghijklmnopqrstuvwxyz", at[-1])) && !strchr("abcdefghijklmnopqrstuvwxyz", at[n]))
			return 1;
	return 0;
}

static void call_row(char *given, const char *wanted) {
	baton_value args[8], got = BATON_VALUE_INIT;
	const char *called[8];
	char *all = strdup(given), *next = all;
	int32_t count = 0;
	while (next && *next && count < 8) {
		char *end = strstr(next, " | ");
		if (end)
			*end = 0;
		char *is = strchr(next, '=');
		called[count] = NULL;
		if (is) {
			*is = 0;
			called[count] = next;
			next = is + 1;
		}
		args[count++] = value_of(next);
		next = end ? end + 3 : NULL;
	}
	const int64_t before = runs;
	const baton_status s = baton_call(session, "conversions/calls", args, count, called, &got, BATON_FOREVER);
	const int right = strcmp(wanted, "given") == 0 ? s == BATON_OK && runs == before + 1
	                                                : s == BATON_INVALID_ARGUMENT && names(wanted) && runs == before;
	if (!right) {
		fprintf(stderr, "%s is %s, and not %s\n", given, s ? baton_last_error() : "given", wanted);
		exit(1);
	}
	while (count > 0)
		baton_value_release(&args[--count]);
	baton_value_release(&got);
	free(all);
}

int main(void) {
	const baton_value two = baton_value_of_float(2);
	const baton_parameter bound[] = {{"p", "int64", NULL, BATON_BY_POSITION, 0},
	                                 {"a", "int64", NULL, BATON_BY_EITHER, 0},
	                                 {"b", "float", &two, BATON_BY_NAME, 0}};
	char line[512];
	int rows = 0;
	MUST(baton_connect(NULL, &session));
	baton_provided *calls = provide("conversions/calls", bound, 3);
	for (; fgets(line, sizeof line, stdin); rows++) {
		char *parts[4] = {line};
		line[strcspn(line, "\n")] = 0;
		for (int i = 1; i < 4; i++) {
			parts[i] = strchr(parts[i - 1], '\t');
			if (!parts[i])
				break;
			*parts[i]++ = 0;
		}
		if (strcmp(parts[0], "value") == 0)
			value_row(rows, parts[1], parts[2], parts[3]);
		else
			call_row(parts[1], parts[2]);
	}
	baton_provided_release(calls);
	baton_session_release(session);
	printf("%d\n", rows);
	return 0;
}
