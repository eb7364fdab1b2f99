/* Replaces functions by a jump, and runs what it overwrites elsewhere, as UCX does to see GPU memory come and
 * go. What stands in their place counts, and goes on with the function. For x86-64.
 */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { JUMP_BYTES = 13, ROOM_BYTES = 64, PAGE_BYTES = 4096 };

static uint64_t calls;

uint64_t calls_counted(void)
{
    return calls;
}

/* The length of the instruction there, if it is one of those that every UCX knows; else 0. */
static int known(const uint8_t *code)
{
    if ((code[0] & 0xf8) == 0x50)
        return 1; /* push */
    if (code[0] == 0x41 && (code[1] & 0xf8) == 0x50)
        return 2;
    if (!memcmp(code, "\x48\x89\xe5", 3))
        return 3; /* mov %rsp, %rbp */
    if (!memcmp(code, "\x48\x81\xec", 3))
        return 7; /* sub $..., %rsp, of four bytes */
    return 0;
}

static uint8_t *put(uint8_t *at, const void *bytes, size_t count)
{
    memcpy(at, bytes, count);
    return at + count;
}

/* Where anything goes that is put at `at`: to that address, whatever the distance. */
static uint8_t *put_jump(uint8_t *at, const void *to)
{
    return put(put(put(at, "\x49\xbb", 2), &to, sizeof to), "\x41\xff\xe3", 3);
}

/* Give how many bytes of the function were understood; it is replaced where these are as many as it takes. */
int replace(uint8_t *function)
{
    int understood = 0, length;
    while (understood < JUMP_BYTES && (length = known(function + understood)))
        understood += length;
    if (understood < JUMP_BYTES)
        return understood;
    uint8_t *counts = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *page = (uint8_t *)((uintptr_t)function & -(uintptr_t)PAGE_BYTES);
    if (counts == MAP_FAILED || mprotect(page, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC))
        return -1;
    const uint64_t *counter = &calls;
    uint8_t *at = put(put(counts, "\x49\xbb", 2), &counter, sizeof counter); /* mov $counter, %r11 */
    at = put(at, "\xf0\x49\xff\x03", 4); /* lock incq (%r11) */
    at = put(at, function, (size_t)understood);
    put_jump(at, function + understood);
    put_jump(function, counts);
    return understood;
}
