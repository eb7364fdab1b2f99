/*
 * Runs a tenant instruction by instruction and kills it after as many as it is told.
 *
 * stepped LIBRARY PART: per line on stdin, a number of instructions, a tenant is started with LIBRARY
 * preloaded, and is killed after so many instructions of one part of its life:
 *
 *   start   the first use of CUDA, a context and an allocation of 100 MiB among it
 *   memory  an allocation of 100 MiB, and its end
 *   pool    the same in the order of a stream, and what the pool keeps given back
 *   module  a module loaded, and unloaded
 *   launch  four kernels, and the wait for them
 *   end     what a program does when it ends, with 100 MiB and a module
 *
 * The instructions counted are the library's own, in the thread that plays. Said on stdout: "killed",
 * "ended" if it was through before, or "failed". For the line "count" it is stepped to its end, and said
 * is how many there are; before that nothing else can be asked. Of several counts the
 * shortest holds, as not every tenant meets what is done once a second. Exit code 77: no tracing here.
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

/* Driver functions; each gives 0 where it did what it is for. */
static int (*init)(unsigned);
static int (*make)(void **, unsigned, int);
static int (*alloc)(unsigned long *, size_t);
static int (*give_back)(unsigned long);
static int (*alloc_async)(unsigned long *, size_t, void *);
static int (*give_back_async)(unsigned long, void *);
static int (*default_pool)(void **, int);
static int (*trim)(void *, size_t);
static int (*load)(void **, const void *);
static int (*unload)(void *);
static int (*find)(void **, void *, const char *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		     void **);
static int (*wait_for_all)(void);

static void find_driver(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (cuda == NULL)
		_exit(3);
	init = found(cuda, "cuInit");
	make = found(cuda, "cuCtxCreate_v2");
	alloc = found(cuda, "cuMemAlloc_v2");
	give_back = found(cuda, "cuMemFree_v2");
	alloc_async = found(cuda, "cuMemAllocAsync");
	give_back_async = found(cuda, "cuMemFreeAsync");
	default_pool = found(cuda, "cuDeviceGetDefaultMemPool");
	trim = found(cuda, "cuMemPoolTrimTo");
	load = found(cuda, "cuModuleLoadData");
	unload = found(cuda, "cuModuleUnload");
	find = found(cuda, "cuModuleGetFunction");
	launch = found(cuda, "cuLaunchKernel");
	wait_for_all = found(cuda, "cuCtxSynchronize");
}

static int start(void)
{
	void *context = NULL;
	unsigned long place = 0;
	return init(0) || make(&context, 0, 0) || alloc(&place, 100 * MIB);
}

static int memory(void)
{
	unsigned long place = 0;
	return alloc(&place, 100 * MIB) || give_back(place);
}

static int pool(void)
{
	unsigned long place = 0;
	void *its = NULL;
	return default_pool(&its, 0) || alloc_async(&place, 100 * MIB, NULL) || give_back_async(place, NULL)
	    || wait_for_all() || trim(its, 0);
}

static int module(void)
{
	void *its = NULL;
	return load(&its, "image") || unload(its);
}

static int kernels(void)
{
	static void *function;
	void *its = NULL;
	if (function == NULL && (load(&its, "image") || find(&function, its, "kernel")))
		return 1;
	for (int i = 0; i < 4; i++)
		if (launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) != 0)
			return 1;
	return wait_for_all();
}

static int tenant(const char *part)
{
	static const struct {
		const char *name;
		int (*act)(void);
	} parts[] = {{"memory", memory}, {"pool", pool}, {"module", module}, {"launch", kernels}};
	find_driver();
	if (strcmp(part, "start") == 0) {
		raise(SIGTRAP); /* from here on it is stepped */
		int result = start();
		raise(SIGTRAP);
		return result == 0 ? 0 : 3;
	}
	if (start() != 0)
		return 3;
	if (strcmp(part, "end") == 0) {
		void *its = NULL;
		if (load(&its, "image") != 0)
			return 3;
		raise(SIGTRAP);
		exit(0);
	}
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		if (strcmp(part, parts[i].name) != 0)
			continue;
		if (parts[i].act() != 0) /* what is done at the first time only is not stepped */
			return 3;
		raise(SIGTRAP);
		int result = parts[i].act();
		raise(SIGTRAP);
		return result == 0 ? 0 : 3;
	}
	return 3;
}

/* What a trace found: where the library's instructions lie, in the order in which they are executed. */
struct trace {
	unsigned *offsets;
	long count, room;
};
static struct trace trace, shortest;

