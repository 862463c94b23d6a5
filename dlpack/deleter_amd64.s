#include "textflag.h"
#include "go_asm.h"

// System V calling convention: self in DI; AX, CX, DX, SI, DI, R8 to R11 are
// the callee's. No stack is used, no other register is changed. A locked
// instruction orders all earlier and later loads and stores.

// void deleterVersioned(DLManagedTensorVersioned *self)
TEXT deleterVersioned<>(SB), NOSPLIT|NOFRAME, $0-0
	TESTQ DI, DI
	JZ    done
	MOVQ  ManagedTensorVersioned_ManagerCtx(DI), DI
	JMP   release<>(SB)
done:
	RET

// void deleterLegacy(DLManagedTensor *self)
TEXT deleterLegacy<>(SB), NOSPLIT|NOFRAME, $0-0
	TESTQ DI, DI
	JZ    done
	MOVQ  ManagedTensor_ManagerCtx(DI), DI
	JMP   release<>(SB)
done:
	RET

// release drops the reference of the blockCtx at DI and pushes it.
TEXT release<>(SB), NOSPLIT|NOFRAME, $0-0
	TESTQ DI, DI
	JZ    done

	CMPL blockCtx_live(DI), $0
	JE   done
	MOVL $0, blockCtx_live(DI)

	MOVQ  blockCtx_stack(DI), R8
	MOVQ  blockCtx_word(DI), CX
	TESTQ CX, CX
	JZ    push
	MOVQ  blockCtx_delta(DI), DX

	// SYNC dlpack-drop
	LOCK
	ADDQ  DX, (CX)

push:
	MOVQ (R8), AX

again:
	MOVQ AX, blockCtx_next(DI)

	// SYNC dlpack-stack: a failed exchange loads the new head into AX.
	LOCK
	CMPXCHGQ DI, (R8)
	JNE      again

done:
	RET

// func deleterVersionedAddr() uintptr
TEXT ·deleterVersionedAddr(SB), NOSPLIT, $0-8
	LEAQ deleterVersioned<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func deleterLegacyAddr() uintptr
TEXT ·deleterLegacyAddr(SB), NOSPLIT, $0-8
	LEAQ deleterLegacy<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func runDeleterVersioned(self unsafe.Pointer)
TEXT ·runDeleterVersioned(SB), NOSPLIT, $0-8
	MOVQ self+0(FP), DI
	CALL deleterVersioned<>(SB)
	RET

// func runDeleterLegacy(self unsafe.Pointer)
TEXT ·runDeleterLegacy(SB), NOSPLIT, $0-8
	MOVQ self+0(FP), DI
	CALL deleterLegacy<>(SB)
	RET
