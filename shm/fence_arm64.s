#include "textflag.h"

// func Pause()
TEXT ·Pause(SB), NOSPLIT, $0-0
	YIELD
	RET

// func fence()
TEXT ·fence(SB), NOSPLIT, $0-0
	DMB $0xb // inner shareable, loads and stores
	RET

// func fenceLoad()
TEXT ·fenceLoad(SB), NOSPLIT, $0-0
	DMB $0x9 // inner shareable, earlier loads before later loads and stores
	RET

// func fenceStore()
TEXT ·fenceStore(SB), NOSPLIT, $0-0
	DMB $0xa // inner shareable, earlier stores before later stores
	RET

// func prefetch(p *uint64)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET

// func prefetchWrite(p *uint64)
TEXT ·prefetchWrite(SB), NOSPLIT, $0-8
	MOVD p+0(FP), R0
	PRFM (R0), PSTL1KEEP
	RET

// func storeRelease(p *uint64, v uint64)
TEXT ·storeRelease(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	STLR R1, (R0)
	RET