static void add(unsigned long offset)
{
	if (trace.count == trace.room) {
		trace.room = trace.room ? 2 * trace.room : 4096;
		trace.offsets = realloc(trace.offsets, (size_t)trace.room * sizeof *trace.offsets);
		if (trace.offsets == NULL)
			exit(1);
	}
	trace.offsets[trace.count++] = (unsigned)offset;
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

static unsigned long word_of(pid_t pid, size_t offset)
{
	return (unsigned long)ptrace(PTRACE_PEEKUSER, pid, (void *)offset, NULL);
}

/* Stop the thread that plays, and no other, before it executes what lies there; 0: nowhere any more. */
static int stop_at(pid_t pid, unsigned long address)
{
	void *control = (void *)offsetof(struct user, u_debugreg[7]);
	if (ptrace(PTRACE_POKEUSER, pid, control, (void *)0) != 0)
		return -1;
	if (address == 0)
		return 0;
	if (ptrace(PTRACE_POKEUSER, pid, (void *)offsetof(struct user, u_debugreg[0]), (void *)address) != 0)
		return -1;
	return (int)ptrace(PTRACE_POKEUSER, pid, control, (void *)1); /* the first, on execution */
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

static int returns_at(pid_t pid, unsigned long at)
{
	unsigned long code = (unsigned long)ptrace(PTRACE_PEEKTEXT, pid, (void *)at, NULL);
	return (code & 0xff) == 0xc3 || (code & 0xffff) == 0xc3f3;
}

static void keep_shortest(void)
{
	if (shortest.offsets == NULL || trace.count < shortest.count) {
		struct trace longer = shortest;
		shortest = trace;
		trace = longer;
	}
}

/* Step the library; what it calls runs at once, to where that returns. */
static const char *counted(pid_t pid, const char *library)
{
	unsigned long from = 0, to = 0, at = 0, before = 0;
	trace.count = 0;
	if (until_stop(pid, PTRACE_CONT) != SIGTRAP || !its_own(pid) || !lies(pid, library, &from, &to))
		return "failed";
	for (long step = 0; step == 0 || !its_own(pid); step++, before = at) {
		at = word_of(pid, offsetof(struct user_regs_struct, rip));
		int inside = from <= at && at < to, was_inside = from <= before && before < to;
		if (inside && at != before) /* one that repeats itself (rep stos) is stopped at only once */
			add(at - from);
		if (!inside && was_inside && !returns_at(pid, before)) {
			unsigned long stack = word_of(pid, offsetof(struct user_regs_struct, rsp));
			unsigned long back = (unsigned long)ptrace(PTRACE_PEEKDATA, pid, (void *)stack, NULL);
			if (stop_at(pid, back) != 0)
				exit(77);
			int stopped = 0;
			do /* whatever is called may call itself */
				stopped = until_stop(pid, PTRACE_CONT);
			while (stopped == SIGTRAP && !its_own(pid)
			       && word_of(pid, offsetof(struct user_regs_struct, rsp)) <= stack);
			if (stopped != SIGTRAP || its_own(pid))
				break;
			stop_at(pid, 0);
			at = back;
			/* not added: the next turn looks at it */
			before = 0;
			continue;
		}
		if (until_stop(pid, PTRACE_SINGLESTEP) != SIGTRAP)
			break;
	}
	return "";
}

static const char *killed_before(pid_t pid, const char *library, long number)
{
	unsigned long from = 0, to = 0;
	if (number < 0 || number >= shortest.count || until_stop(pid, PTRACE_CONT) != SIGTRAP || !its_own(pid)
	    || !lies(pid, library, &from, &to) || stop_at(pid, from + shortest.offsets[number]) != 0)
		return "failed";
	long nth = 0;
	for (long i = 0; i <= number; i++)
		nth += shortest.offsets[i] == shortest.offsets[number];
	while (nth-- > 0) {
		int stopped = until_stop(pid, PTRACE_CONT);
		if (stopped == 0 || (stopped == SIGTRAP && its_own(pid)))
			return "ended";
		if (stopped != SIGTRAP)
			return "failed";
	}
	return "killed";
}

int main(int count, char **words)
{
	if (count == 2 && strcmp(words[0], "tenant") == 0)
		return tenant(words[1]);
	if (count != 3)
		return 2;
	char line[64];
	while (fgets(line, sizeof line, stdin) != NULL) {
		pid_t pid = fork();
		if (pid == 0) {
			if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
				_exit(77);
			setenv("LD_PRELOAD", words[1], 1);
			execl("/proc/self/exe", "tenant", words[2], (char *)NULL);
			_exit(3);
		}
		int status = 0;
		if (pid < 0 || waitpid(pid, &status, 0) != pid)
			return 1;
		if (!WIFSTOPPED(status))
			return WEXITSTATUS(status);
		int counting = strcmp(line, "count\n") == 0;
		const char *said = counting ? counted(pid, words[1]) : killed_before(pid, words[1], strtol(line, NULL, 10));
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		if (counting && *said == '\0') {
			printf("%ld\n", trace.count);
			keep_shortest();
		} else
			puts(said);
		fflush(stdout);
	}
	return 0;
}
