#include "region_file.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES = TAIL_OFFSET + TAIL_BYTES };

struct region_tail *region_tail(struct region *region)
{
    return (struct region_tail *)(void *)((char *)region + TAIL_OFFSET);
}

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A descriptor of its own each time: one that is inherited over fork would share its lock with the parent. */
int region_file_lock(int patience_ms)
{
    int fd = open(settings()->cache_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return -1;
    int64_t deadline_ms = now_ms() + patience_ms;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const struct timespec pause = {.tv_nsec = 1000 * 1000};
        if ((errno != EWOULDBLOCK && errno != EINTR) || now_ms() >= deadline_ms) {
            close(fd);
            return -1;
        }
        nanosleep(&pause, NULL);
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

bool region_file_back(int fd, size_t offset, size_t bytes)
{
    return fallocate(fd, 0, (off_t)offset, (off_t)bytes) == 0 || errno == EOPNOTSUPP || errno == ENOSYS;
}

static void write_header(struct region *region)
{
    const struct settings *now = settings();
    region->major = REGION_MAJOR;
    region->minor = REGION_MINOR;
    for (size_t i = 0; i < MAX_DEVICES; i++)
        region->sm_percent[i] = now->sm_percent;
    for (size_t i = 0; i < now->uuid_count; i++) {
        memcpy(region->uuids[i], now->uuids[i], UUID_BYTES);
        atomic_store(&region->limit_bytes[i], now->limit_bytes[i]);
    }
    atomic_store(&region->device_count, now->uuid_count);
    sem_init((sem_t *)(void *)region->lock, 1, 1);
    sem_init((sem_t *)(void *)region->start_lock, 1, 1);
    region->utilisation_switch = 1;
    region->recent_kernel = 2;
    region->priority = now->priority;
    region->last_kernel_time_s = (uint64_t)time(NULL);
    atomic_store(&region->magic, REGION_MAGIC);
}

/* The file, mapped and in order, or NULL with errno set. Called with its lock held. */
struct region *region_file_map(int fd)
{
    struct stat status;
    size_t end_of_header = offsetof(struct region, slots), trailer = offsetof(struct region, slot_count);
    if (fstat(fd, &status) != 0 || (status.st_size < FILE_BYTES && ftruncate(fd, FILE_BYTES) != 0)
        || !region_file_back(fd, 0, end_of_header) || !region_file_back(fd, trailer, REGION_BYTES - trailer)
        || !region_file_back(fd, TAIL_OFFSET, TAIL_BYTES))
        return NULL;
    if (status.st_uid == geteuid())
        fchmod(fd, 0666); /* other users of the container count here too */
    struct region *region = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (region == MAP_FAILED)
        return NULL;
    if (atomic_load(&region->magic) == 0)
        write_header(region);
    if (atomic_load(&region->magic) != REGION_MAGIC || region->major != REGION_MAJOR) {
        munmap(region, FILE_BYTES);
        errno = EPROTO;
        return NULL;
    }
    struct region_tail *tail = region_tail(region);
    if (atomic_load(&tail->magic) != TAIL_MAGIC) {
        tail->version = TAIL_VERSION;
        atomic_store(&tail->magic, TAIL_MAGIC);
    }
    return region;
}
