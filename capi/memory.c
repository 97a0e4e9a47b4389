#include "sandbox.h"

#include <stdlib.h>

// In C, so that a garbage collector's finalizer never has to enter Go.
void sbx_free(void *memory) { free(memory); }
