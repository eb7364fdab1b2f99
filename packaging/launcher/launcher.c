/* The front of the single file: unpack the folder behind it once, then become the program in it.
 *
 * One process from the first instruction on: no parent that forwards signals, nothing in /tmp, nothing left
 * behind by SIGKILL but at most a half-made directory, which the next start removes. The folder is named by
 * the hash of its content and by the boot, and holds a lock that every running program shares; one that
 * nobody runs is removed by the next start of another. Linked statically: it runs wherever the kernel does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "folder.h"
#include "payload.h"
#include "place.h"

enum { CANNOT_START = 2, REASON_SIZE = 160 };

/* Where we tried and why not, for the person who reads it when nothing worked. */
static char tried[PLACES * REASON_SIZE];

static bool remember(const char *place, const char *why)
{
    size_t used = strlen(tried);
    (void)snprintf(tried + used, sizeof tried - used, "\n  %s: %s", place, why);
    return false;
}

/* What is closed stays so for the program, but none of our files may come to have its number. */
static void keep_closed(void)
{
    int file;
    do
        file = open("/", O_PATH | O_CLOEXEC);
    while (file >= 0 && file <= STDERR_FILENO);
    if (file >= 0)
        close(file);
}

/* Have the folder in this directory, complete, and the path of the program in it; false with the reason
 * remembered, or the directory as it was opened was not to be had. */
static bool have_program(int place, const char *path, const char *why, const struct payload *payload,
                         char program[PATH_MAX])
{
    char name[FOLDER_SIZE] = "";
    if (place >= 0) {
        why = folder_ready(place, payload, name);
        close(place);
    }
    if (!why && snprintf(program, PATH_MAX, "%s/%s/vgpu-agent", path, name) >= PATH_MAX)
        why = strerror(ENAMETOOLONG);
    return why ? remember(path, why) : true;
}

static bool try_place(const char *path, const struct payload *payload, char program[PATH_MAX])
{
    const char *why = NULL;
    int place = place_open(path, &why);
    return have_program(place, path, why, payload, program);
}

static bool try_given(const char *given, const struct payload *payload, char program[PATH_MAX])
{
    const char *why = NULL;
    char path[PATH_MAX];
    int place = place_open_given(given, path, &why);
    return have_program(place, path, why, payload, program);
}

/* Nothing on this host may be written and executed: a file system of our own, which ends with us. */
static bool try_own_mount(const struct payload *payload, char program[PATH_MAX])
{
    static const char *const unused[] = {"/mnt", "/media", "/srv"};
    const char *name = "a file system of our own";
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0)
        return remember(name, strerror(errno));
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
        if (mount("vgpu-agent", unused[i], "tmpfs", MS_NOSUID | MS_NODEV, "mode=0700,size=256m") == 0)
            return try_place(unused[i], payload, program);
    return remember(name, strerror(errno));
}

static bool find_program(const struct payload *payload, char program[PATH_MAX])
{
    static struct places places;
    const char *given = getenv("VGPU_AGENT_RUNTIME_DIR");
    if (given && *given)
        return try_given(given, payload, program);
    places_find(&places);
    for (size_t i = 0; i < places.count; i++)
        if (try_place(places.path[i], payload, program))
            return true;
    return geteuid() == 0 && try_own_mount(payload, program);
}

int main(int argc, char **argv)
{
    (void)argc;
    struct payload payload;
    static char program[PATH_MAX];
    keep_closed();
    const char *why = payload_find(argv[0], &payload);
    if (why) {
        (void)fprintf(stderr, "vgpu-agent: this file is damaged (%s); fetch it again\n", why);
        return CANNOT_START;
    }
    if (!find_program(&payload, program)) {
        (void)fprintf(stderr,
                      "vgpu-agent: nowhere to unpack %s. Tried:%s\nSet VGPU_AGENT_RUNTIME_DIR to a directory "
                      "of your own with 64 MiB free, where files may be executed.\n",
                      payload.name, tried);
        return CANNOT_START;
    }
    argv[0] = program;
    execv(program, argv);
    (void)fprintf(stderr, "vgpu-agent: %s cannot be started: %s\n", program, strerror(errno));
    return CANNOT_START;
}
