#include "textflag.h"

TEXT nothing<>(SB), NOSPLIT|NOFRAME, $0
	RET

// func nothingAt() uintptr
TEXT ·nothingAt(SB), NOSPLIT, $0-8
	LEAQ nothing<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET
