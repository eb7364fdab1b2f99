/* Amounts of memory and shares of time, as a container's environment has them. */
#include "../../../hook/amounts.c"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t bytes = 77;
    uint32_t permille = 77;
    const char *text = fuzz_text(data, size);
    fuzz_insist(parse_bytes(text, &bytes) || bytes == 77);
    fuzz_insist(parse_percent(text, &permille) ? permille <= WHOLE_GPU_PERMILLE : permille == 77);
    return 0;
}
