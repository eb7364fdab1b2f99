/* Makes the folder by a rename, so that it is whole or not there, and removes those that nobody runs. */
#define _GNU_SOURCE
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DEEPEST = 16, YOUNG_S = 60 };

static const char LOCK[] = ".lock";
static const char PREFIX[] = "vgpu-agent-";
static const char MAKING[] = ".making-";

static int open_folder(int parent, const char *name)
{
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* How many files lie below a directory; it is closed. */
static uint64_t count_files(int directory, int depth)
{
    uint64_t count = 0;
    DIR *entries = fdopendir(directory);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        if (entry->d_name[0] == '.' && (!entry->d_name[1] || entry->d_name[1] == '.' || depth == 0))
            continue;
        struct stat status;
        if (fstatat(directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (S_ISREG(status.st_mode))
            count++;
        else if (S_ISDIR(status.st_mode) && depth < DEEPEST)
            count += count_files(open_folder(directory, entry->d_name), depth + 1);
    }
    if (entries)
        closedir(entries);
    return count;
}

/* Remove a directory and all below it, as far as that goes. */
static void remove_tree(int parent, const char *name, int depth)
{
    int directory = open_folder(parent, name);
    DIR *entries = directory < 0 ? NULL : fdopendir(directory);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlinkat(directory, entry->d_name, 0) != 0 && depth < DEEPEST)
            remove_tree(directory, entry->d_name, depth + 1);
    }
    if (entries)
        closedir(entries);
    (void)unlinkat(parent, name, AT_REMOVEDIR);
}

/* Take the lock of a folder: shared by who runs it, alone by who removes it. -1 when it is not to be had. */
static int lock_folder(int folder, int how, int flags)
{
    int lock = openat(folder, LOCK, O_RDONLY | O_CREAT | O_NOFOLLOW | flags, 0644);
    if (lock >= 0 && flock(lock, how | LOCK_NB) != 0) {
        close(lock);
        return -1;
    }
    return lock;
}

/* Whether a folder is one of ours and may be in nobody's use. One that was made just now may not be locked
 * yet. */
static bool may_be_unused(int place, const char *name)
{
    struct stat status;
    if (strncmp(name, MAKING, strlen(MAKING)) != 0)
        return strncmp(name, PREFIX, strlen(PREFIX)) == 0;
    return fstatat(place, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && time(NULL) - status.st_mtime > YOUNG_S;
}

/* Remove folders that nobody runs: of other versions, and half-made ones of who was killed. */
static void remove_unused(int place, const char *except)
{
    int copy = openat(place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        const char *name = entry->d_name;
        if (strcmp(name, except) == 0 || !may_be_unused(place, name))
            continue;
        int folder = open_folder(place, name);
        int lock = folder < 0 ? -1 : lock_folder(folder, LOCK_EX, O_CLOEXEC);
        if (folder >= 0)
            close(folder);
        if (lock >= 0) {
            remove_tree(place, name, 0);
            close(lock);
        }
    }
    if (entries)
        closedir(entries);
}

/* Share the folder if it is whole. The lock stays open through exec: that is how long it is used. */
static bool share_folder(int place, const struct payload *payload)
{
    int folder = open_folder(place, payload->name);
    if (folder < 0)
        return false;
    int lock = lock_folder(folder, LOCK_SH, 0);
    bool whole = count_files(folder, 0) == payload->files && lock >= 0;
    if (!whole && lock >= 0)
        close(lock);
    return whole;
}

const char *folder_ready(int place, const struct payload *payload)
{
    if (share_folder(place, payload))
        return NULL;
    char making[NAME_SIZE + 32];
    (void)snprintf(making, sizeof making, "%s%ld-%s", MAKING, (long)getpid(), payload->name);
    remove_tree(place, making, 0); /* of a process that had our number */
    if (mkdirat(place, making, 0755) != 0)
        return strerror(errno);
    int folder = open_folder(place, making);
    int lock = folder < 0 ? -1 : lock_folder(folder, LOCK_SH, 0);
    const char *why = lock < 0 ? "it cannot be locked" : payload_unpack(payload, folder);
    if (!why && renameat(place, making, place, payload->name) != 0) {
        close(lock); /* somebody was faster, or what is there is not whole */
        lock = -1;
        if (share_folder(place, payload)) {
            remove_tree(place, making, 0);
        } else {
            remove_tree(place, payload->name, 0);
            why = renameat(place, making, place, payload->name) == 0 && share_folder(place, payload)
                ? NULL
                : "what lies there under our name is not whole, and cannot be removed";
        }
    }
    if (folder >= 0)
        close(folder);
    if (why)
        remove_tree(place, making, 0);
    else
        remove_unused(place, payload->name);
    return why;
}
