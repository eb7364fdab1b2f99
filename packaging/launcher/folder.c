/* Makes the folder, so that it is whole or not there, and removes those that nobody runs.
 *
 * Who uses a folder shares the lock of the directory itself; who empties one holds that lock alone. A folder
 * is unpacked under a name of chance, which is removed when its lock is free: that of a process that was
 * killed is. From then on, and for as long as its lock is shared, a name leads to the folder that it led to:
 * who runs the program in it comes back to it by its path. Nothing is flushed to the disk, because the name
 * has the boot in it: what a power cut may have left half-written is not looked at again, and removed.
 */
#define _GNU_SOURCE
#include "folder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEEPEST = 16, TRIES = 100, PAUSE_US = 10000, HASH_DIGITS = 16, CHANCE_DIGITS = 16 };

static const char PREFIX[] = "vgpu-agent-";
static const char MAKING[] = ".making-";

static int open_folder(int parent, const char *name)
{
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* The entries of a directory that stays open; NULL when they cannot be read. */
static DIR *entries_of(int directory)
{
    int again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again < 0 ? NULL : fdopendir(again);
    if (!entries && again >= 0)
        close(again);
    return entries;
}

/* The next entry but for the directory and its parent; NULL after the last. */
static const char *next_name(DIR *entries)
{
    struct dirent *entry;
    do
        entry = readdir(entries);
    while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    return entry ? entry->d_name : NULL;
}

/* Add up how many files lie below a directory, and their sizes. */
static void measure(int directory, int depth, uint64_t *files, uint64_t *bytes)
{
    DIR *entries = entries_of(directory);
    for (const char *name; entries && (name = next_name(entries));) {
        struct stat status;
        if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (S_ISREG(status.st_mode)) {
            ++*files;
            *bytes += (uint64_t)status.st_size;
        } else if (S_ISDIR(status.st_mode) && depth < DEEPEST) {
            int below = open_folder(directory, name);
            if (below >= 0) {
                measure(below, depth + 1, files, bytes);
                close(below);
            }
        }
    }
    if (entries)
        closedir(entries);
}

/* Remove all that lies below a directory, as far as that goes. */
static void empty(int directory, int depth)
{
    DIR *entries = entries_of(directory);
    for (const char *name; entries && (name = next_name(entries));) {
        if (unlinkat(directory, name, 0) == 0 || depth == DEEPEST)
            continue;
        int below = open_folder(directory, name);
        if (below >= 0) {
            empty(below, depth + 1);
            close(below);
        }
        (void)unlinkat(directory, name, AT_REMOVEDIR);
    }
    if (entries)
        closedir(entries);
}

static size_t hex_digits(const char *text)
{
    return strspn(text, "0123456789abcdef");
}

static void chance(char digits[CHANCE_DIGITS + 1])
{
    unsigned long long number = 0;
    (void)getrandom(&number, sizeof number, 0);
    (void)snprintf(digits, CHANCE_DIGITS + 1, "%016llx", number);
}

/* The boot that this is, or something that never comes again. Source: Linux, random(4), boot_id. */
static void boot(char digits[CHANCE_DIGITS + 1])
{
    char text[64] = "";
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    size_t used = 0;
    for (ssize_t i = 0; i < got && used < CHANCE_DIGITS; i++)
        if (isxdigit((unsigned char)text[i]))
            digits[used++] = text[i];
    digits[used] = '\0';
    if (used < CHANCE_DIGITS)
        chance(digits);
}

static void set_name(const struct payload *payload, const char *digits, char name[FOLDER_SIZE])
{
    (void)snprintf(name, FOLDER_SIZE, "%s-%s", payload->name, digits);
}

/* Whether this is a name that we give: while we make one, or vgpu-agent-<version>-<hash>-<boot or chance>. */
static bool is_our_name(const char *name)
{
    size_t length = strlen(name), tail = HASH_DIGITS + 1 + CHANCE_DIGITS;
    if (strncmp(name, MAKING, strlen(MAKING)) == 0)
        return length == strlen(MAKING) + CHANCE_DIGITS && hex_digits(name + strlen(MAKING)) == CHANCE_DIGITS;
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || length < strlen(PREFIX) + 2 + tail)
        return false;
    const char *hash = name + length - tail;
    return hash[-1] == '-' && hex_digits(hash) == HASH_DIGITS && hash[HASH_DIGITS] == '-'
        && hex_digits(hash + HASH_DIGITS + 1) == CHANCE_DIGITS;
}

