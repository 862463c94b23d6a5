/* What begins each call, and what tests ask the stand-in for. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

#define MAX_NAMES 128

static pthread_mutex_t counts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct { const char *name; ull calls; } counts[MAX_NAMES];
static atomic_int initialised_in; /* process that called cuInit */

/* A fault told by standin_fault or BATON_STANDIN_FAULTS: name=code[@nth],…; the name * is every call. */
static struct fault { char name[64]; CUresult code; long nth, seen; } faults[16];
static int fault_count;
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

EXPORTED void standin_fault(const char *name, int code, long nth)
{
	pthread_mutex_lock(&counts_lock);
	struct fault *f = NULL;
	for (int i = 0; i < fault_count; i++)
		if (!strcmp(faults[i].name, name))
			f = &faults[i];
	if (!f && fault_count < 16)
		f = &faults[fault_count++];
	if (f) {
		snprintf(f->name, sizeof f->name, "%s", name);
		f->code = code;
		f->nth = nth;
		f->seen = 0;
	}
	pthread_mutex_unlock(&counts_lock);
}

static void read_faults(void)
{
	const char *env = getenv("BATON_STANDIN_FAULTS");
	char *copy = env ? strdup(env) : NULL, *save = NULL;
	for (char *word = copy ? strtok_r(copy, ",", &save) : NULL; word; word = strtok_r(NULL, ",", &save)) {
		char name[64];
		int code;
		long nth = 0;
		if (sscanf(word, "%63[^=]=%d@%ld", name, &code, &nth) >= 2)
			standin_fault(name, code, nth);
	}
	free(copy);
}

/* The calls made of a function; of all with NULL or no name. */
EXPORTED ull standin_calls(const char *name)
{
	ull sum = 0;
	pthread_mutex_lock(&counts_lock);
	for (int i = 0; i < MAX_NAMES && counts[i].name; i++)
		if (!name || !*name || !strcmp(counts[i].name, name))
			sum += counts[i].calls;
	pthread_mutex_unlock(&counts_lock);
	return sum;
}

static CUresult counted(const char *name)
{
	CUresult code = CUDA_SUCCESS;
	pthread_mutex_lock(&counts_lock);
	for (int i = 0; i < MAX_NAMES; i++) {
		if (!counts[i].name)
			counts[i].name = name;
		if (counts[i].name == name) {
			counts[i].calls++;
			break;
		}
	}
	for (int i = 0; i < fault_count; i++) {
		struct fault *f = &faults[i];
		if ((!strcmp(f->name, name) || !strcmp(f->name, "*")) && (f->nth == 0 || ++f->seen == f->nth)) {
			code = f->code;
			if (f->name[0] == '*')
				fprintf(stderr, "stand-in: told to fail %s\n", name);
		}
	}
	pthread_mutex_unlock(&counts_lock);
	return code;
}

void initialised(void) { atomic_store(&initialised_in, getpid()); }

CUresult enter(const char *name, enum need need)
{
	pthread_once(&read_once, read_faults);
	int pid = atomic_load(&initialised_in);
	if (pid && pid != getpid())
		return CUDA_ERROR_NOT_INITIALIZED; /* a forked child has no driver */
	CUresult told = counted(name);
	if (told)
		return told;
	if (need != NEED_NOTHING && !pid)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (need == NEED_CONTEXT) {
		if (!current)
			return CUDA_ERROR_INVALID_CONTEXT;
		return atomic_load(&current->sticky);
	}
	return CUDA_SUCCESS;
}

bool lacking(const char *feature)
{
	const char *env = getenv("BATON_STANDIN_LACKS");
	return env && strstr(env, feature);
}
