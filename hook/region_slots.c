#include "region_slots.h"
#include "loose.h"
#include "process.h"
#include "region_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

/* An owner: pid (22 bits, the most Linux has), how far it is, and start time. */
#define OWNER_PID ((UINT64_C(1) << 22) - 1)
#define OWNER_UNLOCKED (UINT64_C(1) << 22)
#define OWNER_READY (UINT64_C(1) << 23)
enum { OWNER_TIME_SHIFT = 24, PAGE_BYTES = 4096 };

#define FIRST_TIME_NAMESPACE UINT32_C(0xeffffffa) /* its inode number: PROC_TIME_INIT_INO of Linux */
#define SPREAD UINT32_C(0x10001) /* inode numbers are close together: sums of two are to differ */

static _Atomic(struct region_slot *) mine;
_Atomic uint64_t slots_my_owner;
static _Atomic uint32_t my_namespace; /* 0: not asked yet, or not known */
static _Atomic(void *) copied; /* what holds our lock, for as long as a fork copies it by chance */
static _Atomic(void *) holder; /* the same, from then on */

/* --- locks ---------------------------------------------------------------------------------------------- */

/* Past everything that anybody else might lock. */
static struct flock lock_of(int index, short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = FILE_BYTES + index, .l_len = 1};
}

enum lock_answer { LOCK_TAKEN, LOCK_BUSY, LOCK_UNKNOWN };

static enum lock_answer take_lock(int fd, int index)
{
    struct flock lock = lock_of(index, F_WRLCK);
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return LOCK_TAKEN;
    return errno == EAGAIN || errno == EACCES ? LOCK_BUSY : LOCK_UNKNOWN;
}

static void drop_lock(int fd, int index)
{
    struct flock lock = lock_of(index, F_UNLCK);
    fcntl(fd, F_OFD_SETLK, &lock);
}

static enum lock_answer ask_lock(int fd, int index)
{
    struct flock lock = lock_of(index, F_WRLCK);
    if (fd < 0 || fcntl(fd, F_OFD_GETLK, &lock) != 0)
        return LOCK_UNKNOWN;
    return lock.l_type == F_UNLCK ? LOCK_TAKEN : LOCK_BUSY;
}

/* --- who is alive --------------------------------------------------------------------------------------- */

/* 0 where /proc is not of it, and nobody there is who has the number: locks decide then. In a time namespace
 * of its own a process sees other start times than the others: to them it is as of another pid namespace. */
static uint32_t this_namespace(void)
{
    struct stat status;
    uint32_t known = loose_load(&my_namespace);
    if (!known && process_start_time((int32_t)getpid()) && stat("/proc/self/ns/pid", &status) == 0) {
        known = (uint32_t)status.st_ino;
        if (stat("/proc/self/ns/time", &status) == 0)
            known += SPREAD * ((uint32_t)status.st_ino - FIRST_TIME_NAMESPACE);
        loose_store(&my_namespace, known);
    }
    return known;
}

static int32_t pid_in(uint64_t owner)
{
    return (int32_t)(owner & OWNER_PID);
}

static uint64_t start_time_in(uint64_t owner)
{
    return owner >> OWNER_TIME_SHIFT;
}

/* 0: not known. */
static uint32_t namespace_of(struct region_slot *slot, uint64_t owner)
{
    return owner & OWNER_READY ? atomic_load(&slot->pid_namespace) : 0;
}

static bool is_of_our_namespace(struct region_slot *slot, uint64_t owner)
{
    uint32_t namespace = namespace_of(slot, owner);
    return namespace && namespace == this_namespace();
}

static bool holds_any(struct region_slot *slot)
{
    uint64_t bytes = 0;
    for (int i = 0; i < MAX_DEVICES; i++)
        bytes |= atomic_load(&slot->used[i].total_bytes);
    return bytes;
}

