/* This process's device addresses. They are reserved without access, so that a
 * processor that touches one faults, as with a real GPU. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "standin.h"

pthread_mutex_t space_lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;

CUdeviceptr space_reserve(size_t size)
{
	/* Over-reserve, so that the address can be a multiple of the granularity. */
	char *p = mmap(NULL, size + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return 0;
	uintptr_t at = ((uintptr_t)p + GRANULARITY - 1) & ~(uintptr_t)(GRANULARITY - 1);
	if (at > (uintptr_t)p)
		munmap(p, at - (uintptr_t)p);
	uintptr_t end = (uintptr_t)p + size + GRANULARITY;
	if (end > at + size)
		munmap((void *)(at + size), end - (at + size));
	return at;
}

void space_release(CUdeviceptr at, size_t size) { munmap((void *)(uintptr_t)at, size); }

struct range *range_add(enum range_kind kind, CUdeviceptr at, size_t size, char *memory, int access)
{
	struct range *r = calloc(1, sizeof *r);
	if (!r)
		return NULL;
	r->kind = kind;
	r->at = at;
	r->size = size;
	r->memory = memory;
	r->access = access;
	r->peer_fd = -1;
	r->next = ranges;
	ranges = r;
	return r;
}

struct range *range_find(CUdeviceptr at)
{
	for (struct range *r = ranges; r; r = r->next)
		if (at >= r->at && at - r->at < r->size)
			return r;
	return NULL;
}

struct range *range_next(struct range *r) { return r ? r->next : ranges; }

void range_remove(struct range *r)
{
	for (struct range **p = &ranges; *p; p = &(*p)->next)
		if (*p == r) {
			*p = r->next;
			break;
		}
	if (r->kind != RANGE_HOST)
		munmap(r->memory, r->size);
	if (r->peer_fd >= 0)
		close(r->peer_fd);
	free(r);
}

uint64_t start_time(int pid)
{
	char path[64], text[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	FILE *f = fopen(path, "re");
	size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
	if (f)
		fclose(f);
	text[n] = 0;
	char *p = strrchr(text, ')'), state = 0;
	uint64_t start = 0;
	if (p && sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lu", &state, &start) == 2 && state != 'Z')
		return start;
	return 0;
}

/* Memory of another process's cudaMalloc goes with it. */
static bool gone(const struct range *r) { return r->kind == RANGE_LEGACY && start_time(r->peer) != r->peer_start; }

char *reach(CUdeviceptr at, size_t size, bool write)
{
	char *p = NULL;
	pthread_mutex_lock(&space_lock);
	struct range *r = range_find(at);
	int need = write ? ACCESS_READWRITE : ACCESS_READ;
	if (r && size <= r->size - (at - r->at) && (r->access & need) == need && !gone(r))
		p = r->memory + (at - r->at);
	pthread_mutex_unlock(&space_lock);
	return p;
}

bool registered(const void *host, size_t size)
{
	bool yes = false;
	pthread_mutex_lock(&space_lock);
	for (struct range *r = ranges; r && !yes; r = r->next) {
		char *from = r->owner;
		yes = r->kind == RANGE_HOST && (char *)host >= from && (char *)host + size <= from + r->size;
	}
	pthread_mutex_unlock(&space_lock);
	return yes;
}
