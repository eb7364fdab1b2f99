#include "memory.h"
#include "../process.h"
#include "node.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROWS = 4096, STATE_VERSION = 2 };
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

struct row {
    struct sim_holder who; /* pid 0: free */
    uint32_t gpu; /* position in uuids */
    uint64_t bytes;
};

struct state {
    uint32_t version, row_count; /* rows in use lie before row_count */
    char uuids[MAX_GPUS][TEXT_BYTES];
    uint64_t peak_bytes[MAX_GPUS]; /* the most that was ever in use at once, for tests to look at */
    struct row rows[ROWS];
    uint64_t openings; /* of the device file, so far */
};

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* flock does not keep threads of one process apart */
static struct state *state;
static int state_fd = -1;
static pid_t opened_by;
static const char *opened_for; /* the configuration it belongs to */
static struct sim_holder self; /* opening 0: has not opened the device */

static bool map_state(void)
{
    char path[SIM_PATH_BYTES];
    const char *configuration = sim_node_path();
    if (!configuration || snprintf(path, sizeof path, "%s.state", configuration) >= (int)sizeof path)
        return false;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return false;
    struct stat status;
    void *mapped = MAP_FAILED;
    if (flock(fd, LOCK_EX) == 0 && fstat(fd, &status) == 0
        && (status.st_size >= (off_t)sizeof *state || ftruncate(fd, sizeof *state) == 0))
        mapped = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        close(fd);
        return false;
    }
    state = mapped;
    state_fd = fd;
    state->version = STATE_VERSION;
    flock(fd, LOCK_UN);
    return true;
}

/* Take both locks. False, holding nothing, when there is no state to be had. */
static bool enter(void)
{
    pthread_mutex_lock(&lock);
    /* forked: a shared open file means a shared flock */
    if (state && (opened_by != getpid() || opened_for != sim_node_path())) {
        munmap(state, sizeof *state);
        close(state_fd);
        state = NULL;
    }
    if (!state) {
        if (!map_state()) {
            pthread_mutex_unlock(&lock);
            return false;
        }
        opened_by = getpid();
        opened_for = sim_node_path();
        self = (struct sim_holder){.pid = (uint32_t)opened_by, .start_time = process_start_time(opened_by)};
    }
    flock(state_fd, LOCK_EX);
    return true;
}

static void leave(void)
{
    flock(state_fd, LOCK_UN);
    pthread_mutex_unlock(&lock);
}

static int gpu_row(const char *uuid, bool add)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        if (strncmp(state->uuids[i], uuid, TEXT_BYTES) == 0)
            return i;
        if (state->uuids[i][0] == '\0') {
            if (!add)
                return -1;
            snprintf(state->uuids[i], TEXT_BYTES, "%s", uuid);
            return i;
        }
    }
    return -1;
}

static bool is_same(struct sim_holder a, struct sim_holder b)
{
    return a.pid == b.pid && a.start_time == b.start_time && a.opening == b.opening;
}

static struct flock device_lock(uint64_t opening)
{
    off_t start = (off_t)sizeof *state + (off_t)opening;
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
}

/* Never closed: it is open for as long as this process executes this program, or a child of it does. */
static void open_device(void)
{
    char path[SIM_PATH_BYTES];
    if (self.opening)
        return;
    snprintf(path, sizeof path, "%s.state", opened_for);
    struct flock device = device_lock(++state->openings);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &device) == 0)
        self.opening = state->openings;
    else if (fd >= 0)
        close(fd);
}

/* Whether the driver has freed what a process held. */
static bool is_released(struct sim_holder who)
{
    struct flock device = device_lock(who.opening);
    return fcntl(state_fd, F_OFD_GETLK, &device) != 0 || device.l_type == F_UNLCK;
}

/* Whether the row's memory is held; frees the row if not. */
static bool is_held(struct row *row)
{
    if (row->who.pid == 0)
        return false;
    if (is_same(row->who, self) || !is_released(row->who))
        return true;
    *row = (struct row){0};
    return false;
}

static struct row *row_at(uint32_t i)
{
    return i < ROWS && i < state->row_count ? &state->rows[i] : NULL;
}

static uint64_t used(int gpu)
{
    uint64_t bytes = 0;
    struct row *row;
    for (uint32_t i = 0; (row = row_at(i)); i++)
        if (row->who.pid && (int)row->gpu == gpu && is_held(row))
            bytes += row->bytes;
    return bytes;
}

static struct row *row_of(struct sim_holder who, int gpu, bool add)
{
    struct row *row, *vacant = NULL;
    for (uint32_t i = 0; (row = row_at(i)); i++) {
        if (is_same(row->who, who) && (int)row->gpu == gpu)
            return row;
        if (row->who.pid == 0 && !vacant)
            vacant = row;
    }
    if (!add)
        return NULL;
    if (!vacant && state->row_count < ROWS)
        vacant = &state->rows[state->row_count++];
    if (vacant)
        *vacant = (struct row){.who = who, .gpu = (uint32_t)gpu};
    return vacant;
}

