#include "textflag.h"

// nothing is a signal handler that does nothing. It touches no memory, so it is
// harmless wherever it interrupts, also in a child that has not executed its
// program yet.
TEXT ·nothing(SB), NOSPLIT|NOFRAME, $0-0
	RET

DATA ·nothingAddress(SB)/8, $·nothing(SB)
GLOBL ·nothingAddress(SB), RODATA, $8
