/* A program that never touches CUDA, though it looks functions up: prints all of its state that a library in
 * it could have changed. Between its calls of getppid it does what such programs do.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static void list(const char *directory)
{
    DIR *all = opendir(directory);
    for (struct dirent *entry; (entry = readdir(all)) != NULL;) {
        char path[512], target[512] = "";
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(all) && readlink(path, target, sizeof target - 1) >= 0)
            printf("%s %s -> %.*s\n", directory, entry->d_name, (int)strcspn(target, "["), target);
    }
    closedir(all);
}

static void count(const char *directory)
{
    int entries = 0;
    DIR *all = opendir(directory);
    while (readdir(all))
        entries++;
    closedir(all);
    printf("%s has %d\n", directory, entries);
}

/* The lines of a file in /proc that begin with one of these words. */
static void copy(const char *path, const char *words)
{
    char line[1024];
    FILE *file = fopen(path, "r");
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (colon && (*colon = '\0', strstr(words, line)))
            printf("%s %s", line, colon + 1);
    }
    fclose(file);
}

/* Who has what mapped how, in order; addresses are random. */
static void maps(void)
{
    char line[1024], rights[8], path[512];
    FILE *file = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, file)) {
        path[0] = '\0';
        sscanf(line, "%*s %7s %*s %*s %*s %511s", rights, path);
        printf("map %s %s\n", rights, path);
    }
    fclose(file);
}

static void *thread(void *nothing)
{
    return nothing;
}

static void live(void)
{
    static const char *const names[] = {"qsort",
                                        "cudaMalloc",
                                        "curl_easy_init",
                                        "cublasCreate_v2",
                                        "nvmlNothing",
                                        "cuNothing",
                                        "cu",
                                        "nvml",
                                        "",
                                        "c",
                                        "n"};
    pthread_t other;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        dlsym(RTLD_DEFAULT, names[i]);
        dlsym(RTLD_NEXT, names[i]);
        dlerror();
    }
    pthread_create(&other, NULL, thread, NULL);
    pthread_join(other, NULL);
}

int main(int argc, char **argv)
{
    getppid();
    live();
    getppid();
    if (argc > 1 && strcmp(argv[1], "quiet") == 0)
        return 0;
    for (int signal = 1; signal < 65; signal++) {
        struct sigaction action;
        if (sigaction(signal, NULL, &action) == 0)
            printf("signal %d %d %x\n", signal, action.sa_handler != SIG_DFL, (unsigned)action.sa_flags);
    }
    char directory[512];
    mode_t mask = umask(0);
    printf("umask %o in %s, errno %d\n", mask, getcwd(directory, sizeof directory), errno);
    for (char **variable = environ; *variable; variable++)
        if (strncmp(*variable, "LD_PRELOAD=", 11) != 0)
            printf("environment %s\n", *variable);
    list("/proc/self/fd");
    count("/proc/self/task");
    copy("/proc/self/status", "Umask Threads SigPnd SigBlk SigIgn SigCgt CapEff NoNewPrivs Seccomp");
    maps();
    return 0;
}
