package cudaipc

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

// Sizes and offsets as a C compiler gives them for cuda.h.
func TestStructuresHaveTheDriversLayout(t *testing.T) {
	var p properties
	assert.EqualValues(t, 32, unsafe.Sizeof(p))
	assert.EqualValues(t, 4, unsafe.Offsetof(p.handleTypes))
	assert.EqualValues(t, 8, unsafe.Offsetof(p.location))
	assert.EqualValues(t, 16, unsafe.Offsetof(p.win32))
	assert.EqualValues(t, 24, unsafe.Offsetof(p.flags))
	assert.EqualValues(t, 12, unsafe.Sizeof(access{}))
	assert.EqualValues(t, 64, unsafe.Sizeof(IPCHandle{}))
	assert.EqualValues(t, 16, unsafe.Sizeof(UUID{}))
}
