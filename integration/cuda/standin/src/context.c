/* Devices and their primary contexts. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "standin.h"

struct gpu gpus[MAX_GPUS];
int gpu_count, visible[MAX_GPUS], visible_count;
char standin_dir[400];

__thread struct context *current;
static __thread struct context *pushed[16];
static __thread int depth;

static struct context contexts[MAX_GPUS]; /* by device */
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;

void initialised(void);

static void show(int gpu)
{
	for (int i = 0; i < visible_count; i++)
		if (visible[i] == gpu)
			return;
	visible[visible_count++] = gpu;
}

/* As the driver reads it: numbers or UUIDs; what is not there ends the list. */
static void read_visible(void)
{
	const char *env = getenv("CUDA_VISIBLE_DEVICES");
	if (!env) {
		for (int i = 0; i < gpu_count; i++)
			show(i);
		return;
	}
	char *copy = strdup(env), *save = NULL;
	for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		char *end;
		long n = strtol(word, &end, 10);
		if (!strncmp(word, "GPU-", 4)) {
			n = -1;
			for (int i = 0; i < gpu_count; i++) {
				char text[41];
				const unsigned char *u = (unsigned char *)gpus[i].uuid.bytes;
				snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
					u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
				if (!strncmp(text, word, strlen(word)))
					n = i;
			}
		} else if (*end)
			n = -1;
		if (n < 0 || n >= gpu_count)
			break;
		show((int)n);
	}
	free(copy);
}

/* BATON_STANDIN_DIR is the machine: processes that share it share its GPUs. */
static void find_gpus(void)
{
	const char *dir = getenv("BATON_STANDIN_DIR"), *count = getenv("BATON_STANDIN_GPUS"), *memory = getenv("BATON_STANDIN_MEMORY");
	if (!dir || !*dir)
		return;
	snprintf(standin_dir, sizeof standin_dir, "%s", dir);
	gpu_count = count ? atoi(count) : 1;
	if (gpu_count > MAX_GPUS)
		gpu_count = MAX_GPUS;
	for (int i = 0; i < gpu_count; i++) {
		struct gpu *g = &gpus[i];
		snprintf(g->dir, sizeof g->dir, "%s/gpu%d", standin_dir, i);
		if (mkdir(g->dir, 0700) && errno != EEXIST) {
			gpu_count = i;
			break;
		}
		memcpy(g->uuid.bytes, "baton stand-in  ", 16);
		g->uuid.bytes[15] = (char)i;
		g->total = memory ? strtoull(memory, NULL, 10) : (size_t)1 << 30;
	}
	read_visible();
}

EXPORTED CUresult cuInit(unsigned flags)
{
	ENTER(NEED_NOTHING);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_gpus);
	if (visible_count == 0)
		return CUDA_ERROR_NO_DEVICE;
	initialised();
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuDriverGetVersion(int *version)
{
	ENTER(NEED_NOTHING);
	const char *env = getenv("BATON_STANDIN_VERSION");
	*version = env ? atoi(env) : 12040;
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetCount(int *count)
{
	ENTER(NEED_INIT);
	*count = visible_count;
	return CUDA_SUCCESS;
}

int gpu_of(int device) { return device >= 0 && device < visible_count ? visible[device] : -1; }

int device_with_uuid(const char uuid[16])
{
	for (int i = 0; i < visible_count; i++)
		if (!memcmp(gpus[visible[i]].uuid.bytes, uuid, 16))
			return i;
	return -1;
}

EXPORTED CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER(NEED_INIT);
	if (gpu_of(ordinal) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
	ENTER(NEED_INIT);
	if (gpu_of(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)size, "stand-in GPU %d", gpu_of(device));
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	ENTER(NEED_INIT);
	if (gpu_of(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	*uuid = gpus[gpu_of(device)].uuid;
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	ENTER(NEED_INIT);
	if (gpu_of(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	switch (attribute) {
	case ATTRIBUTE_UNIFIED_ADDRESSING:
		*value = 1;
		return CUDA_SUCCESS;
	case ATTRIBUTE_VMM:
	case ATTRIBUTE_POSIX_FD:
		*value = !lacking("vmm");
		return CUDA_SUCCESS;
	case ATTRIBUTE_READ_ONLY_HOST_REGISTER:
		*value = !lacking("read-only-register");
		return CUDA_SUCCESS;
	case ATTRIBUTE_64_BIT_MEM_OPS:
		*value = !lacking("memops");
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORTED CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	ENTER(NEED_INIT);
	if (gpu_of(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	struct context *c = &contexts[device];
	pthread_mutex_lock(&contexts_lock);
	c->device = device;
	c->retained++;
	if (!c->legacy)
		c->legacy = stream_make(c, false);
	pthread_mutex_unlock(&contexts_lock);
	*context = c;
	return c->legacy ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

EXPORTED CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	ENTER(NEED_INIT);
	if (gpu_of(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&contexts_lock);
	bool there = contexts[device].retained > 0;
	if (there)
		contexts[device].retained--;
	pthread_mutex_unlock(&contexts_lock);
	return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORTED CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	ENTER(NEED_INIT);
	if (gpu_of(device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&contexts_lock);
	*flags = 0;
	*active = contexts[device].retained > 0;
	pthread_mutex_unlock(&contexts_lock);
	return CUDA_SUCCESS;
}

static bool alive(struct context *c)
{
	if (c < contexts || c >= contexts + MAX_GPUS)
		return false;
	pthread_mutex_lock(&contexts_lock);
	bool yes = c->retained > 0;
	pthread_mutex_unlock(&contexts_lock);
	return yes;
}

EXPORTED CUresult cuCtxSetCurrent(CUcontext context)
{
	ENTER(NEED_INIT);
	if (context && !alive(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	current = context;
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetCurrent(CUcontext *context)
{
	ENTER(NEED_INIT);
	*context = current;
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	ENTER(NEED_INIT);
	if (!alive(context) || depth == 16)
		return CUDA_ERROR_INVALID_CONTEXT;
	pushed[depth++] = current;
	current = context;
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	ENTER(NEED_INIT);
	if (depth == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context)
		*context = current;
	current = pushed[--depth];
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetDevice(CUdevice *device)
{
	ENTER(NEED_CONTEXT);
	*device = current->device;
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxSynchronize(void)
{
	ENTER(NEED_CONTEXT);
	return drain(current);
}

EXPORTED CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	ENTER(NEED_CONTEXT);
	int gpu = gpu_of(current->device);
	size_t used = store_used(gpu);
	*total = gpus[gpu].total;
	*free = used < *total ? *total - used : 0;
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuGetErrorString(CUresult code, const char **text)
{
	static const struct { int code; const char *text; } known[] = {
		{ 0, "no error" }, { 1, "invalid argument" }, { 2, "out of memory" }, { 3, "initialization error" },
		{ 100, "no CUDA-capable device is detected" }, { 101, "invalid device ordinal" }, { 201, "invalid device context" },
		{ 205, "mapping of buffer object failed" }, { 217, "peer access is not supported between these two devices" },
		{ 400, "invalid resource handle" }, { 600, "device not ready" }, { 700, "an illegal memory access was encountered" },
		{ 712, "part or all of the requested memory range is already mapped" }, { 801, "operation not supported" },
	};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].code == code) {
			*text = known[i].text;
			return CUDA_SUCCESS;
		}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}
