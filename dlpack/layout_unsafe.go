package dlpack

import "unsafe"

// Each line fails to compile when a size, an alignment or an offset differs
// from the C header: the negative of an unsigned constant other than 0
// overflows. Sound: only constants are computed here, no memory is touched.
const (
	_ = -(unsafe.Sizeof(Version{}) ^ 8)
	_ = -(unsafe.Alignof(Version{}) ^ 4)
	_ = -unsafe.Offsetof(Version{}.Major)
	_ = -(unsafe.Offsetof(Version{}.Minor) ^ 4)

	_ = -(unsafe.Sizeof(Device{}) ^ 8)
	_ = -(unsafe.Alignof(Device{}) ^ 4)
	_ = -unsafe.Offsetof(Device{}.Type)
	_ = -(unsafe.Offsetof(Device{}.ID) ^ 4)

	_ = -(unsafe.Sizeof(DType{}) ^ 4)
	_ = -(unsafe.Alignof(DType{}) ^ 2)
	_ = -unsafe.Offsetof(DType{}.Code)
	_ = -(unsafe.Offsetof(DType{}.Bits) ^ 1)
	_ = -(unsafe.Offsetof(DType{}.Lanes) ^ 2)

	_ = -(unsafe.Sizeof(Tensor{}) ^ 48)
	_ = -(unsafe.Alignof(Tensor{}) ^ 8)
	_ = -unsafe.Offsetof(Tensor{}.Data)
	_ = -(unsafe.Offsetof(Tensor{}.Device) ^ 8)
	_ = -(unsafe.Offsetof(Tensor{}.NDim) ^ 16)
	_ = -(unsafe.Offsetof(Tensor{}.DType) ^ 20)
	_ = -(unsafe.Offsetof(Tensor{}.Shape) ^ 24)
	_ = -(unsafe.Offsetof(Tensor{}.Strides) ^ 32)
	_ = -(unsafe.Offsetof(Tensor{}.ByteOffset) ^ 40)

	_ = -(unsafe.Sizeof(ManagedTensor{}) ^ 64)
	_ = -(unsafe.Alignof(ManagedTensor{}) ^ 8)
	_ = -unsafe.Offsetof(ManagedTensor{}.Tensor)
	_ = -(unsafe.Offsetof(ManagedTensor{}.ManagerCtx) ^ 48)
	_ = -(unsafe.Offsetof(ManagedTensor{}.Deleter) ^ 56)

	_ = -(unsafe.Sizeof(ManagedTensorVersioned{}) ^ 80)
	_ = -(unsafe.Alignof(ManagedTensorVersioned{}) ^ 8)
	_ = -unsafe.Offsetof(ManagedTensorVersioned{}.Version)
	_ = -(unsafe.Offsetof(ManagedTensorVersioned{}.ManagerCtx) ^ 8)
	_ = -(unsafe.Offsetof(ManagedTensorVersioned{}.Deleter) ^ 16)
	_ = -(unsafe.Offsetof(ManagedTensorVersioned{}.Flags) ^ 24)
	_ = -(unsafe.Offsetof(ManagedTensorVersioned{}.Tensor) ^ 32)

	_ = -(unsafe.Sizeof(ExchangeAPIHeader{}) ^ 16)
	_ = -(unsafe.Alignof(ExchangeAPIHeader{}) ^ 8)
	_ = -unsafe.Offsetof(ExchangeAPIHeader{}.Version)
	_ = -(unsafe.Offsetof(ExchangeAPIHeader{}.PrevAPI) ^ 8)

	_ = -(unsafe.Sizeof(ExchangeAPI{}) ^ 56)
	_ = -(unsafe.Alignof(ExchangeAPI{}) ^ 8)
	_ = -unsafe.Offsetof(ExchangeAPI{}.Header)
	_ = -(unsafe.Offsetof(ExchangeAPI{}.ManagedTensorAllocator) ^ 16)
	_ = -(unsafe.Offsetof(ExchangeAPI{}.ManagedTensorFromPyObjectNoSync) ^ 24)
	_ = -(unsafe.Offsetof(ExchangeAPI{}.ManagedTensorToPyObjectNoSync) ^ 32)
	_ = -(unsafe.Offsetof(ExchangeAPI{}.DLTensorFromPyObjectNoSync) ^ 40)
	_ = -(unsafe.Offsetof(ExchangeAPI{}.CurrentWorkStream) ^ 48)
)
