#include "textflag.h"

// func Pause()
TEXT ·Pause(SB), NOSPLIT, $0-0
	PAUSE
	RET

// func fence()
TEXT ·fence(SB), NOSPLIT, $8-0
	// A locked instruction on this goroutine's own stack: a full fence, cheaper than MFENCE.
	LOCK
	ADDQ $0, 0(SP)
	RET

// func prefetch(p *uint64)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func prefetchWrite(p *uint64)
TEXT ·prefetchWrite(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	// PREFETCHW (AX), which the assembler does not know. Processors without it
	// take it for a NOP.
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08
	RET

// func storeRelease(p *uint64, v uint64)
TEXT ·storeRelease(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)
	RET
