/* Many processes at one ledger, as fast as they can: prints how often one that was given bytes saw more in
 * use than the limit allows, and what is left in the ledger at the end. Both must be 0.
 */
#include "../../hook/ledger.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 2, LIMIT = 1000, BYTES = 600 };

int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : 0;
    struct {
        struct ledger ledger;
        _Atomic long exceeded, ready;
    } *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < PROCESSES; i++) {
        if (fork() != 0)
            continue;
        for (shared->ready++; shared->ready < PROCESSES;)
            sched_yield(); /* start together */
        for (long given = 0; given < rounds;) {
            uint64_t used;
            if (!ledger_reserve(&shared->ledger, LIMIT, BYTES, &used))
                continue;
            given++;
            if (used > LIMIT || ledger_used(&shared->ledger) > LIMIT)
                shared->exceeded++;
            ledger_release(&shared->ledger, BYTES);
        }
        _exit(0);
    }
    while (wait(NULL) > 0) { }
    printf("%ld %lu\n", (long)shared->exceeded, (unsigned long)ledger_used(&shared->ledger));
    return 0;
}
