/* The program that looks for new inputs, with libFuzzer's loop. */
#include "fuzz.h"

int LLVMFuzzerRunDriver(int *count, char ***arguments, int (*target)(const uint8_t *data, size_t size));

int main(int count, char **arguments)
{
    return LLVMFuzzerRunDriver(&count, &arguments, LLVMFuzzerTestOneInput);
}
