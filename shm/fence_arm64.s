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
