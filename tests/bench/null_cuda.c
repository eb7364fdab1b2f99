/* A driver whose every function does nothing and succeeds: what is measured against it is the hook's own
 * cost. The functions are those of hook/symbols.h; the few that must answer are in null_cuda_answers.c.
 */
#include "../../hook/symbols.h"

#define X(symbol, name, since, flags)                                                                        \
    __attribute__((visibility("default"), weak)) int symbol(void);                                           \
    int symbol(void)                                                                                         \
    {                                                                                                        \
        return 0;                                                                                            \
    }
CUDA_SYMBOLS(X)
CUDA_USED(X)
CUDA_SIMULATED(X)
#undef X
