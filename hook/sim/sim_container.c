/* The stand-in for a container runtime: starts one command in a root file system of its own.
 *
 *   sim-container [--env NAME=VALUE]... [--mount HOST CONTAINER ro|rw]... -- COMMAND [ARGUMENT]...
 *   sim-container --check          exit 0 when namespaces are allowed here, else EXIT_NOT_ALLOWED
 *
 * The root is a tmpfs with the host's programs and libraries (/usr, /bin, /lib*, read-only), a few files of
 * /etc, /proc, a minimal /dev, and then exactly the mounts given, shallow paths first as real runtimes do; a
 * mount point that is missing is made, in the host's directory if its parent is a mount. The environment is
 * exactly what is given. The command replaces this process and keeps its pid. Needs root or unprivileged user
 * namespaces.
 *
 * It does not imitate: pid, network and ipc namespaces, cgroups, capabilities, seccomp, images, CDI.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EXIT_NOT_ALLOWED = 77, EXIT_NO_ROOT = 78, EXIT_NO_COMMAND = 127 };
enum { MAX_MOUNTS = 128, MAX_ENVIRONMENT = 512 };

#define IMAGE "/.image"
#define ROOT "/tmp" /* exists everywhere; covered by the tmpfs in our mount namespace only */

struct binding {
    const char *host, *container;
    bool read_only;
    int source; /* O_PATH descriptor, so that covering /tmp does not hide it */
    size_t depth, order;
};

static struct binding bindings[MAX_MOUNTS];
static size_t binding_count;
static char *environment[MAX_ENVIRONMENT + 1];

static _Noreturn void fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

static _Noreturn void fail(int code, const char *format, ...)
{
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    fputs("sim-container: ", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, ": %s\n", strerror(error));
    exit(code);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail(EXIT_NOT_ALLOWED, "cannot write %s", path);
    close(fd);
}

/* A mount namespace of our own, with a user namespace around it where we are not allowed one directly. */
static void enter_namespaces(void)
{
    char map[64];
    uid_t uid = geteuid();
    gid_t gid = getegid();
    if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
            fail(EXIT_NOT_ALLOWED, "namespaces are not allowed here");
        write_file("/proc/self/setgroups", "deny");
        snprintf(map, sizeof map, "%u %u 1\n", uid, uid);
        write_file("/proc/self/uid_map", map);
        snprintf(map, sizeof map, "%u %u 1\n", gid, gid);
        write_file("/proc/self/gid_map", map);
    }
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        fail(EXIT_NOT_ALLOWED, "mounting is not allowed here");
}

static void cover_root(void)
{
    if (mount("sim-container", ROOT, "tmpfs", MS_NOSUID, "mode=0755") != 0)
        fail(EXIT_NOT_ALLOWED, "mounting is not allowed here");
}

/* Whether `path` is one of our links into the image; `target` then says where to, as seen from here. */
static bool links_to_image(const char *path, char target[PATH_MAX])
{
    size_t root = strlen(ROOT);
    memcpy(target, ROOT, root);
    ssize_t length = readlink(path, target + root, PATH_MAX - root - 1);
    if (length < 0)
        return false;
    target[root + (size_t)length] = '\0';
    return strncmp(target + root, IMAGE, strlen(IMAGE)) == 0;
}

/* Make the empty directory `path` look like the directory `image` (as seen from here), by links. */
static void fill_with_links(const char *path, const char *image)
{
    char link[PATH_MAX], target[PATH_MAX];
    DIR *directory = opendir(image);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (snprintf(link, sizeof link, "%s/%s", path, entry->d_name) >= (int)sizeof link
            || snprintf(target, sizeof target, "%s/%s", image + strlen(ROOT), entry->d_name)
                >= (int)sizeof target
            || symlink(target, link) != 0)
            fail(EXIT_NO_ROOT, "cannot link %s", link);
    }
    if (directory)
        closedir(directory);
}

/* A directory that can be written: a link into the read-only image is replaced by a directory of links. */
static void make_directory(const char *path)
{
    char target[PATH_MAX];
    bool linked = links_to_image(path, target);
    if ((linked && unlink(path) != 0) || (mkdir(path, 0755) != 0 && errno != EEXIST))
        fail(EXIT_NO_ROOT, "cannot make the directory %s", path);
    if (linked)
        fill_with_links(path, target);
}

/* Make the directories above `path`, and `path` itself as a directory or an empty file. */
static void make_mount_point(char *path, bool directory)
{
    char target[PATH_MAX];
    for (char *slash = strchr(path + strlen(ROOT) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        make_directory(path);
        *slash = '/';
    }
    if (directory) {
        make_directory(path);
        return;
    }
    if (links_to_image(path, target))
        unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0 && access(path, F_OK) != 0)
        fail(EXIT_NO_ROOT, "cannot make the mount point %s", path);
    if (fd >= 0)
        close(fd);
}

/* In a user namespace the flags of the host's mount are locked: a remount must repeat them. */
static unsigned long locked_flags(const char *path)
{
    static const struct {
        unsigned long seen, flag;
    } flags[] = {{ST_NOSUID, MS_NOSUID},   {ST_NODEV, MS_NODEV},           {ST_NOEXEC, MS_NOEXEC},
                 {ST_NOATIME, MS_NOATIME}, {ST_NODIRATIME, MS_NODIRATIME}, {ST_RELATIME, MS_RELATIME}};
    struct statvfs status;
    unsigned long locked = 0;
    if (statvfs(path, &status) == 0)
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
            if (status.f_flag & flags[i].seen)
                locked |= flags[i].flag;
    return locked;
}