static bool owner_is_dead(struct region_slot *slot, uint64_t owner, int fd, int index)
{
    bool visible = is_of_our_namespace(slot, owner);
    enum lock_answer lock = owner & OWNER_UNLOCKED ? LOCK_UNKNOWN : ask_lock(fd, index);
    if (lock == LOCK_BUSY) /* even so, if a child has it: and the driver's files, for as long as which it
                              keeps the memory */
        return visible && process_gone(pid_in(owner), start_time_in(owner)) && !holds_any(slot);
    if (lock == LOCK_TAKEN) /* its memory is gone, but as long as it exits its GPU memory may not be */
        return !visible || !process_is_exiting(pid_in(owner), start_time_in(owner));
    return (visible || !(owner & OWNER_READY)) && process_gone(pid_in(owner), start_time_in(owner));
}

static int32_t slot_count(struct region *region)
{
    int32_t count = loose_load(&region->slot_count);
    return count < 0 ? 0 : count > REGION_SLOTS ? REGION_SLOTS : count;
}

/* HAMi-core's, when it made the file: it knows nothing of owners. */
static bool is_foreign(struct region_slot *slot)
{
    return atomic_load(&slot->owner) == 0 && atomic_load(&slot->status) != 0;
}

unsigned slots_sweep(struct region *region, int fd)
{
    unsigned freed = 0;
    for (int32_t i = 0; i < slot_count(region); i++) {
        struct region_slot *slot = &region->slots[i];
        uint64_t owner = atomic_load(&slot->owner);
        if (is_foreign(slot)) {
            if (process_gone(atomic_load(&slot->pid), atomic_load(&slot->start_time))) {
                atomic_store(&slot->status, 0);
                freed++;
            }
        } else if (owner && slot != atomic_load(&mine) && owner_is_dead(slot, owner, fd, i)) {
            atomic_store(&slot->status, 0);
            freed += atomic_compare_exchange_strong(&slot->owner, &owner, 0);
        }
    }
    return freed;
}

bool slots_next(struct region *region, int place, int32_t *index, struct member *member)
{
    while (*index < slot_count(region)) {
        struct region_slot *slot = &region->slots[(*index)++];
        if (!(atomic_load(&slot->owner) & OWNER_READY) && !is_foreign(slot))
            continue;
        member->pid = loose_load(&slot->pid);
        member->host_pid = loose_load(&slot->host_pid);
        member->bytes = loose_load(&slot->used[place].total_bytes) & LEDGER_MOST_BYTES;
        return true;
    }
    return false;
}

struct holdings slots_hold(struct region *region, int place)
{
    struct holdings all = {.settled = true};
    for (int32_t i = 0; i < slot_count(region); i++) {
        struct region_slot *slot = &region->slots[i];
        struct region_usage *usage = &slot->used[place];
        bool ours = atomic_load(&slot->owner) & OWNER_READY;
        if (!ours && !is_foreign(slot))
            continue;
        uint64_t bytes = atomic_load(&usage->total_bytes);
        all.settled = all.settled && (!ours || bytes == usage_parts(usage));
        all.bytes += bytes & LEDGER_MOST_BYTES;
        if (bytes > all.largest_bytes) {
            all.largest_bytes = bytes;
            all.largest_pid = loose_load(&slot->pid);
        }
    }
    return all;
}

/* --- taking one ----------------------------------------------------------------------------------------- */

/* The slot is taken, but counts for nothing yet. */
static void set_in_order(struct region *region, struct region_slot *slot, int32_t index)
{
    uint64_t start_time = start_time_in(atomic_load(&slot->owner));
    memset((char *)slot + offsetof(struct region_slot, used), 0,
           offsetof(struct region_slot, status) - offsetof(struct region_slot, used));
    for (int i = 0; i < MAX_DEVICES; i++)
        loose_store(&slot->utilisation[i].counts_since, start_time);
    loose_store(&slot->sequence, 0); /* odd if HAMi-core was killed while it wrote */
    loose_store(&slot->host_pid, 0);
    loose_store(&slot->start_time, start_time);
    loose_store(&slot->pid, (int32_t)getpid());
    loose_store(&slot->pid_namespace, this_namespace());
    int32_t count = slot_count(region);
    while (count <= index && !atomic_compare_exchange_weak(&region->slot_count, &count, index + 1)) { }
}

