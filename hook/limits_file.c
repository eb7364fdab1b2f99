#include "limits_file.h"
#include "shortage.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[4096]; /* of the file that was looked at last */
static const char unreadable[] = "cannot be read"; /* errno says why */

/* Beside this library. False when that place has no name. */
static bool find_beside(void)
{
    Dl_info self;
    if (!dladdr((const void *)&path, &self) || !self.dli_fname)
        return false;
    const char *slash = strrchr(self.dli_fname, '/');
    int length = slash ? (int)(slash - self.dli_fname) + 1 : 0;
    return snprintf(path, sizeof path, "%.*s" LIMITS_NAME, length, self.dli_fname) < (int)sizeof path;
}

/* What is wrong with a file of this kind and size, NULL: nothing so far. */
static const char *complaint_of_file(const struct stat *status)
{
    return !S_ISREG(status->st_mode)     ? "is not a regular file"
        : status->st_size < LIMITS_BYTES ? "is too short"
                                         : NULL;
}

static const char *complaint_of_header(const struct limits_file *mapped)
{
    return mapped->magic != LIMITS_MAGIC                       ? "is not a limits file"
        : mapped->version != LIMITS_VERSION                    ? "has an unknown version"
        : mapped->device_count == 0                            ? "lists no device"
        : mapped->device_count > MAX_DEVICES                   ? "lists more devices than there can be"
        : mapped->core_policy > CORES_DISABLE                  ? "has an unknown core policy"
        : !memchr(mapped->cache_path, '\0', LIMITS_PATH_BYTES) ? "names a usage region without an end"
        : mapped->cache_path[0] != '\0' && mapped->cache_path[0] != '/' ? "names a relative usage region"
                                                                        : NULL;
}

static const char *map_file(int fd, const struct limits_file **mapped)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return unreadable;
    const char *complaint = complaint_of_file(&status);
    if (complaint)
        return complaint;
    void *whole = mmap(NULL, LIMITS_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (whole == MAP_FAILED)
        return unreadable;
    complaint = complaint_of_header(whole);
    if (complaint)
        munmap(whole, LIMITS_BYTES);
    else
        *mapped = whole;
    return complaint;
}

/* What is wrong with the file at `path`; NULL also when there is none. */
static const char *try_path(const struct limits_file **mapped)
{
    /* O_NONBLOCK: one that is a FIFO must not make us wait. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR ? NULL : unreadable;
    const char *complaint = map_file(fd, mapped);
    close(fd);
    return complaint;
}

void limits_file_complain(char *problem, size_t problem_bytes, const char *complaint)
{
    bool errs = complaint == unreadable;
    const char *advice = errs ? shortage_advice(errno) : NULL;
    snprintf(problem, problem_bytes, "%.120s %s%s%.60s; %s", path, complaint, errs ? ": " : "",
             errs ? strerror(errno) : "", advice ? advice : "the node's vGPU agent has to write it anew");
}

const struct limits_file *limits_file_map(char *problem, size_t problem_bytes)
{
    const struct limits_file *mapped = NULL;
    strcpy(path, LIMITS_PATH);
    const char *complaint = try_path(&mapped);
    if (!complaint && !mapped && find_beside())
        complaint = try_path(&mapped);
    if (complaint)
        limits_file_complain(problem, problem_bytes, complaint);
    return mapped;
}
