/* The front of the single file: unpack the folder behind it once, then become the program in it.
 *
 * One process from the first instruction on: no parent that forwards signals, nothing in /tmp, nothing left
 * behind by SIGKILL but at most a half-made directory, which the next start removes. The folder is named by
 * the hash of its content and holds a lock that every running program shares; one that nobody runs is removed
 * when another is unpacked. Linked statically: it runs wherever the kernel does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "folder.h"
#include "payload.h"

enum { CANNOT_START = 2, REASON_SIZE = 160 };

/* Where we tried and why not, for the person who reads it when nothing worked. */
static char tried[8 * REASON_SIZE];

static void remember(const char *place, const char *why)
{
    size_t used = strlen(tried);
    (void)snprintf(tried + used, sizeof tried - used, "\n  %s: %s", place, why);
}

/* Make a directory and those above it that are missing. */
static bool make_directories(const char *path, mode_t mode)
{
    char part[PATH_MAX];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return false;
    for (char *slash = part + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        if (mkdir(part, 0755) != 0 && errno != EEXIST && errno != EROFS && errno != EACCES)
            return false;
    }
    return mkdir(part, mode) == 0 || errno == EEXIST;
}

/* Open a directory in which what we write stays ours, and may be executed; -1 with the reason remembered. */
static int open_place(const char *path)
{
    bool root = geteuid() == 0;
    if (!make_directories(path, root ? 0755 : 0700)) {
        remember(path, strerror(errno));
        return -1;
    }
    int place = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat status;
    struct statvfs mounted;
    const char *why = NULL;
    if (place < 0 || fstat(place, &status) != 0 || fstatvfs(place, &mounted) != 0)
        why = strerror(errno);
    else if (status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)))
        why = "others may write into it";
    else if (mounted.f_flag & ST_NOEXEC)
        why = "mounted noexec";
    if (!why)
        return place;
    remember(path, why);
    if (place >= 0)
        close(place);
    return -1;
}

/* Have the folder in this directory, complete; its path, or false with the reason remembered. */
static bool have_folder(const char *place_path, const struct payload *payload, char *program, size_t size)
{
    int place = open_place(place_path);
    if (place < 0)
        return false;
    const char *why = folder_ready(place, payload);
    close(place);
    if (why) {
        remember(place_path, why);
        return false;
    }
    return snprintf(program, size, "%s/%s/vgpu-agent", place_path, payload->name) < (int)size;
}

/* Nothing on this host may be written and executed: a file system of our own, which ends with us. */
static bool have_private_folder(const struct payload *payload, char *program, size_t size)
{
    static const char *const unused[] = {"/mnt", "/media", "/srv"};
    const char *name = "a file system of our own";
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0) {
        remember(name, strerror(errno));
        return false;
    }
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
        if (mount("vgpu-agent", unused[i], "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=256m") == 0)
            return have_folder(unused[i], payload, program, size);
    remember(name, strerror(errno));
    return false;
}

static bool try_place(const struct payload *payload, char *program, size_t size, const char *form, ...)
{
    char path[PATH_MAX];
    va_list values;
    va_start(values, form);
    int length = vsnprintf(path, sizeof path, form, values);
    va_end(values);
    return length > 0 && length < (int)sizeof path && have_folder(path, payload, program, size);
}

static bool find_place(const struct payload *payload, char *program, size_t size)
{
    const char *given = getenv("VGPU_AGENT_RUNTIME_DIR");
    if (given && *given)
        return try_place(payload, program, size, "%s", given);
    const char *home = getenv("HOME");
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *session = getenv("XDG_RUNTIME_DIR");
    unsigned uid = (unsigned)geteuid();
    if (uid == 0) {
        if (try_place(payload, program, size, "/var/lib/vgpu-agent/runtime")
            || try_place(payload, program, size, "/run/vgpu-agent/runtime"))
            return true;
    } else if ((cache && *cache == '/' && try_place(payload, program, size, "%s/vgpu-agent", cache))
               || (home && *home == '/' && try_place(payload, program, size, "%s/.cache/vgpu-agent", home))
               || (session && *session == '/' && try_place(payload, program, size, "%s/vgpu-agent", session)))
        return true;
    return try_place(payload, program, size, "/var/tmp/vgpu-agent-%u", uid)
        || try_place(payload, program, size, "/dev/shm/vgpu-agent-%u", uid)
        || (uid == 0 && have_private_folder(payload, program, size));
}

int main(int argc, char **argv)
{
    (void)argc;
    struct payload payload;
    char program[PATH_MAX], ourselves[PATH_MAX];
    const char *why = payload_find(argv[0], &payload, ourselves, sizeof ourselves);
    if (why) {
        (void)fprintf(stderr, "vgpu-agent: this file is damaged (%s); fetch it again\n", why);
        return CANNOT_START;
    }
    if (!find_place(&payload, program, sizeof program)) {
        (void)fprintf(stderr,
                      "vgpu-agent: nowhere to unpack %s. Tried:%s\nSet VGPU_AGENT_RUNTIME_DIR to a directory "
                      "of your own with 64 MiB free, where files may be executed.\n",
                      payload.name, tried);
        return CANNOT_START;
    }
    (void)setenv("VGPU_AGENT_EXECUTABLE", ourselves, 1); /* what `install` copies */
    argv[0] = program;
    execv(program, argv);
    (void)fprintf(stderr, "vgpu-agent: %s cannot be started: %s\n", program, strerror(errno));
    return CANNOT_START;
}
