/* The driver's own version text, by which the length of NVML's process entries is chosen. */
#include "../../../hook/nvml_stride.c"
#include "fuzz.h"

static const char *version_text;

static nvmlReturn_t tell_version(char *version, unsigned bytes)
{
    snprintf(version, bytes, "%s", version_text);
    return NVML_SUCCESS;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct real_nvml real = {.nvmlSystemGetDriverVersion = tell_version};
    version_text = fuzz_text(data, size);
    enum nvml_stride stride = nvml_stride_v3(&real);
    fuzz_insist(stride == STRIDE_V2 || stride == STRIDE_DETAIL);
    return 0;
}
