/* Memory as cudaMalloc gives it, and its handles for other processes. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "standin.h"

struct ticket {
	char magic[8];
	int pid, block;
	uint64_t start, size;
	char uuid[16];
	char unused[16];
};
_Static_assert(sizeof(struct ticket) == sizeof(CUipcMemHandle), "a handle has 64 bytes");

static CUresult allocate(CUdeviceptr *at, size_t size, enum range_kind kind)
{
	if (size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	size_t whole = (size + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
	char path[600];
	int fd = store_create(gpu_of(current->device), whole, true, path);
	if (fd < 0)
		return errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
	char *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	CUdeviceptr p = memory == MAP_FAILED ? 0 : space_reserve(whole);
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	madvise(memory, whole, MADV_DONTFORK);
	pthread_mutex_lock(&space_lock);
	struct range *r = range_add(kind, p, whole, memory, ACCESS_READWRITE);
	if (r) {
		r->device = current->device;
		snprintf(r->path, sizeof r->path, "%s", path);
	}
	pthread_mutex_unlock(&space_lock);
	*at = p;
	return r ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORTED CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t size)
{
	ENTER(NEED_CONTEXT);
	return allocate(at, size, RANGE_ALLOC);
}

/* As from the device's pool, which has no legacy handles. */
EXPORTED CUresult cuMemAllocAsync(CUdeviceptr *at, size_t size, CUstream stream)
{
	ENTER(NEED_CONTEXT);
	(void)stream;
	return allocate(at, size, RANGE_ASYNC);
}

/* The file whose shared lock tells that an importer has a block open. */
static int openers(const char *path)
{
	char name[640];
	snprintf(name, sizeof name, "%s.open", path);
	return open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

EXPORTED CUresult cuMemFree_v2(CUdeviceptr at)
{
	ENTER(NEED_CONTEXT);
	drain(current);
	pthread_mutex_lock(&space_lock);
	struct range *r = range_find(at);
	bool right = r && r->at == at && (r->kind == RANGE_ALLOC || r->kind == RANGE_ASYNC);
	if (right) {
		int fd = openers(r->path);
		if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
			fprintf(stderr, "stand-in: memory at %#llx is freed while another process has its handle open: undefined behaviour\n", (ull)at);
			abort();
		}
		close(fd);
		char name[640];
		snprintf(name, sizeof name, "%s.open", r->path);
		unlink(name);
		space_release(r->at, r->size);
		range_remove(r);
	}
	pthread_mutex_unlock(&space_lock);
	return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORTED CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr at)
{
	ENTER(NEED_CONTEXT);
	pthread_mutex_lock(&space_lock);
	struct range *r = range_find(at);
	if (r) {
		*base = r->at;
		*size = r->size;
	}
	pthread_mutex_unlock(&space_lock);
	return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORTED CUresult cuPointerGetAttribute(void *to, int attribute, CUdeviceptr at)
{
	ENTER(NEED_CONTEXT);
	CUresult err = CUDA_SUCCESS;
	pthread_mutex_lock(&space_lock);
	struct range *r = range_find(at);
	if (!r || r->kind == RANGE_HOST)
		err = CUDA_ERROR_INVALID_VALUE;
	else
		switch (attribute) {
		case POINTER_DEVICE_ORDINAL:
			*(int *)to = r->device;
			break;
		case POINTER_LEGACY_IPC:
			*(int *)to = r->kind == RANGE_ALLOC;
			break;
		case POINTER_RANGE_START:
			*(CUdeviceptr *)to = r->at;
			break;
		case POINTER_RANGE_SIZE:
			*(size_t *)to = r->size;
			break;
		default:
			err = CUDA_ERROR_INVALID_VALUE;
		}
	pthread_mutex_unlock(&space_lock);
	return err;
}

EXPORTED CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at)
{
	ENTER(NEED_CONTEXT);
	struct ticket t = { .pid = getpid(), .start = start_time(getpid()) };
	memcpy(t.magic, "legacy", 7);
	pthread_mutex_lock(&space_lock);
	struct range *r = range_find(at);
	bool right = r && r->kind == RANGE_ALLOC && r->at == at; /* the manual asks for the base */
	if (right) {
		sscanf(strrchr(r->path, '/'), "/block-%*d-%d-legacy", &t.block);
		t.size = r->size;
		memcpy(t.uuid, gpus[gpu_of(r->device)].uuid.bytes, 16);
	}
	pthread_mutex_unlock(&space_lock);
	memcpy(handle, &t, sizeof t);
	return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static struct range *opened(const char *path)
{
	for (struct range *r = range_next(NULL); r; r = range_next(r))
		if (r->kind == RANGE_LEGACY && !strcmp(r->path, path))
			return r;
	return NULL;
}

EXPORTED CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags)
{
	ENTER(NEED_CONTEXT);
	struct ticket t;
	memcpy(&t, &handle, sizeof t);
	if (flags != 1)
		return CUDA_ERROR_INVALID_VALUE;
	if (memcmp(t.magic, "legacy", 7))
		return CUDA_ERROR_INVALID_HANDLE;
	if (t.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	int device = device_with_uuid(t.uuid);
	if (device < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (device != current->device)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (start_time(t.pid) != t.start)
		return CUDA_ERROR_INVALID_VALUE;
	char path[600];
	snprintf(path, sizeof path, "%s/block-%d-%d-legacy", gpus[gpu_of(device)].dir, t.pid, t.block);
	CUresult err = CUDA_SUCCESS;
	pthread_mutex_lock(&space_lock);
	struct range *r = opened(path);
	if (r) {
		r->opens++;
		*at = r->at;
		goto out;
	}
	err = CUDA_ERROR_MAP_FAILED;
	int fd = open(path, O_RDWR | O_CLOEXEC), lock = fd < 0 ? -1 : openers(path);
	if (fd < 0 || lock < 0 || flock(lock, LOCK_SH) < 0)
		goto close;
	char *memory = mmap(NULL, t.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CUdeviceptr p = memory == MAP_FAILED ? 0 : space_reserve(t.size);
	if (!p || !(r = range_add(RANGE_LEGACY, p, t.size, memory, ACCESS_READWRITE)))
		goto close;
	madvise(memory, t.size, MADV_DONTFORK);
	r->device = device;
	r->peer = t.pid;
	r->peer_start = t.start;
	r->peer_fd = lock;
	r->opens = 1;
	snprintf(r->path, sizeof r->path, "%s", path);
	lock = -1;
	*at = p;
	err = CUDA_SUCCESS;
close:
	if (fd >= 0)
		close(fd);
	if (lock >= 0)
		close(lock);
out:
	pthread_mutex_unlock(&space_lock);
	return err;
}

EXPORTED CUresult cuIpcCloseMemHandle(CUdeviceptr at)
{
	ENTER(NEED_CONTEXT);
	drain(current);
	pthread_mutex_lock(&space_lock);
	struct range *r = range_find(at);
	bool right = r && r->at == at && r->kind == RANGE_LEGACY;
	if (right && --r->opens == 0) {
		space_release(r->at, r->size);
		range_remove(r);
	}
	pthread_mutex_unlock(&space_lock);
	return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