static struct row *my_row(int gpu, bool add)
{
    return row_of(self, gpu, add);
}

uint64_t sim_memory_used(const char *uuid)
{
    if (!enter())
        return 0;
    int gpu = gpu_row(uuid, false);
    uint64_t bytes = gpu < 0 ? 0 : used(gpu);
    leave();
    return bytes;
}

size_t sim_memory_shares(const char *uuid, struct sim_share *shares, size_t room)
{
    if (!enter())
        return 0;
    int gpu = gpu_row(uuid, false);
    size_t count = 0, known;
    struct row *row;
    for (uint32_t i = 0; gpu >= 0 && (row = row_at(i)); i++) {
        if (!row->who.pid || (int)row->gpu != gpu || !is_held(row)
            || process_gone((int32_t)row->who.pid, row->who.start_time)) /* nobody that could be listed */
            continue;
        for (known = 0; known < count && known < room && shares[known].pid != row->who.pid; known++) { }
        if (known < count && known < room) { /* it has the driver twice, or had it in another program */
            shares[known].bytes += row->bytes;
            continue;
        }
        if (count < room)
            shares[count] = (struct sim_share){.pid = row->who.pid, .bytes = row->bytes};
        count++;
    }
    leave();
    return count;
}

enum sim_memory_answer sim_memory_take(const char *uuid, uint64_t bytes, uint64_t capacity_bytes)
{
    if (!enter())
        return SIM_MEMORY_BROKEN;
    enum sim_memory_answer answer = SIM_MEMORY_BROKEN;
    open_device();
    int gpu = gpu_row(uuid, true);
    uint64_t now = gpu < 0 ? 0 : used(gpu); /* first: it also frees the rows of the dead */
    struct row *row = gpu < 0 ? NULL : my_row(gpu, true);
    if (row && (now > capacity_bytes || bytes > capacity_bytes - now)) {
        answer = bytes ? SIM_MEMORY_FULL : SIM_MEMORY_DONE;
    } else if (row) {
        row->bytes += bytes;
        if (state->peak_bytes[gpu] < now + bytes)
            state->peak_bytes[gpu] = now + bytes;
        answer = SIM_MEMORY_DONE;
    }
    leave();
    return answer;
}

void sim_memory_give(const char *uuid, uint64_t bytes, bool gone)
{
    if (!enter())
        return;
    int gpu = gpu_row(uuid, false);
    struct row *row = gpu < 0 ? NULL : my_row(gpu, false);
    if (row) {
        row->bytes -= bytes < row->bytes ? bytes : row->bytes;
        if (gone)
            *row = (struct row){0};
    }
    leave();
}

/* --- held by several ------------------------------------------------------------------------------------ */

bool sim_memory_hold(struct sim_sharing *sharing)
{
    int i = 0;
    if (!enter())
        return false;
    while (i < SIM_HOLDERS && sharing->holders[i].pid)
        i++;
    if (i < SIM_HOLDERS)
        sharing->holders[i] = self;
    leave();
    return i < SIM_HOLDERS;
}

/* Called with the locks held, as is the next. */
static void remove_holder(struct sim_sharing *sharing, int i)
{
    size_t later = (size_t)(SIM_HOLDERS - 1 - i);
    memmove(&sharing->holders[i], &sharing->holders[i + 1], later * sizeof *sharing->holders);
    sharing->holders[SIM_HOLDERS - 1] = (struct sim_holder){0};
}

static void next_owner(int gpu, struct sim_sharing *sharing)
{
    struct row *from = my_row(gpu, false);
    struct sim_holder *next = sharing->holders;
    while (next->pid && process_gone((int32_t)next->pid, next->start_time))
        remove_holder(sharing, 0);
    if (from)
        from->bytes -= sharing->bytes < from->bytes ? sharing->bytes : from->bytes;
    struct row *to = next->pid ? row_of(*next, gpu, true) : NULL;
    if (to)
        to->bytes += sharing->bytes;
}

void sim_memory_let_go(const char *uuid, struct sim_sharing *sharing)
{
    if (!enter())
        return;
    int i = 0, gpu = sharing->bytes ? gpu_row(uuid, false) : -1; /* or it is of no GPU */
    while (i < SIM_HOLDERS && !is_same(sharing->holders[i], self))
        i++;
    if (i < SIM_HOLDERS)
        remove_holder(sharing, i);
    if (i == 0 && gpu >= 0)
        next_owner(gpu, sharing);
    leave();
}
