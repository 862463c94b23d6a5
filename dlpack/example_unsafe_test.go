package dlpack_test

import (
	"fmt"
	"unsafe"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
)

func ExamplePool_Export() {
	pool, _ := dlpack.NewPool(sys.MapAnonymous)
	mem, _ := sys.MapAnonymous(4096) // shared memory in a real program

	m, err := pool.Export(&dlpack.Spec{
		Data: unsafe.Pointer(&mem[0]), Device: dlpack.CPUDevice,
		DType: dlpack.Bfloat16, Shape: []int64{4, 8}, Flags: dlpack.FlagReadOnly, Cookie: 7,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// m goes to C code, which calls its deleter; here Go is the consumer.
	t, err := dlpack.Consume(m)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(t.DType, t.Shape, t.Strides, t.Span, t.ReadOnly())
	if err := t.Release(); err != nil {
		fmt.Println(err)
		return
	}
	pool.Reap(func(cookie uint64) { fmt.Println("released", cookie) })
	// Output:
	// bfloat16 [4 8] [8 1] 64 true
	// released 7
}

func ExampleParseDType() {
	d, _ := dlpack.ParseDType("float4_e2m1fn")
	n, _ := d.NumBytes([]int64{3, 5})
	fmt.Println(d.Bits, n)
	_, err := dlpack.ParseDType("float128")
	fmt.Println(err)
	// Output:
	// 4 8
	// dlpack: unknown dtype: name "float128"
}
