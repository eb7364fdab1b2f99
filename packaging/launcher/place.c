/* Which directories there are for the folder, and which of them can be trusted. */
#define _GNU_SOURCE
#include "place.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { NOEXEC = 8, READ_ONLY = 1 }; /* of f_flags; source: Linux, include/linux/statfs.h */

/* The mounted file system that a path is on, or will be once it is made. */
static bool mounted_at(const char *path, struct statfs *mounted)
{
    char part[PATH_MAX];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return false;
    while (statfs(part, mounted) != 0) {
        char *slash = strrchr(part, '/');
        if (!slash || part[1] == '\0')
            return false;
        slash[slash == part] = '\0';
    }
    return true;
}

static bool is_in_memory(const char *path)
{
    struct statfs mounted;
    return mounted_at(path, &mounted) && (mounted.f_type == TMPFS_MAGIC || mounted.f_type == RAMFS_MAGIC);
}

static void add(struct places *places, const char *form, ...)
{
    va_list values;
    va_start(values, form);
    int length = vsnprintf(places->path[places->count], PATH_MAX, form, values);
    va_end(values);
    if (length > 0 && length < PATH_MAX)
        places->count++;
}

/* A directory of the user's, from a variable that names it absolutely. */
static void add_named(struct places *places, const char *form, const char *variable)
{
    const char *value = getenv(variable);
    if (value && *value == '/')
        add(places, form, value);
}

void places_find(struct places *places)
{
    struct places all = {.count = 0};
    unsigned uid = (unsigned)geteuid();
    if (uid == 0) {
        add(&all, "/var/lib/vgpu-agent/runtime");
        add(&all, "/var/tmp/vgpu-agent-0");
        add(&all, "/opt/vgpu-agent-runtime");
        add(&all, "/run/vgpu-agent-runtime");
    } else {
        add_named(&all, "%s/vgpu-agent", "XDG_CACHE_HOME");
        add_named(&all, "%s/.cache/vgpu-agent", "HOME");
        add(&all, "/var/tmp/vgpu-agent-%u", uid);
        add_named(&all, "%s/vgpu-agent", "XDG_RUNTIME_DIR");
    }
    add(&all, "/dev/shm/vgpu-agent-%u", uid);
    places->count = 0;
    for (int in_memory = 0; in_memory < 2; in_memory++)
        for (size_t i = 0; i < all.count; i++)
            if (is_in_memory(all.path[i]) == in_memory)
                add(places, "%s", all.path[i]);
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

/* Open a directory, made where it is missing; -1, and why not. */
static int open_directory(const char *path, mode_t mode, struct stat *status, const char **why)
{
    struct statfs mounted;
    if (mounted_at(path, &mounted) && mounted.f_flags & (NOEXEC | READ_ONLY)) {
        *why = mounted.f_flags & NOEXEC ? "mounted noexec" : "mounted read-only";
        return -1;
    }
    int directory = -1;
    if (make_directories(path, mode))
        directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory >= 0 && fstat(directory, status) == 0)
        return directory;
    *why = strerror(errno);
    if (directory >= 0)
        close(directory);
    return -1;
}

int place_open(const char *path, const char **why)
{
    struct stat status;
    int place = open_directory(path, 0700, &status, why);
    if (place < 0)
        return -1;
    /* who may enter it could lock what is in it */
    if (status.st_uid == geteuid() && !(status.st_mode & (S_IWGRP | S_IWOTH)) && fchmod(place, 0700) == 0)
        return place;
    *why = "others may write into it";
    close(place);
    return -1;
}

int place_open_given(const char *given, char path[PATH_MAX], const char **why)
{
    struct stat status;
    if (snprintf(path, PATH_MAX, "%s", given) >= PATH_MAX) {
        *why = strerror(ENAMETOOLONG);
        return -1;
    }
    int directory = open_directory(given, 0700, &status, why);
    if (directory < 0)
        return -1;
    close(directory);
    bool sticky = status.st_mode & S_ISVTX;
    if ((status.st_uid != geteuid() && status.st_uid != 0)
        || (status.st_mode & (S_IWGRP | S_IWOTH) && !sticky)) {
        *why = "others may write into it";
        return -1;
    }
    if (snprintf(path, PATH_MAX, "%s/vgpu-agent-runtime", given) >= PATH_MAX) {
        *why = strerror(ENAMETOOLONG);
        return -1;
    }
    return place_open(path, why);
}
