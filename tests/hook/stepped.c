/*
 * Runs a tenant instruction by instruction and kills it after as many as it is told.
 *
 * stepped LIBRARY: per line on stdin, a number of instructions, a tenant is started with LIBRARY
 * preloaded, allocates 100 MiB and frees them, and is killed after so many instructions of that. Said
 * on stdout: "killed", "ended" if it was through before, or "failed". For the line "where" it is
 * stepped to its end, and said is at which steps it is in LIBRARY, as FROM-TO with TO past the last.
 * Exit code 77: no tracing here.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1UL << 20)

static void *found(void *library, const char *name)
{
	void *function = dlsym(library, name);
	if (function == NULL)
		_exit(3);
	return function;
}

static int tenant(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (cuda == NULL)
		return 3;
	int (*init)(unsigned) = found(cuda, "cuInit");
	int (*make)(void **, unsigned, int) = found(cuda, "cuCtxCreate_v2");
	int (*alloc)(unsigned long *, size_t) = found(cuda, "cuMemAlloc_v2");
	int (*give_back)(unsigned long) = found(cuda, "cuMemFree_v2");
	void *context = NULL;
	unsigned long place = 0;
	if (init(0) != 0 || make(&context, 0, 0) != 0)
		return 3;
	/* What is done at the first time only is not stepped. */
	if (alloc(&place, MIB) != 0 || give_back(place) != 0)
		return 3;
	raise(SIGTRAP); /* from here on it is stepped */
	int result = alloc(&place, 100 * MIB);
	if (result == 0)
		result = give_back(place);
	raise(SIGTRAP);
	return result == 0 ? 0 : 3;
}

/* Let it go on; gives the signal it stopped with, or 0 where it has ended. */
static int until_stop(pid_t pid, int how)
{
	int status = 0;
	if (ptrace(how, pid, NULL, NULL) != 0 || waitpid(pid, &status, 0) != pid)
		return 0;
	return WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
}

/* Whether a stop is the tenant's own raise, and not the end of a step. */
static int its_own(pid_t pid)
{
	siginfo_t why;
	memset(&why, 0, sizeof why);
	return ptrace(PTRACE_GETSIGINFO, pid, NULL, &why) == 0 && why.si_code == SI_TKILL;
}

static const char *killed_after(pid_t pid, long steps)
{
	const char *said = "failed";
	int stopped = until_stop(pid, PTRACE_CONT);
	if (stopped == SIGTRAP && its_own(pid)) {
		said = "killed";
		for (long step = 0; step < steps; step++) {
			stopped = until_stop(pid, PTRACE_SINGLESTEP);
			if (stopped != SIGTRAP) {
				said = "failed";
				break;
			}
			if (step > 0 && its_own(pid)) {
				said = "ended";
				break;
			}
		}
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return said;
}

/* Where the library lies in the tenant: from its first mapping to its last. */
static int lies(pid_t pid, const char *library, unsigned long *from, unsigned long *to)
{
	char path[64], line[8192];
	snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
	FILE *maps = fopen(path, "r");
	*from = *to = 0;
	while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
		unsigned long begin = 0, end = 0;
		if (strstr(line, library) != NULL && sscanf(line, "%lx-%lx", &begin, &end) == 2) {
			*from = *from ? *from : begin;
			*to = end;
		}
	}
	if (maps != NULL)
		fclose(maps);
	return *to > *from;
}

static void tell_where(pid_t pid, const char *library)
{
	unsigned long from = 0, to = 0;
	long begun = -1;
	if (until_stop(pid, PTRACE_CONT) == SIGTRAP && lies(pid, library, &from, &to)) {
		for (long step = 0; step == 0 || !its_own(pid); step++) {
			unsigned long at = (unsigned long)ptrace(
				PTRACE_PEEKUSER, pid, (void *)offsetof(struct user_regs_struct, rip), NULL);
			int inside = from <= at && at < to;
			if (inside && begun < 0)
				begun = step;
			if (!inside && begun >= 0) {
				printf("%ld-%ld ", begun, step);
				begun = -1;
			}
			if (until_stop(pid, PTRACE_SINGLESTEP) != SIGTRAP)
				break;
		}
	}
	puts("");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

int main(int count, char **words)
{
	if (count < 2)
		return tenant();
	char line[64];
	while (fgets(line, sizeof line, stdin) != NULL) {
		pid_t pid = fork();
		if (pid == 0) {
			if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
				_exit(77);
			setenv("LD_PRELOAD", words[1], 1);
			execl("/proc/self/exe", "tenant", (char *)NULL);
			_exit(3);
		}
		int status = 0;
		if (pid < 0 || waitpid(pid, &status, 0) != pid)
			return 1;
		if (!WIFSTOPPED(status))
			return WEXITSTATUS(status);
		if (strcmp(line, "where\n") == 0)
			tell_where(pid, words[1]);
		else
			puts(killed_after(pid, strtol(line, NULL, 10)));
		fflush(stdout);
	}
	return 0;
}
