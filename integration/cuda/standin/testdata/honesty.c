/* Checks of the stand-in, one for each argument. Each is a process of its own, as
 * a driver's state is a process's; exit status 0 is a pass, and a line on stderr
 * says what was wrong. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../src/driver.h"

CUresult cuInit(unsigned);
CUresult cuDeviceGetCount(int *);
CUresult cuDeviceGetUuid_v2(CUuuid *, CUdevice);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemCreate(CUhandle *, size_t, const CUmemAllocationProp *, ull);
CUresult cuMemRelease(CUhandle);
CUresult cuMemExportToShareableHandle(void *, CUhandle, int, ull);
CUresult cuMemImportFromShareableHandle(CUhandle *, void *, int);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, ull);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUhandle, ull);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuPointerGetAttribute(void *, int, CUdeviceptr);
CUresult cuIpcGetMemHandle(CUipcMemHandle *, CUdeviceptr);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, CUipcMemHandle, unsigned);
CUresult cuIpcCloseMemHandle(CUdeviceptr);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamQuery(CUstream);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamIsCapturing(CUstream, int *);
CUresult cuStreamEndCapture(CUstream, void **);
CUresult cuStreamWriteValue64_v2(CUstream, CUdeviceptr, uint64_t, unsigned);
CUresult cuStreamWaitValue64_v2(CUstream, CUdeviceptr, uint64_t, unsigned);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void *, size_t, CUstream);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
CUresult cuMemHostRegister_v2(void *, size_t, unsigned);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *, void *, unsigned);
void standin_fault(const char *, int, long);
ull standin_calls(const char *);

#define SLAB ((size_t)2 << 20)
#define WANT(code, call)                                                                               \
	do {                                                                                           \
		int got_ = (call), want_ = (code);                                                     \
		if (got_ != want_) {                                                                   \
			fprintf(stderr, "%d: %s gave %d, not %d\n", __LINE__, #call, got_, want_);     \
			_exit(1);                                                                      \
		}                                                                                      \
	} while (0)
#define TRUE(what) WANT(1, !!(what))

static const CUmemAllocationProp pinned = { .type = 1, .requestedHandleTypes = HANDLE_POSIX_FD, .location = { 1, 0 } };
static const CUmemAccessDesc both = { { 1, 0 }, ACCESS_READWRITE }, reading = { { 1, 0 }, ACCESS_READ };

static CUcontext start(void)
{
	CUcontext c;
	WANT(0, cuInit(0));
	WANT(0, cuDevicePrimaryCtxRetain(&c, 0));
	WANT(0, cuCtxSetCurrent(c));
	return c;
}

static size_t used(void)
{
	size_t free, total;
	WANT(0, cuMemGetInfo_v2(&free, &total));
	return total - free;
}

static CUdeviceptr map(CUhandle h, const CUmemAccessDesc *access)
{
	CUdeviceptr at;
	WANT(0, cuMemAddressReserve(&at, SLAB, 0, 0, 0));
	WANT(0, cuMemMap(at, SLAB, 0, h, 0));
	if (access)
		WANT(0, cuMemSetAccess(at, SLAB, access, 1));
	return at;
}

static int export(size_t size)
{
	CUhandle h;
	int fd;
	WANT(0, cuMemCreate(&h, size, &pinned, 0));
	WANT(0, cuMemExportToShareableHandle(&fd, h, HANDLE_POSIX_FD, 0));
	WANT(0, cuMemRelease(h));
	return fd;
}

static void *address(CUdeviceptr at) { return (void *)(uintptr_t)at; }

/* Runs f in a process that loads the driver anew, with a descriptor as 3. */
static int in_child(char *self, const char *check, int fd)
{
	pid_t pid = fork();
	if (pid == 0) {
		if (fd >= 0)
			dup2(fd, 3);
		execl(self, self, check, NULL);
		_exit(127);
	}
	int status;
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void creation(char *self)
{
	(void)self;
	CUhandle h;
	start();
	WANT(1, cuMemCreate(&h, SLAB + 4096, &pinned, 0));
	CUmemAllocationProp other = pinned;
	other.requestedHandleTypes = 2;
	WANT(801, cuMemCreate(&h, SLAB, &other, 0));
	other.requestedHandleTypes = HANDLE_NONE;
	int fd;
	WANT(0, cuMemCreate(&h, SLAB, &other, 0));
	WANT(1, cuMemExportToShareableHandle(&fd, h, HANDLE_POSIX_FD, 0));
	WANT(0, cuMemRelease(h));
	WANT(0, (int)used());
	WANT(2, cuMemCreate(&h, (size_t)2 << 30, &pinned, 0));
}

static void descriptor(char *self)
{
	(void)self;
	start();
	int fd = export(SLAB);
	struct stat st;
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	WANT(0, fstat(fd, &st));
	TRUE(st.st_size == 0);
	TRUE(open(path, O_RDWR) < 0);
	TRUE(mmap(NULL, SLAB, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	CUhandle one, two;
	WANT(0, cuMemImportFromShareableHandle(&one, address((CUdeviceptr)fd), HANDLE_POSIX_FD));
	WANT(0, cuMemImportFromShareableHandle(&two, address((CUdeviceptr)fd), HANDLE_POSIX_FD));
	TRUE(one != two);
	WANT(0, cuMemRelease(one));
	WANT((int)SLAB, (int)used());
	WANT(0, cuMemRelease(two));
	WANT((int)SLAB, (int)used()); /* the descriptor is the caller's still */
	close(fd);
	WANT(0, (int)used());
	fd = open("/dev/null", O_RDONLY);
	WANT(1, cuMemImportFromShareableHandle(&one, address((CUdeviceptr)fd), HANDLE_POSIX_FD));
}

static void export_to_3(char *self)
{
	(void)self;
	start();
	int fd = export(SLAB);
	CUhandle h;
	WANT(0, cuMemImportFromShareableHandle(&h, address((CUdeviceptr)fd), HANDLE_POSIX_FD));
	CUdeviceptr at = map(h, &both);
	WANT(0, cuMemsetD8Async(at, 7, SLAB, STREAM_LEGACY));
	WANT(0, cuCtxSynchronize());
	struct iovec io = { "x", 1 };
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = { { 0 } };
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	WANT(1, (int)sendmsg(3, &m, 0));
	kill(getpid(), SIGKILL);
}

/* An idle descriptor keeps the memory of an exporter that was killed. */
static void killed(char *self)
{
	int pair[2];
	TRUE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	WANT(128 + SIGKILL, in_child(self, "export_to_3", pair[1]));
	close(pair[1]);
	start();
	WANT((int)SLAB, (int)used()); /* the descriptor is on its way, in no process */
	char byte;
	struct iovec io = { &byte, 1 };
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	WANT(1, (int)recvmsg(pair[0], &m, 0));
	int fd;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	CUhandle h;
	WANT(0, cuMemImportFromShareableHandle(&h, address((CUdeviceptr)fd), HANDLE_POSIX_FD));
	close(fd);
	CUdeviceptr at = map(h, &reading);
	WANT(0, cuMemRelease(h));
	unsigned char got = 0;
	WANT(0, cuMemcpyDtoH_v2(&got, at + SLAB - 1, 1));
	WANT(7, got);
	WANT(0, cuMemUnmap(at, SLAB));
	WANT(0, cuMemAddressFree(at, SLAB));
	WANT(0, (int)used());
}

static void touch(char *self)
{
	(void)self;
	start();
	CUhandle h;
	int fd = export(SLAB);
	WANT(0, cuMemImportFromShareableHandle(&h, address((CUdeviceptr)fd), HANDLE_POSIX_FD));
	*(volatile char *)address(map(h, &both)) = 1;
}

static void write_access(const CUmemAccessDesc *access)
{
	CUhandle h;
	start();
	int fd = export(SLAB);
	WANT(0, cuMemImportFromShareableHandle(&h, address((CUdeviceptr)fd), HANDLE_POSIX_FD));
	CUdeviceptr good = map(h, &both);
	WANT(0, cuMemsetD8Async(map(h, access), 1, 64, STREAM_LEGACY));
	WANT(700, cuCtxSynchronize());
	WANT(700, cuMemsetD8Async(good, 1, 64, STREAM_LEGACY)); /* the context is lost */
}

static void unset(char *self)
{
	(void)self;
	write_access(NULL);
}

static void read_only(char *self)
{
	(void)self;
	write_access(&reading);
}

static void *without_context(void *arg)
{
	CUdeviceptr at;
	CUhandle h;
	WANT(201, cuMemAlloc_v2(&at, 64));
	WANT(201, cuMemCreate(&h, SLAB, &pinned, 0));
	return arg;
}

static void threads(char *self)
{
	(void)self;
	CUdeviceptr at;
	WANT(3, cuMemAlloc_v2(&at, 64));
	start();
	pthread_t t;
	TRUE(pthread_create(&t, NULL, without_context, NULL) == 0);
	pthread_join(t, NULL);
	WANT(0, cuMemAlloc_v2(&at, 64));
}

static void forked(char *self)
{
	(void)self;
	start();
	pid_t pid = fork();
	if (pid == 0) {
		size_t a, b;
		WANT(3, cuMemGetInfo_v2(&a, &b));
		WANT(3, cuInit(0));
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	WANT(0, status);
}

/* Work is late: somewhere in many tries a caller that does not wait sees that. */
static void late(char *self)
{
	(void)self;
	start();
	CUstream s;
	CUdeviceptr at;
	WANT(0, cuStreamCreate(&s, STREAM_NON_BLOCKING));
	WANT(0, cuMemAlloc_v2(&at, SLAB));
	int busy = 0;
	for (int i = 0; i < 200; i++) {
		WANT(0, cuMemsetD8Async(at, (unsigned char)i, 64, s));
		busy += cuStreamQuery(s) == 600;
	}
	TRUE(busy > 0);
	WANT(0, cuStreamSynchronize(s));
	unsigned char got;
	WANT(0, cuMemcpyDtoH_v2(&got, at, 1));
	WANT(199, got);
	/* Registered memory is read when the stream comes to it, pageable now. */
	unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), pageable = 1;
	CUdeviceptr word;
	WANT(0, cuMemHostRegister_v2(page, 4096, HOST_PORTABLE | HOST_DEVICEMAP));
	WANT(712, cuMemHostRegister_v2(page, 4096, HOST_PORTABLE | HOST_DEVICEMAP));
	WANT(0, cuMemHostGetDevicePointer_v2(&word, page, 0));
	TRUE(word != (CUdeviceptr)(uintptr_t)page);
	page[64] = 1;
	WANT(0, cuStreamWaitValue64_v2(s, word, 5, WAIT_GEQ));
	WANT(0, cuMemcpyHtoDAsync_v2(at, page + 64, 1, s));
	WANT(0, cuMemcpyHtoDAsync_v2(at + 1, &pageable, 1, s));
	page[64] = pageable = 2;
	WANT(600, cuStreamQuery(s));
	__atomic_store_n((uint64_t *)(void *)page, 6, __ATOMIC_SEQ_CST);
	WANT(0, cuStreamSynchronize(s));
	unsigned char two[2];
	WANT(0, cuMemcpyDtoH_v2(two, at, 2));
	WANT(2, two[0]);
	WANT(1, two[1]);
	WANT(0, cuStreamWriteValue64_v2(s, word + 8, 9, 0));
	WANT(0, cuStreamSynchronize(s));
	WANT(9, (int)((uint64_t *)(void *)page)[1]);
	WANT(1, cuStreamWriteValue64_v2(s, (CUdeviceptr)(uintptr_t)page, 9, 0)); /* the host's address */
	mprotect(page + 0, 4096, PROT_READ);
	unsigned char *other = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	WANT(1, cuMemHostRegister_v2(other, 4096, HOST_DEVICEMAP));
	WANT(0, cuMemHostRegister_v2(other, 4096, HOST_DEVICEMAP | HOST_READ_ONLY));
	WANT(0, cuMemHostGetDevicePointer_v2(&word, other, 0));
	WANT(1, cuStreamWriteValue64_v2(s, word, 9, 0));
}

/* The address of a stream that was destroyed is another's soon. */
static void reused(char *self)
{
	(void)self;
	start();
	CUstream first, s;
	WANT(0, cuStreamCreate(&first, STREAM_NON_BLOCKING));
	WANT(0, cuStreamDestroy_v2(first));
	do {
		WANT(0, cuStreamCreate(&s, STREAM_NON_BLOCKING));
		WANT(0, cuStreamQuery(s));
		WANT(0, cuStreamDestroy_v2(s));
	} while (s != first);
}

static void destroyed(char *self)
{
	(void)self;
	start();
	CUstream s;
	WANT(0, cuStreamCreate(&s, STREAM_NON_BLOCKING));
	WANT(0, cuStreamDestroy_v2(s));
	cuStreamQuery(s);
}

/* What is captured is not done. */
static void captured(char *self)
{
	(void)self;
	start();
	CUstream s;
	CUdeviceptr at;
	void *graph;
	int status = -1;
	unsigned char got = 0;
	WANT(0, cuStreamCreate(&s, STREAM_NON_BLOCKING));
	WANT(0, cuMemAlloc_v2(&at, 64));
	WANT(0, cuMemsetD8Async(at, 1, 64, s));
	WANT(0, cuStreamSynchronize(s));
	WANT(0, cuStreamBeginCapture_v2(s, 0));
	WANT(0, cuMemsetD8Async(at, 2, 64, s));
	WANT(900, cuStreamSynchronize(s));
	WANT(0, cuStreamIsCapturing(s, &status));
	WANT(1, status);
	WANT(0, cuStreamEndCapture(s, &graph));
	WANT(0, cuStreamIsCapturing(s, &status));
	WANT(0, status);
	WANT(0, cuStreamSynchronize(s));
	WANT(0, cuMemcpyDtoH_v2(&got, at, 1));
	WANT(1, got);
}

static void open_from_3(char *self)
{
	(void)self;
	start();
	CUipcMemHandle h;
	CUdeviceptr one, two;
	WANT(sizeof h, (int)read(3, &h, sizeof h));
	WANT(0, cuIpcOpenMemHandle_v2(&one, h, 1));
	WANT(0, cuIpcOpenMemHandle_v2(&two, h, 1));
	TRUE(one == two);
	unsigned char got;
	WANT(0, cuMemcpyDtoH_v2(&got, one, 1));
	WANT(7, got);
	WANT(0, cuIpcCloseMemHandle(one));
	WANT(0, cuMemcpyDtoH_v2(&got, one, 1)); /* opened twice */
	WANT(0, cuIpcCloseMemHandle(two));
	WANT(1, cuIpcCloseMemHandle(two));
}

static void legacy(char *self)
{
	start();
	CUdeviceptr at, async;
	CUipcMemHandle h;
	int capable = -1, pipes[2];
	WANT(0, cuMemAlloc_v2(&at, 1000));
	WANT(0, cuMemsetD8Async(at, 7, 1000, STREAM_LEGACY));
	WANT(0, cuCtxSynchronize());
	WANT(1, cuIpcGetMemHandle(&h, at + 10)); /* of the base alone */
	WANT(0, cuIpcGetMemHandle(&h, at));
	WANT(0, cuPointerGetAttribute(&capable, POINTER_LEGACY_IPC, at));
	WANT(1, capable);
	WANT(201, cuIpcOpenMemHandle_v2(&async, h, 1));
	WANT(0, cuMemAllocAsync(&async, 64, STREAM_LEGACY));
	WANT(0, cuPointerGetAttribute(&capable, POINTER_LEGACY_IPC, async));
	WANT(0, capable);
	CUipcMemHandle none;
	WANT(1, cuIpcGetMemHandle(&none, async));
	CUhandle v;
	WANT(0, cuMemCreate(&v, SLAB, &pinned, 0));
	WANT(1, cuIpcGetMemHandle(&none, map(v, &both)));
	TRUE(pipe(pipes) == 0 && write(pipes[1], &h, sizeof h) == sizeof h);
	WANT(0, in_child(self, "open_from_3", pipes[0]));
	WANT(0, cuMemFree_v2(at));
}

static void hold_from_3(char *self)
{
	(void)self;
	start();
	CUipcMemHandle h;
	CUdeviceptr at;
	WANT(sizeof h, (int)read(3, &h, sizeof h));
	WANT(0, cuIpcOpenMemHandle_v2(&at, h, 1));
	TRUE(write(1, "x", 1) == 1);
	pause();
}

static pid_t holder(char *self, int *ready, CUipcMemHandle *h)
{
	int in[2], out[2];
	TRUE(pipe(in) == 0 && pipe(out) == 0 && write(in[1], h, sizeof *h) == sizeof *h);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(in[0], 3);
		dup2(out[1], 1);
		execl(self, self, "hold_from_3", NULL);
		_exit(127);
	}
	*ready = out[0];
	return pid;
}

/* Freeing what another process has open is undefined: the stand-in aborts. */
static void freed_too_early(char *self)
{
	start();
	CUdeviceptr at;
	CUipcMemHandle h;
	int ready;
	char c;
	WANT(0, cuMemAlloc_v2(&at, 64));
	WANT(0, cuIpcGetMemHandle(&h, at));
	pid_t pid = holder(self, &ready, &h), mine = fork();
	(void)mine;
	if (mine == 0) { /* watches over the holder, which this process leaves behind */
		int parent = getppid();
		while (getppid() == parent)
			usleep(1000);
		kill(pid, SIGKILL);
		_exit(0);
	}
	TRUE(read(ready, &c, 1) == 1);
	cuMemFree_v2(at);
}

static void faults(char *self)
{
	(void)self;
	start();
	CUdeviceptr at;
	standin_fault("cuMemAlloc_v2", 2, 2);
	WANT(0, cuMemAlloc_v2(&at, 64));
	WANT(2, cuMemAlloc_v2(&at, 64));
	WANT(0, cuMemAlloc_v2(&at, 64));
	TRUE(standin_calls("cuMemAlloc_v2") == 3);
	TRUE(standin_calls(NULL) == 6); /* with cuInit, retain, set current */
}

static void hidden(char *self)
{
	int pair[2], count;
	TRUE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	setenv("CUDA_VISIBLE_DEVICES", "0", 1);
	WANT(128 + SIGKILL, in_child(self, "export_to_3", pair[1]));
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	start();
	WANT(0, cuDeviceGetCount(&count));
	WANT(1, count);
	CUuuid u;
	WANT(0, cuDeviceGetUuid_v2(&u, 0));
	WANT(1, u.bytes[15]);
	char byte;
	struct iovec io = { &byte, 1 };
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	WANT(1, (int)recvmsg(pair[0], &m, 0));
	int fd;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	CUhandle h;
	WANT(101, cuMemImportFromShareableHandle(&h, address((CUdeviceptr)fd), HANDLE_POSIX_FD));
}

static const struct check { const char *name; void (*run)(char *); } checks[] = {
	{ "creation", creation }, { "descriptor", descriptor }, { "killed", killed }, { "export_to_3", export_to_3 }, { "touch", touch },
	{ "unset", unset }, { "read_only", read_only }, { "threads", threads }, { "forked", forked }, { "late", late },
	{ "legacy", legacy }, { "open_from_3", open_from_3 }, { "hold_from_3", hold_from_3 }, { "freed_too_early", freed_too_early },
	{ "faults", faults }, { "hidden", hidden }, { "reused", reused }, { "destroyed", destroyed }, { "captured", captured },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof checks / sizeof *checks; i++)
		if (!strcmp(argv[1], checks[i].name)) {
			checks[i].run(argv[0]);
			_exit(0);
		}
	return 2;
}