/* Remove folders that nobody runs: of other versions and boots, and those of who was killed making them. */
static void remove_unused(int place, const char *except)
{
    DIR *entries = entries_of(place);
    for (const char *name; entries && (name = next_name(entries));) {
        struct stat status;
        if (strcmp(name, except) == 0 || !is_our_name(name))
            continue;
        int folder = open_folder(place, name);
        if (folder >= 0 && fstat(folder, &status) == 0 && status.st_uid == geteuid()
            && flock(folder, LOCK_EX | LOCK_NB) == 0) {
            empty(folder, 0);
            (void)unlinkat(place, name, AT_REMOVEDIR); /* no harm if another has that name by now */
        }
        if (folder >= 0)
            close(folder);
    }
    if (entries)
        closedir(entries);
}

/* Share the lock of a folder; it stays open through exec: that is how long it is used. -1 if it is gone, or
 * somebody removes it. */
static int shared(int place, const char *name)
{
    struct stat locked, named;
    int folder = openat(place, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (folder < 0)
        return -1;
    if (flock(folder, LOCK_SH | LOCK_NB) == 0 && fstat(folder, &locked) == 0
        && fstatat(place, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && locked.st_ino == named.st_ino
        && locked.st_dev == named.st_dev)
        return folder;
    close(folder);
    return -1;
}

static bool is_whole(int folder, const struct payload *payload)
{
    uint64_t files = 0, bytes = 0;
    measure(folder, 0, &files, &bytes);
    return files == payload->files && bytes == payload->bytes;
}

/* Share the folder if it is there and whole. */
static bool share_whole(int place, const struct payload *payload, const char *name)
{
    int folder = shared(place, name);
    if (folder < 0)
        return false;
    if (is_whole(folder, payload))
        return true;
    close(folder);
    return false;
}

/* Make an empty folder under a name of chance, and share its lock; -1 with the reason. */
static int made(int place, char making[FOLDER_SIZE], const char **why)
{
    *why = "a folder in it cannot be locked";
    for (int i = 0; i < TRIES; i++) {
        char digits[CHANCE_DIGITS + 1];
        chance(digits);
        (void)snprintf(making, FOLDER_SIZE, "%s%s", MAKING, digits);
        if (mkdirat(place, making, 0755) != 0) {
            if (errno == EEXIST)
                continue;
            *why = strerror(errno);
            return -1;
        }
        int folder = shared(place, making); /* or somebody took it for one that nobody has */
        if (folder >= 0)
            return folder;
        (void)unlinkat(place, making, AT_REMOVEDIR);
    }
    return -1;
}

/* Give the folder that we share its name, unless (`late`) somebody was faster. Where the name leads to one
 * that others run although it is not whole, ours gets one of chance; as it does where one is being removed
 * for longer than that takes. */
static const char *take_name(int place, const struct payload *payload, const char *making,
                             char name[FOLDER_SIZE], bool *late)
{
    for (int i = 0; i < TRIES; i++) {
        *late = share_whole(place, payload, name);
        if (*late || renameat(place, making, place, name) == 0)
            return NULL;
        (void)usleep(PAUSE_US);
    }
    char digits[CHANCE_DIGITS + 1];
    chance(digits);
    set_name(payload, digits, name);
    return renameat(place, making, place, name) == 0 ? NULL : strerror(errno);
}

const char *folder_ready(int place, const struct payload *payload, char name[FOLDER_SIZE])
{
    const char *why = NULL;
    char digits[CHANCE_DIGITS + 1];
    boot(digits);
    set_name(payload, digits, name);
    if (!share_whole(place, payload, name)) {
        char making[FOLDER_SIZE];
        remove_unused(place, ""); /* first: it may be what fills the disk */
        int folder = made(place, making, &why);
        if (folder < 0)
            return why;
        why = payload_unpack(payload, folder);
        bool late = false;
        if (!why)
            why = take_name(place, payload, making, name, &late);
        if (why || late)
            close(folder); /* nobody runs it */
    }
    remove_unused(place, name);
    return why;
}
