/* What the targets share: bytes that end where readable memory ends, so that one byte too many is noticed by
 * any build, with or without a sanitizer.
 */
#ifndef VGPU_FUZZ_H
#define VGPU_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { FUZZ_ROOM = 1 << 21, FUZZ_GUARD = 1 << 16 };

/* libFuzzer's entry, which the replaying program calls as well. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A copy of the bytes with a NUL behind them, and nothing behind that. Valid until the next call. */
static inline char *fuzz_text(const uint8_t *data, size_t size)
{
    static char *room;
    if (!room) {
        room = mmap(NULL, FUZZ_ROOM + FUZZ_GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED || mprotect(room + FUZZ_ROOM, FUZZ_GUARD, PROT_NONE) != 0)
            abort();
    }
    size = size < FUZZ_ROOM ? size : FUZZ_ROOM - 1;
    char *text = room + FUZZ_ROOM - size - 1;
    memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

/* State what has to hold. */
static inline void fuzz_insist(int so)
{
    if (!so)
        abort();
}

#endif
