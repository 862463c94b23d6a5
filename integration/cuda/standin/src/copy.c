/* What streams do: copies, fills, values written and waited for; and host memory
 * that they may reach. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

static bool meets(uint64_t have, uint64_t want, unsigned how)
{
	switch (how & 3) {
	case WAIT_GEQ:
		return (int64_t)(have - want) >= 0;
	case WAIT_EQ:
		return have == want;
	case WAIT_AND:
		return (have & want) != 0;
	default:
		return ~(have | want) != 0;
	}
}

CUresult perform(const struct work *w)
{
	char *to = w->host_to, *value;
	const char *from = w->staged ? w->staged : w->host_from;
	if (w->kind != WORK_WAIT && !to && !(to = reach(w->to, w->size, true)))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	switch (w->kind) {
	case WORK_COPY:
		if (!from && !(from = reach(w->from, w->size, false)))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		memmove(to, from, w->size);
		break;
	case WORK_FILL8:
		memset(to, (int)w->value, w->size);
		break;
	case WORK_FILL32:
		for (size_t i = 0; i < w->size / 4; i++)
			((uint32_t *)(void *)to)[i] = (uint32_t)w->value;
		break;
	case WORK_WRITE:
		atomic_store((_Atomic uint64_t *)(void *)to, w->value);
		break;
	case WORK_WAIT:
		while ((value = reach(w->to, 8, false)) && !meets(atomic_load((_Atomic uint64_t *)(void *)value), w->value, w->flags))
			usleep(20);
		if (!value)
			return CUDA_ERROR_ILLEGAL_ADDRESS;
	}
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
	ENTER(NEED_CONTEXT);
	return enqueue(stream, &(struct work){ .kind = WORK_COPY, .to = to, .from = from, .size = size }, false);
}

/* Pageable memory is staged before the call returns; what is registered is read
 * when the stream comes to it. */
static CUresult to_device(CUdeviceptr to, const void *from, size_t size, CUstream stream, bool wait)
{
	struct work w = { .kind = WORK_COPY, .to = to, .host_from = from, .size = size };
	if (!wait && !registered(from, size)) {
		w.staged = malloc(size + 1);
		if (!w.staged)
			return CUDA_ERROR_OUT_OF_MEMORY;
		memcpy(w.staged, from, size);
	}
	return enqueue(stream, &w, wait);
}

EXPORTED CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
	ENTER(NEED_CONTEXT);
	return to_device(to, from, size, stream, false);
}

EXPORTED CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
	ENTER(NEED_CONTEXT);
	return to_device(to, from, size, STREAM_LEGACY, true);
}

static CUresult to_host(void *to, CUdeviceptr from, size_t size, CUstream stream, bool wait)
{
	struct work w = { .kind = WORK_COPY, .host_to = to, .from = from, .size = size };
	return enqueue(stream, &w, wait || !registered(to, size));
}

EXPORTED CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
	ENTER(NEED_CONTEXT);
	return to_host(to, from, size, stream, false);
}

EXPORTED CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
	ENTER(NEED_CONTEXT);
	return to_host(to, from, size, STREAM_LEGACY, true);
}

EXPORTED CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
	ENTER(NEED_CONTEXT);
	return enqueue(stream, &(struct work){ .kind = WORK_FILL8, .to = to, .value = value, .size = count }, false);
}

EXPORTED CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
	ENTER(NEED_CONTEXT);
	if (to % 4)
		return CUDA_ERROR_INVALID_VALUE;
	return enqueue(stream, &(struct work){ .kind = WORK_FILL32, .to = to, .value = value, .size = 4 * count }, false);
}

EXPORTED CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags)
{
	ENTER(NEED_CONTEXT);
	if (lacking("memops"))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (at % 8 || flags > 1 || !reach(at, 8, true))
		return CUDA_ERROR_INVALID_VALUE;
	return enqueue(stream, &(struct work){ .kind = WORK_WRITE, .to = at, .size = 8, .value = value }, false);
}

EXPORTED CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags)
{
	ENTER(NEED_CONTEXT);
	if (lacking("memops"))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (at % 8 || flags > 3 || !reach(at, 8, false))
		return CUDA_ERROR_INVALID_VALUE;
	return enqueue(stream, &(struct work){ .kind = WORK_WAIT, .to = at, .value = value, .flags = flags }, false);
}

/* Whether all of a range is mapped here, and may be written. */
static bool mapped(uintptr_t at, size_t size, bool write)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[1024], r, w;
	unsigned long from, to;
	uintptr_t next = at;
	while (f && next < at + size && fgets(line, sizeof line, f))
		if (sscanf(line, "%lx-%lx %c%c", &from, &to, &r, &w) == 4 && from <= next && next < to && r == 'r' && (!write || w == 'w'))
			next = to;
	if (f)
		fclose(f);
	return next >= at + size;
}

EXPORTED CUresult cuMemHostRegister_v2(void *host, size_t size, unsigned flags)
{
	ENTER(NEED_CONTEXT);
	bool read_only = flags & HOST_READ_ONLY;
	if (!host || !size || flags & ~(unsigned)(HOST_PORTABLE | HOST_DEVICEMAP | HOST_READ_ONLY))
		return CUDA_ERROR_INVALID_VALUE;
	if (read_only && lacking("read-only-register"))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!mapped((uintptr_t)host, size, !read_only))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult err = CUDA_SUCCESS;
	pthread_mutex_lock(&space_lock);
	for (struct range *r = range_next(NULL); r; r = range_next(r))
		if (r->kind == RANGE_HOST && (char *)r->owner < (char *)host + size && (char *)host < (char *)r->owner + r->size)
			err = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	size_t pages = (size + 4095) / 4096 * 4096 + 4096;
	/* An address of its own, so that no test takes the host's for the device's. */
	CUdeviceptr at = err ? 0 : space_reserve(pages);
	if (at) {
		struct range *r = range_add(RANGE_HOST, at + (uintptr_t)host % 4096, size, host, read_only ? ACCESS_READ : ACCESS_READWRITE);
		if (r)
			r->owner = host;
	}
	if (!err && !at)
		err = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_unlock(&space_lock);
	return err;
}

static struct range *of_host(void *host)
{
	for (struct range *r = range_next(NULL); r; r = range_next(r))
		if (r->kind == RANGE_HOST && (char *)host >= (char *)r->owner && (char *)host < (char *)r->owner + r->size)
			return r;
	return NULL;
}

EXPORTED CUresult cuMemHostUnregister(void *host)
{
	ENTER(NEED_CONTEXT);
	drain(current);
	pthread_mutex_lock(&space_lock);
	struct range *r = of_host(host);
	bool right = r && r->owner == host;
	if (right) {
		size_t pages = (r->size + 4095) / 4096 * 4096 + 4096;
		space_release(r->at - (uintptr_t)host % 4096, pages);
		range_remove(r);
	}
	pthread_mutex_unlock(&space_lock);
	return right ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

EXPORTED CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *at, void *host, unsigned flags)
{
	ENTER(NEED_CONTEXT);
	pthread_mutex_lock(&space_lock);
	struct range *r = flags ? NULL : of_host(host);
	if (r)
		*at = r->at + (CUdeviceptr)((char *)host - (char *)r->owner);
	pthread_mutex_unlock(&space_lock);
	return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
