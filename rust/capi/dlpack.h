/* DLPack 1.3, as far as it is used here. A program that has dlpack.h includes that before this file. */
#ifndef DLPACK_DLPACK_H_
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  uint32_t major; /* another one than 1: only the deleter may be used */
  uint32_t minor;
} DLPackVersion;

typedef struct {
  int32_t device_type; /* 1: the CPU */
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code; /* 0 int, 1 unsigned int, 2 float, 4 bfloat, 5 complex, 6 bool; more: baton_dtype */
  uint8_t bits;
  uint16_t lanes; /* 1 except for vectors */
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; may be NULL: C-contiguous */
  uint64_t byte_offset; /* from data to the first element */
} DLTensor;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags; /* bits of DLPACK_FLAG_BITMASK_... */
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

#define DLPACK_FLAG_BITMASK_READ_ONLY ((uint64_t)1)
#define DLPACK_FLAG_BITMASK_IS_COPIED ((uint64_t)2)
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED ((uint64_t)4)

#ifdef __cplusplus
}
#endif
#endif
