#include "region_file.h"
#include "limits.h"
#include "loose.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    MAKING_PATIENCE_MS = 5000,
    PAUSE_NS = 200 * 1000,
    MOST_PAUSE_NS = 20 * PAUSE_NS,
    PERMISSIONS = 0666,
    OPENINGS = 16,
    SIGNALS = 1000, /* at which a call is made again */
    MOVED_BYTES = 2008985 /* or 1 less: HAMi-core's that claims version 1.1, whose fields lie elsewhere */
};

static dev_t mapped_device; /* which file it is; set before the mapping is told to anybody */
static ino_t mapped_inode;

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t coarse_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC_COARSE);
}

/* Longer each time: many who look often keep the one that they wait for from the processor. */
static void pause_briefly(long *pause_ns)
{
    *pause_ns = *pause_ns ? *pause_ns * 2 : PAUSE_NS;
    if (*pause_ns > MOST_PAUSE_NS)
        *pause_ns = MOST_PAUSE_NS;
    nanosleep(&(struct timespec){.tv_nsec = *pause_ns}, NULL);
}

/* A program that has closed its standard output or error may still write there, which must not land in the
 * region: until the file is open these numbers are taken by what nobody can write to. */
static unsigned occupy_standard(void)
{
    unsigned taken = 0;
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/", O_PATH | O_CLOEXEC) == fd)
            taken |= 1u << fd;
    return taken;
}

static void vacate_standard(unsigned taken)
{
    int error = errno;
    for (int fd = 0; taken; fd++, taken >>= 1)
        if (taken & 1 && fcntl(fd, F_GETFL) & O_PATH) /* not what the program has put there meanwhile */
            close(fd);
    errno = error;
}

/* A descriptor of its own each time: one that is inherited over fork would share its locks with the parent.
 */
static int open_path(int flags)
{
    return open(settings()->cache_path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | flags,
                PERMISSIONS);
}

/* 1 with the lock, 0 while somebody else has it, -1 with errno set. */
static int try_lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0 ? 1 : errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

bool region_file_is(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 && status.st_dev == mapped_device && status.st_ino == mapped_inode;
}

static int reopen(void)
{
    int fd = open_path(0);
    if (fd < 0 || region_file_is(fd))
        return fd;
    close(fd);
    errno = ESTALE;
    return -1;
}

int region_file_reopen(void)
{
    unsigned taken = occupy_standard();
    int fd = reopen();
    vacate_standard(taken);
    return fd;
}

int region_file_reopen_noted(_Atomic int *noted)
{
    unsigned taken = occupy_standard();
    int fd = reopen();
    for (int i = 0; fd >= 0 && atomic_exchange(noted, fd) != fd && i < OPENINGS; i++) {
        close(fd);
        fd = reopen();
    }
    vacate_standard(taken);
    return fd;
}

int region_file_lock(int patience_ms)
{
    int fd = region_file_reopen(), locked = 0;
    long pause_ns = 0;
    uint64_t deadline_ns = now_ns() + (uint64_t)patience_ms * 1000000;
    while (fd >= 0 && (locked = try_lock(fd)) == 0 && now_ns() < deadline_ns)
        pause_briefly(&pause_ns);
    if (fd >= 0 && locked != 1) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Unlocks by name: a mapping made from the descriptor keeps its lock past close. */
void region_file_unlock(int fd)
{
    int error = errno;
    flock(fd, LOCK_UN);
    close(fd);
    errno = error;
}

/* --- making it ------------------------------------------------------------------------------------------ */

/* Real blocks for all of it: writing into a hole of a full disk would end the process with SIGBUS. Where the
 * file system has no such call, libc writes into each block. */
static bool has_blocks(int fd)
{
    int error = EINTR;
    for (int tries = 0; tries < SIGNALS && error == EINTR; tries++)
        error = posix_fallocate(fd, 0, FILE_BYTES);
    errno = error;
    return error == 0;
}

static const char *complaint_of(const struct stat *status)
{
    return !S_ISREG(status->st_mode)                            ? "it is not a regular file"
        : status->st_size > 0 && status->st_size < REGION_BYTES ? "it is too short for a usage region"
        : (status->st_size | 1) == MOVED_BYTES                  ? REGION_OTHER_LAYOUT
                                                                : NULL;
}

/* A file that grows beyond the process's own limit would end it by a signal. */
static bool may_grow(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY
        || limit.rlim_cur >= FILE_BYTES)
        return true;
    errno = EFBIG;
    return false;
}

