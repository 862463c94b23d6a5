#include "textflag.h"

// func Pause()
TEXT ·Pause(SB), NOSPLIT, $0-0
	PAUSE
	RET

// func fence()
TEXT ·fence(SB), NOSPLIT, $8-0
	// A locked instruction on the own stack: a full fence, cheaper than MFENCE.
	LOCK
	ADDQ $0, 0(SP)
	RET
