/* Keys of kernels in usual shapes: prints how many kinds there were, how many keys, how many kinds lay in the
 * fullest set, and for how many the family was not their kernel's.
 */
#include "throttle.h"

#include <stdio.h>
#include <stdlib.h>

enum { FUNCTIONS = 4, GRIDS = 8, ROWS = 2, BLOCKS = 4, SHARED = 2, THREE_MORE = 8, MOST = 1 << 16 };

static uint64_t keys[MOST];
static int sets[ESTIMATE_SETS];

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    uintptr_t apart = argc > 1 ? (uintptr_t)atoi(argv[1]) : 16;
    int kinds = 0, distinct = 0, fullest = 0, strangers = 0;
    for (int i = 0; i < FUNCTIONS * GRIDS * ROWS * BLOCKS * SHARED * THREE_MORE; i++) {
        int rest = i;
        const void *function = (const void *)(0x7f0000001000 + apart * (uintptr_t)(rest % FUNCTIONS));
        rest /= FUNCTIONS;
        unsigned x = 1 + (unsigned)(rest % GRIDS);
        rest /= GRIDS;
        unsigned y = 1 + (unsigned)(rest % ROWS);
        rest /= ROWS;
        unsigned block = 128U << rest % BLOCKS;
        rest /= BLOCKS;
        unsigned shared = 1024 * (unsigned)(rest % SHARED);
        rest /= SHARED;
        unsigned z = 1 + (rest & 1), block_y = 1 + (rest >> 1 & 1), block_z = 1U + (unsigned)(rest >> 2);
        uint64_t key = estimate_key(function, x, y, z, block, block_y, block_z, shared);
        strangers += key >> FAMILY_AT != estimate_key(function, 7, 1, 5, 32, 3, 2, 0) >> FAMILY_AT;
        int in_set = ++sets[key >> 20 & (ESTIMATE_SETS - 1)];
        fullest = in_set > fullest ? in_set : fullest;
        keys[kinds++] = key;
    }
    qsort(keys, (size_t)kinds, sizeof *keys, by_value);
    for (int i = 0; i < kinds; i++)
        distinct += keys[i] != 0 && (i == 0 || keys[i] != keys[i - 1]);
    printf("%d %d %d %d\n", kinds, distinct, fullest, strangers);
    return 0;
}