/* Its size and blocks. Called with the lock held. */
static const char *prepare(int fd)
{
    struct stat status;
    struct region_beginning beginning = {0};
    if (fstat(fd, &status) != 0)
        return strerror(errno);
    const char *complaint = complaint_of(&status);
    if (!complaint && read(fd, &beginning, sizeof beginning) < 0)
        return strerror(errno);
    complaint = complaint ? complaint : region_complaint(beginning);
    if (complaint)
        return complaint;
    if (status.st_uid == geteuid() && (status.st_mode & 0777) != PERMISSIONS)
        fchmod(fd, PERMISSIONS); /* other users of the container count here too, and may have begun to */
    if ((status.st_size < FILE_BYTES && (!may_grow() || ftruncate(fd, FILE_BYTES) != 0)) || !has_blocks(fd))
        return strerror(errno);
    return NULL;
}

static struct region *map(int fd, const char **problem)
{
    void *mapped = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) {
        madvise(mapped, FILE_BYTES, MADV_RANDOM); /* reading ahead would fill and clear the whole file */
        return mapped;
    }
    *problem = strerror(errno);
    return NULL;
}

/* The file as somebody else has made it; NULL when it is not (yet) in order. */
static struct region *map_as_it_is(int fd)
{
    struct stat status;
    const char *problem;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size < FILE_BYTES)
        return NULL;
    struct region *region = map(fd, &problem);
    if (region && !region_in_order(region)) {
        munmap(region, FILE_BYTES);
        region = NULL;
    }
    return region;
}

/* Unless there is a problem with that already. */
static struct region *make(int fd, const char **problem)
{
    if (!*problem)
        *problem = prepare(fd);
    struct region *region = *problem ? NULL : map(fd, problem);
    if (region)
        region_put_in_order(region);
    return region;
}

/* The first to get the lock makes it; all others only wait until it is made. */
static struct region *open_or_make(int fd, const char **problem)
{
    uint64_t deadline_ns = now_ns() + (uint64_t)MAKING_PATIENCE_MS * 1000000;
    struct region *region;
    long pause_ns = 0;
    while (!(region = map_as_it_is(fd))) {
        int locked = try_lock(fd);
        if (locked > 0) {
            region = map_as_it_is(fd);
            region = region ? region : make(fd, problem);
            flock(fd, LOCK_UN);
            return region;
        }
        if (locked < 0 || now_ns() > deadline_ns) {
            *problem = locked < 0 ? strerror(errno) : "another process keeps it locked";
            return NULL;
        }
        pause_briefly(&pause_ns);
    }
    return region;
}

/* What the agent has made, if it is that and as good as new. */
static struct region *map_made(int fd, const struct made_region *made, const char **problem)
{
    struct stat status;
    if (fstat(fd, &status) != 0) {
        *problem = strerror(errno);
        return NULL;
    }
    struct region *region = status.st_ino == made->inode ? map_as_it_is(fd) : NULL;
    if (region && region_tail(region)->id == made->id) {
        if (settings()->priority != DEFAULT_PRIORITY) /* the agent does not know it */
            loose_store(&region->priority, settings()->priority);
        return region;
    }
    if (region)
        munmap(region, FILE_BYTES);
    *problem = status.st_ino == made->inode ? "it was cut short or overwritten"
                                            : "it is not the file that the node's vGPU agent has made";
    return NULL;
}

/* Made only where there is none: asked to make what another user has made in a directory like /tmp, the
 * kernel may refuse to open it (fs.protected_regular). */
static int open_anybodys(void)
{
    int fd;
    do
        fd = open_path(0);
    while (fd < 0 && errno == ENOENT && (fd = open_path(O_CREAT | O_EXCL)) < 0 && errno == EEXIST);
    return fd;
}

/* Its maker opens it to all before he gives it a size: until then his umask may keep other users out. He may
 * have done both since. */
static bool was_being_made(int fd)
{
    struct stat status;
    return fd < 0 && errno == EACCES && stat(settings()->cache_path, &status) == 0
        && (status.st_size == 0 || status.st_mode & S_IWOTH);
}

struct region *region_file_open(const char **problem)
{
    struct stat status;
    int fd;
    long pause_ns = 0;
    uint64_t deadline_ns = now_ns() + (uint64_t)MAKING_PATIENCE_MS * 1000000;
    const struct made_region made = limits_region();
    /* A setuid program is told the path by who has fewer rights: it would make him a file where he may not,
     * or let everybody write one that is there. */
    *problem = !made.inode && getauxval(AT_SECURE) ? "a setuid program makes none: start another" : NULL;
    for (;; pause_briefly(&pause_ns)) {
        unsigned taken = occupy_standard();
        fd = made.inode || *problem ? open_path(0) : open_anybodys();
        vacate_standard(taken);
        if (!was_being_made(fd) || now_ns() > deadline_ns)
            break;
    }
    if (fd < 0) {
        if (!*problem || errno != ENOENT)
            *problem = strerror(errno);
        return NULL;
    }
    struct region *region = made.inode ? map_made(fd, &made, problem) : open_or_make(fd, problem);
    if (region && fstat(fd, &status) == 0) {
        mapped_device = status.st_dev;
        mapped_inode = status.st_ino;
    }
    close(fd);
    return region;
}