/* Try to take this slot as `me`. */
static bool try_slot(struct region *region, int fd, int32_t index, uint64_t me)
{
    struct region_slot *slot = &region->slots[index];
    uint64_t nobody = 0;
    enum lock_answer lock = take_lock(fd, index);
    if (lock == LOCK_BUSY)
        return false;
    me |= lock == LOCK_UNKNOWN ? OWNER_UNLOCKED : 0;
    if (atomic_compare_exchange_strong(&slot->owner, &nobody, me)) {
        set_in_order(region, slot, index);
        if (atomic_compare_exchange_strong(&slot->owner, &me, me | OWNER_READY)) {
            atomic_store(&slots_my_owner, me | OWNER_READY);
            atomic_store(&mine, slot);
            atomic_store(&slot->status, 1);
            return true;
        }
    }
    drop_lock(fd, index);
    return false;
}

/* Whether the slot is this process's from before it executed this program; it is free then. Not if a child
 * has its lock and so the driver's files, which keep the memory. */
static bool free_from_before(struct region_slot *slot, uint64_t me, int fd, int index)
{
    uint64_t owner = atomic_load(&slot->owner);
    if ((owner & ~(OWNER_READY | OWNER_UNLOCKED)) != me
        || !(is_of_our_namespace(slot, owner) || owner_is_dead(slot, owner, fd, index)))
        return false;
    return !(holds_any(slot) && ask_lock(fd, index) == LOCK_BUSY)
        && atomic_compare_exchange_strong(&slot->owner, &owner, 0);
}

uint64_t slots_before_bytes(struct region *region, int place)
{
    const struct region_slot *own = atomic_load(&mine);
    uint32_t namespace = own ? loose_load(&own->pid_namespace) : 0; /* 0: not known */
    uint64_t bytes = 0;
    for (int32_t i = 0; namespace && i < slot_count(region); i++) {
        struct region_slot *slot = &region->slots[i];
        if (slot != own && slot_is_mine(slot) && loose_load(&slot->pid_namespace) == namespace)
            bytes += loose_load(&slot->used[place].total_bytes);
    }
    return bytes;
}

/* Holds the open file, and with it the lock, for as long as this process has its memory. Its place is known
 * before it is there, so that a fork finds it until none copies it any more. NULL with errno set. */
static void *keep_open(int fd)
{
    void *place = mmap(NULL, PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        return NULL;
    atomic_store(&copied, place);
    void *kept = mmap(place, PAGE_BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    int error = errno;
    if (kept == MAP_FAILED)
        munmap(place, PAGE_BYTES);
    else
        madvise(place, PAGE_BYTES, MADV_DONTFORK);
    errno = error;
    atomic_store(&holder, kept == MAP_FAILED ? NULL : kept);
    atomic_store(&copied, NULL);
    return atomic_load(&holder);
}

void slot_stays_in_children(void)
{
    void *kept = atomic_load(&holder);
    if (kept)
        madvise(kept, PAGE_BYTES, MADV_DOFORK);
}

struct region_slot *slot_take(struct region *region, int fd, bool *before)
{
    pid_t pid = getpid();
    uint64_t me = ((uint64_t)pid & OWNER_PID) | process_start_time(pid) << OWNER_TIME_SHIFT;
    void *keeper = keep_open(fd);
    if (!keeper)
        return NULL;
    errno = EUSERS;
    for (int32_t i = 0; i < REGION_SLOTS; i++) {
        struct region_slot *slot = &region->slots[i];
        if (free_from_before(slot, me, fd, i)) { /* not to be ours again: a sweeper that found it dead may be
                                                    about to free it, and would know no difference */
            atomic_store(&slot->status, 0);
            *before = true;
            continue;
        }
        if (atomic_load(&slot->owner) != 0 || is_foreign(slot))
            continue;
        if (try_slot(region, fd, i, me))
            return slot;
        errno = EUSERS;
    }
    int error = errno;
    munmap(keeper, PAGE_BYTES);
    errno = error;
    return NULL;
}

void slots_forget(void)
{
    atomic_store(&mine, NULL);
    atomic_store(&my_namespace, 0); /* a child may be in another one */
    void *copy = atomic_exchange(&copied, NULL);
    if (copy) /* or a hole, if the fork came as it was not copied any more */
        munmap(copy, PAGE_BYTES);
}