static void bind(int source, const char *name, const char *container_path, bool read_only)
{
    char from[64], target[PATH_MAX];
    struct stat status;
    snprintf(from, sizeof from, "/proc/self/fd/%d", source);
    if (snprintf(target, sizeof target, "%s%s", ROOT, container_path) >= (int)sizeof target
        || fstat(source, &status) != 0)
        fail(EXIT_NO_ROOT, "cannot use the mount %s", container_path);
    make_mount_point(target, S_ISDIR(status.st_mode));
    if (mount(from, target, NULL, MS_BIND | (S_ISDIR(status.st_mode) ? MS_REC : 0), NULL) != 0)
        fail(EXIT_NO_ROOT, "cannot mount %s at %s", name, container_path);
    if (read_only
        && mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | locked_flags(target), NULL) != 0)
        fail(EXIT_NO_ROOT, "cannot make %s read-only", container_path);
}

static void bind_host(const char *path, bool read_only)
{
    int source = open(path, O_PATH | O_CLOEXEC);
    if (source < 0)
        return; /* not every host has each of them */
    bind(source, path, path, read_only);
    close(source);
}

/* The programs and libraries of the host stand for the image: read-only under IMAGE, reached through links.
 */
static void take_into_image(const char *path)
{
    char link[PATH_MAX], target[PATH_MAX];
    ssize_t length =
        readlink(path, link, sizeof link - 1); /* /bin and /lib are links into /usr on most hosts */
    if (length < 0) {
        int source = open(path, O_PATH | O_CLOEXEC);
        if (source < 0)
            return; /* not every host has each of them */
        snprintf(link, sizeof link, "%s%s", IMAGE, path);
        bind(source, path, link, true);
        close(source);
    } else {
        link[length] = '\0';
    }
    snprintf(target, sizeof target, "%s%s", ROOT, path);
    if (symlink(link, target) != 0)
        fail(EXIT_NO_ROOT, "cannot link %s", path);
}

static void make_root(void)
{
    static const char *const programs[] = {"/usr", "/bin", "/sbin", "/lib", "/lib64"};
    static const char *const files[] = {"/etc/ld.so.cache", "/etc/passwd", "/etc/group",
                                        "/etc/nsswitch.conf"};
    static const char *const devices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                          "/dev/urandom"};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        take_into_image(programs[i]);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        bind_host(files[i], true);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        bind_host(devices[i], false);
    bind_host("/proc", false);
    if (mkdir(ROOT "/tmp", 0755) != 0 || chmod(ROOT "/tmp", 01777) != 0)
        fail(EXIT_NO_ROOT, "cannot make /tmp");
}

static int shallow_first(const void *a, const void *b)
{
    const struct binding *first = a, *second = b;
    if (first->depth != second->depth)
        return first->depth < second->depth ? -1 : 1;
    return first->order < second->order ? -1 : 1;
}

static void open_sources(void)
{
    for (size_t i = 0; i < binding_count; i++) {
        bindings[i].source = open(bindings[i].host, O_PATH | O_CLOEXEC);
        if (bindings[i].source < 0)
            fail(EXIT_NO_ROOT, "cannot mount %s", bindings[i].host);
    }
}

/* Make ROOT the only file system there is. */
static void leave_host(void)
{
    if (chdir(ROOT) != 0 || syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0
        || chdir("/") != 0)
        fail(EXIT_NO_ROOT, "cannot change the root");
}

static void add_binding(char **words)
{
    struct binding *binding = &bindings[binding_count];
    *binding = (struct binding){.host = words[0], .container = words[1], .order = binding_count};
    binding->read_only = strcmp(words[2], "ro") == 0;
    for (const char *c = binding->container; *c; c++)
        binding->depth += *c == '/';
    errno = EINVAL;
    if (binding->container[0] != '/' || strstr(binding->container, "..")
        || (!binding->read_only && strcmp(words[2], "rw")))
        fail(EXIT_NO_ROOT, "a mount needs an absolute path and ro or rw, not %s %s", binding->container,
             words[2]);
    if (++binding_count == MAX_MOUNTS)
        fail(EXIT_NO_ROOT, "more than %d mounts", MAX_MOUNTS - 1);
}

/* Fill the tables; give the position of the command, or argc when there is none. */
static int parse(int argc, char **argv)
{
    size_t variables = 0;
    int i = 1;
    while (i < argc && strcmp(argv[i], "--") != 0) {
        if (strcmp(argv[i], "--env") == 0 && i + 1 < argc && variables < MAX_ENVIRONMENT) {
            environment[variables++] = argv[i + 1];
            i += 2;
        } else if (strcmp(argv[i], "--mount") == 0 && i + 3 < argc) {
            add_binding(argv + i + 1);
            i += 4;
        } else {
            errno = EINVAL;
            fail(EXIT_NO_ROOT, "cannot understand %s", argv[i]);
        }
    }
    return i + 1;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--check") == 0) {
        enter_namespaces();
        cover_root();
        return EXIT_SUCCESS;
    }
    int command = parse(argc, argv);
    if (command >= argc) {
        errno = EINVAL;
        fail(EXIT_NO_COMMAND, "there is no command");
    }
    enter_namespaces();
    open_sources(); /* in our namespace, for a bind takes none from another; before the tmpfs covers some of
                       them */
    cover_root();
    make_root();
    qsort(bindings, binding_count, sizeof *bindings, shallow_first);
    for (size_t i = 0; i < binding_count; i++)
        bind(bindings[i].source, bindings[i].host, bindings[i].container, bindings[i].read_only);
    leave_host();
    execve(argv[command], argv + command, environment);
    fail(EXIT_NO_COMMAND, "cannot start %s", argv[command]);
}
