/* The part of the CUDA driver interface that the stand-in has, with the names,
 * numbers and layouts of NVIDIA's cuda.h, written anew. */
#ifndef STANDIN_DRIVER_H
#define STANDIN_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUhandle; /* CUmemGenericAllocationHandle */
typedef unsigned long long ull;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_MAP_FAILED = 205,
	CUDA_ERROR_UNMAP_FAILED = 206,
	CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_UNKNOWN = 999,
};

typedef struct { char bytes[16]; } CUuuid;
typedef struct { int type, id; } CUmemLocation; /* type 1: a device */

typedef struct {
	int type;                 /* 1: pinned */
	int requestedHandleTypes; /* 1: POSIX file descriptor */
	CUmemLocation location;
	void *win32HandleMetaData;
	unsigned char allocFlags[8];
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	int flags; /* 0 none, 1 read, 3 read and write */
} CUmemAccessDesc;

typedef struct { char reserved[64]; } CUipcMemHandle;

enum { HANDLE_NONE = 0, HANDLE_POSIX_FD = 1 };
enum { ACCESS_NONE = 0, ACCESS_READ = 1, ACCESS_READWRITE = 3 };
enum { HOST_PORTABLE = 1, HOST_DEVICEMAP = 2, HOST_IOMEMORY = 4, HOST_READ_ONLY = 8 };
enum { WAIT_GEQ = 0, WAIT_EQ = 1, WAIT_AND = 2, WAIT_NOR = 3 };
enum { STREAM_NON_BLOCKING = 1 };
enum capture { CAPTURE_NONE, CAPTURE_ACTIVE };

#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)

/* Device attributes that are answered. */
enum {
	ATTRIBUTE_UNIFIED_ADDRESSING = 41,
	ATTRIBUTE_VMM = 102,
	ATTRIBUTE_POSIX_FD = 103,
	ATTRIBUTE_READ_ONLY_HOST_REGISTER = 113,
	ATTRIBUTE_64_BIT_MEM_OPS = 122,
};

/* Pointer attributes that are answered. */
enum { POINTER_DEVICE_ORDINAL = 9, POINTER_LEGACY_IPC = 10, POINTER_RANGE_START = 11, POINTER_RANGE_SIZE = 12 };

#define EXPORTED __attribute__((visibility("default")))

#endif
