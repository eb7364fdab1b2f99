/* The program that gives the kept inputs to a target again, without libFuzzer: replay FILE... */
#include "fuzz.h"

#include <stdio.h>

int main(int count, char **paths)
{
    static uint8_t data[FUZZ_ROOM];
    int done = 0;
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(paths[i], "rb");
        if (!file)
            return 2;
        size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        fprintf(stderr, "%s\n", paths[i]); /* the last one is the one it died of */
        LLVMFuzzerTestOneInput(data, size);
        done++;
    }
    printf("%d\n", done);
    return 0;
}
