/* /proc/PID/stat, whose second field is any text that a process has chosen. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>

static int open_input(void);
#define open(path, flags) open_input()
#include "../../../hook/process.c"
#undef open
#include "fuzz.h"

#include <sys/mman.h>

static const uint8_t *input;
static size_t input_size;

static int open_input(void)
{
    int fd = memfd_create("stat", MFD_CLOEXEC);
    if (fd < 0 || write(fd, input, input_size) < 0 || lseek(fd, 0, SEEK_SET) != 0)
        abort();
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input = data;
    input_size = size;
    uint64_t start_time = process_start_time((int32_t)getpid());
    fuzz_insist(!process_gone((int32_t)getpid(), start_time));
    process_is_exiting((int32_t)getpid(), start_time);
    return 0;
}
