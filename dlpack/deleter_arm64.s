#include "textflag.h"
#include "go_asm.h"

// Procedure call standard: self in R0; R0 to R17 are the callee's. No stack is
// used, no other register is changed, and the return address stays in R30.
// Exclusive loads with acquire and stores with release are in every arm64
// processor; the single-instruction atomics are not.

// void deleterVersioned(DLManagedTensorVersioned *self)
TEXT deleterVersioned<>(SB), NOSPLIT|NOFRAME, $0-0
	CBZ  R0, done
	MOVD ManagedTensorVersioned_ManagerCtx(R0), R0
	JMP  release<>(SB)
done:
	RET

// void deleterLegacy(DLManagedTensor *self)
TEXT deleterLegacy<>(SB), NOSPLIT|NOFRAME, $0-0
	CBZ  R0, done
	MOVD ManagedTensor_ManagerCtx(R0), R0
	JMP  release<>(SB)
done:
	RET

// release drops the reference of the blockCtx at R0 and pushes it.
TEXT release<>(SB), NOSPLIT|NOFRAME, $0-0
	CBZ R0, done

	MOVWU blockCtx_live(R0), R2
	CBZW  R2, done
	MOVW  ZR, blockCtx_live(R0)

	MOVD blockCtx_stack(R0), R4
	MOVD blockCtx_word(R0), R5
	CBZ  R5, push
	MOVD blockCtx_delta(R0), R6

	// SYNC dlpack-drop
drop:
	LDAXR (R5), R7
	ADD   R6, R7
	STLXR R7, (R5), R3
	CBNZ  R3, drop

	// SYNC dlpack-stack: the head is read outside the exclusive pair, because a
	// store to ctx inside it may cancel the pair each time.
push:
	MOVD (R4), R8
	MOVD R8, blockCtx_next(R0)
	LDAXR (R4), R9
	CMP   R8, R9
	BNE   push
	STLXR R0, (R4), R3
	CBNZ  R3, push

done:
	RET

// func deleterVersionedAddr() uintptr
TEXT ·deleterVersionedAddr(SB), NOSPLIT, $0-8
	MOVD $deleterVersioned<>(SB), R0
	MOVD R0, ret+0(FP)
	RET

// func deleterLegacyAddr() uintptr
TEXT ·deleterLegacyAddr(SB), NOSPLIT, $0-8
	MOVD $deleterLegacy<>(SB), R0
	MOVD R0, ret+0(FP)
	RET

// func runDeleterVersioned(self unsafe.Pointer)
TEXT ·runDeleterVersioned(SB), NOSPLIT, $16-8
	MOVD self+0(FP), R0
	CALL deleterVersioned<>(SB)
	RET

// func runDeleterLegacy(self unsafe.Pointer)
TEXT ·runDeleterLegacy(SB), NOSPLIT, $16-8
	MOVD self+0(FP), R0
	CALL deleterLegacy<>(SB)
	RET
