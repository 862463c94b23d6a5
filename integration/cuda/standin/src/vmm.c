/* Virtual memory management: allocations without an address, handed to other
 * processes as descriptors, mapped where the caller says. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "standin.h"

/* An allocation that this process has a handle of. */
struct allocation {
	struct allocation *next;
	int fd, device, types;
	size_t size;
};

struct reservation {
	struct reservation *next;
	CUdeviceptr at;
	size_t size;
};

static struct allocation *allocations;
static struct reservation *reservations;

/* What an exported descriptor says about its memory. */
struct parcel {
	char magic[8];
	char uuid[16];
	uint64_t size;
};
static const char magic[8] = "standin";

static struct allocation *find(CUhandle h)
{
	for (struct allocation *a = allocations; a; a = a->next)
		if ((CUhandle)(uintptr_t)a == h)
			return a;
	return NULL;
}

static CUhandle add(int fd, int device, int types, size_t size)
{
	struct allocation *a = calloc(1, sizeof *a);
	if (!a)
		return 0;
	a->fd = fd;
	a->device = device;
	a->types = types;
	a->size = size;
	pthread_mutex_lock(&space_lock);
	a->next = allocations;
	allocations = a;
	pthread_mutex_unlock(&space_lock);
	return (CUhandle)(uintptr_t)a;
}

static CUresult check(const CUmemAllocationProp *prop)
{
	if (lacking("vmm"))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!prop || prop->type != 1 || prop->location.type != 1)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->requestedHandleTypes != HANDLE_NONE && prop->requestedHandleTypes != HANDLE_POSIX_FD)
		return CUDA_ERROR_NOT_SUPPORTED;
	return gpu_of(prop->location.id) < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORTED CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *prop, int option)
{
	ENTER(NEED_CONTEXT);
	CUresult err = check(prop);
	(void)option;
	*size = GRANULARITY;
	return err;
}

