/* What the files of the stand-in share. */
#ifndef STANDIN_H
#define STANDIN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "driver.h"

#define MAX_GPUS 8
#define GRANULARITY ((size_t)2 << 20)

/* One GPU of the machine; its number is the same in all processes. */
struct gpu {
	char dir[512]; /* holds a file for each allocation that is not freed */
	CUuuid uuid;
	size_t total;
};

/* The machine, and the devices of it that this process may see. */
extern struct gpu gpus[MAX_GPUS];
extern int gpu_count;
extern int visible[MAX_GPUS]; /* device → GPU */
extern int visible_count;
extern char standin_dir[400];

/* A device's primary context. */
struct context {
	int device;
	int retained;
	atomic_int sticky; /* the error of a kernel; every later call gives it */
	struct stream *legacy;
};

/* enter.c: what begins each call: it is counted, may be told to fail, and is
 * refused after a fork, before cuInit and without a context. */
enum need { NEED_NOTHING, NEED_INIT, NEED_CONTEXT };
CUresult enter(const char *name, enum need need);
#define ENTER(need)                                   \
	do {                                          \
		CUresult refused_ = enter(__func__, need); \
		if (refused_)                         \
			return refused_;              \
	} while (0)
bool lacking(const char *feature); /* named by BATON_STANDIN_LACKS */

/* context.c */
extern __thread struct context *current;
struct context *context_of(int device);
int gpu_of(int device); /* -1: no such device */
int device_with_uuid(const char uuid[16]);

/* store.c: memory of the machine's GPUs. It lives as long as any descriptor or
 * mapping of it, in any process. */
int store_create(int gpu, size_t size, bool named, char path[600]); /* descriptor, or -1 with errno */
size_t store_used(int gpu);

/* space.c: this process's device addresses. None of them can be touched by the
 * processor: what a stream reads or writes is found here. */
enum range_kind { RANGE_VMM, RANGE_ALLOC, RANGE_ASYNC, RANGE_LEGACY, RANGE_HOST };
struct range {
	struct range *next;
	enum range_kind kind;
	CUdeviceptr at;
	size_t size;
	char *memory; /* where the stand-in itself reaches it */
	int access;
	int device;
	void *owner; /* of RANGE_HOST: the host's address */
	char path[600]; /* of RANGE_ALLOC and RANGE_LEGACY */
	int peer, peer_fd, opens; /* of RANGE_LEGACY: exporter, its lock, count */
	uint64_t peer_start;
};
extern pthread_mutex_t space_lock; /* guards ranges and reservations */
CUdeviceptr space_reserve(size_t size);
void space_release(CUdeviceptr at, size_t size);
struct range *range_add(enum range_kind kind, CUdeviceptr at, size_t size, char *memory, int access);
struct range *range_find(CUdeviceptr at); /* that has this address */
struct range *range_next(struct range *r); /* NULL: the first */
void range_remove(struct range *r);       /* unmaps; the caller has space_lock */
char *reach(CUdeviceptr at, size_t size, bool write); /* NULL: a fault */
bool registered(const void *host, size_t size);
uint64_t start_time(int pid); /* 0: there is no such process */

/* stream.c: work is done in order by a thread of each stream, later. */
enum work_kind { WORK_COPY, WORK_FILL8, WORK_FILL32, WORK_WRITE, WORK_WAIT };
struct work {
	enum work_kind kind;
	CUdeviceptr to, from;
	void *host_to;
	const void *host_from;
	char *staged; /* a copy of pageable memory, freed with the work */
	size_t size;
	uint64_t value;
	unsigned flags;
};
CUresult enqueue(CUstream s, struct work *w, bool wait);
CUresult drain(struct context *c); /* waits for all streams of a context */
struct stream *stream_make(struct context *c, bool blocking);
CUresult perform(const struct work *w); /* copy.c */

#endif
