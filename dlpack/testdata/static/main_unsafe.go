// Command static exports a tensor, consumes it and releases it, in a program
// that links no C. The package's tests build and run it.
package main

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/baton-ipc/baton/dlpack"
)

func mapAnonymous(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
}

func run() error {
	mem, err := mapAnonymous(4096)
	if err != nil {
		return err
	}
	word := (*uint64)(unsafe.Pointer(&mem[0]))
	*word = 1
	pool, err := dlpack.NewPool(mapAnonymous)
	if err != nil {
		return err
	}
	m, err := pool.Export(&dlpack.Spec{Data: unsafe.Pointer(&mem[256]), Device: dlpack.CPUDevice,
		DType: dlpack.Float32, Shape: []int64{2, 3}, Word: word, Delta: 1<<20 - 1})
	if err != nil {
		return err
	}
	x, err := dlpack.Consume(m)
	if err != nil {
		return err
	}
	if err := x.Release(); err != nil {
		return err
	}
	fmt.Println(x.DType, x.Shape, "reaped", pool.Reap(nil), "count", *word&(1<<20-1))
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