EXPORTED CUresult cuMemCreate(CUhandle *handle, size_t size, const CUmemAllocationProp *prop, ull flags)
{
	ENTER(NEED_CONTEXT);
	CUresult err = check(prop);
	if (err)
		return err;
	if (flags || size == 0 || size % GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	char path[600];
	int fd = store_create(gpu_of(prop->location.id), size, false, path);
	if (fd < 0)
		return errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
	*handle = add(fd, prop->location.id, prop->requestedHandleTypes, size);
	return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORTED CUresult cuMemRelease(CUhandle handle)
{
	ENTER(NEED_CONTEXT);
	pthread_mutex_lock(&space_lock);
	struct allocation *a = find(handle);
	for (struct allocation **p = &allocations; a && *p; p = &(*p)->next)
		if (*p == a) {
			*p = a->next;
			break;
		}
	pthread_mutex_unlock(&space_lock);
	if (!a)
		return CUDA_ERROR_INVALID_VALUE;
	close(a->fd); /* mappings of it keep the memory */
	free(a);
	return CUDA_SUCCESS;
}

/* The descriptor is a socket with the memory in its queue: it keeps the memory
 * alive in whichever process has it, and it has no size, cannot be mapped and cannot be
 * reopened, so that no program takes it for a file. */
EXPORTED CUresult cuMemExportToShareableHandle(void *to, CUhandle handle, int type, ull flags)
{
	ENTER(NEED_CONTEXT);
	pthread_mutex_lock(&space_lock);
	struct allocation *a = find(handle);
	struct allocation copy = a ? *a : (struct allocation){ .fd = -1 };
	pthread_mutex_unlock(&space_lock);
	if (!a || !to || flags || type != HANDLE_POSIX_FD || !(copy.types & type))
		return CUDA_ERROR_INVALID_VALUE;
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	struct parcel p = { .size = copy.size };
	memcpy(p.magic, magic, sizeof magic);
	memcpy(p.uuid, gpus[gpu_of(copy.device)].uuid.bytes, 16);
	struct iovec io = { &p, sizeof p };
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = { { 0 } };
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &copy.fd, sizeof(int));
	ssize_t n = sendmsg(pair[0], &m, MSG_NOSIGNAL);
	close(pair[0]);
	if (n != (ssize_t)sizeof p) {
		close(pair[1]);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	memcpy(to, &pair[1], sizeof(int));
	return CUDA_SUCCESS;
}

/* The caller's descriptor is not consumed. */
EXPORTED CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *from, int type)
{
	ENTER(NEED_CONTEXT);
	if (type != HANDLE_POSIX_FD || lacking("vmm"))
		return CUDA_ERROR_NOT_SUPPORTED;
	struct parcel p;
	struct iovec io = { &p, sizeof p };
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	ssize_t n = recvmsg((int)(intptr_t)from, &m, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return CUDA_ERROR_INVALID_VALUE;
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int fd = -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&fd, CMSG_DATA(c), sizeof(int));
	if (fd < 0 || n != (ssize_t)sizeof p || memcmp(p.magic, magic, sizeof magic)) {
		if (fd >= 0)
			close(fd);
		return CUDA_ERROR_INVALID_VALUE;
	}
	int device = device_with_uuid(p.uuid);
	if (device < 0) {
		close(fd);
		return CUDA_ERROR_INVALID_DEVICE;
	}
	*handle = add(fd, device, HANDLE_POSIX_FD, p.size);
	return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORTED CUresult cuMemAddressReserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr hint, ull flags)
{
	ENTER(NEED_CONTEXT);
	(void)hint;
	if (flags || size == 0 || size % GRANULARITY || alignment > GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	struct reservation *r = calloc(1, sizeof *r);
	if (!r || !(r->at = space_reserve(size))) {
		free(r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	r->size = size;
	pthread_mutex_lock(&space_lock);
	r->next = reservations;
	reservations = r;
	pthread_mutex_unlock(&space_lock);
	*at = r->at;
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemAddressFree(CUdeviceptr at, size_t size)
{
	ENTER(NEED_CONTEXT);
	CUresult err = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&space_lock);
	for (struct reservation **p = &reservations; *p; p = &(*p)->next) {
		struct reservation *r = *p;
		if (r->at != at || r->size != size)
			continue;
		if (range_find(at)) /* still mapped */
			break;
		*p = r->next;
		space_release(at, size);
		free(r);
		err = CUDA_SUCCESS;
		break;
	}
	pthread_mutex_unlock(&space_lock);
	return err;
}

EXPORTED CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUhandle handle, ull flags)
{
	ENTER(NEED_CONTEXT);
	CUresult err = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&space_lock);
	struct allocation *a = find(handle);
	struct reservation *r = reservations;
	while (r && !(at >= r->at && at - r->at < r->size && size <= r->size - (at - r->at)))
		r = r->next;
	if (a && r && !flags && size && size % GRANULARITY == 0 && offset == 0 && size <= a->size && !range_find(at)) {
		char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
		struct range *g = NULL;
		if (memory != MAP_FAILED) {
			madvise(memory, size, MADV_DONTFORK);
			g = range_add(RANGE_VMM, at, size, memory, ACCESS_NONE);
		}
		if (g)
			g->device = a->device;
		err = g ? CUDA_SUCCESS : CUDA_ERROR_MAP_FAILED;
	}
	pthread_mutex_unlock(&space_lock);
	return err;
}

EXPORTED CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
	ENTER(NEED_CONTEXT);
	pthread_mutex_lock(&space_lock);
	struct range *r = range_find(at);
	bool right = r && r->kind == RANGE_VMM && r->at == at && r->size == size;
	if (right)
		range_remove(r);
	pthread_mutex_unlock(&space_lock);
	return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORTED CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	ENTER(NEED_CONTEXT);
	if (!desc || count != 1 || desc->location.type != 1 ||
		(desc->flags != ACCESS_NONE && desc->flags != ACCESS_READ && desc->flags != ACCESS_READWRITE))
		return CUDA_ERROR_INVALID_VALUE;
	if (gpu_of(desc->location.id) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&space_lock);
	struct range *r = range_find(at);
	bool right = r && r->kind == RANGE_VMM && r->at == at && r->size == size && r->device == desc->location.id;
	if (right)
		r->access = desc->flags;
	pthread_mutex_unlock(&space_lock);
	return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
