/* A line of the limits file that the agent changes while it is read: as a whole, right before each word that the
 * reader loads in turn. Prints what the line says then: memory, share of time, share lent and until when.
 */
#include "limits_layout.h"
#include "monotonic.h"

enum { OLD = 1, NEW = 2, WORDS = 8 };

static struct limits_file written;
static int loads_before;

static void say(unsigned what)
{
    struct limits_device *line = &written.devices[0];
    atomic_fetch_add(&line->sequence, 1);
    line->memory_limit_bytes = line->lent_until_ns = what;
    line->core_permille = line->lent_permille = what;
    atomic_fetch_add(&line->sequence, 1);
}

static void loading(void)
{
    if (loads_before-- == 0)
        say(NEW);
}

#define __atomic_load_n(at, order) (loading(), *(at))
#include "limits.c"
#undef __atomic_load_n

int main(void)
{
    file = &written;
    for (int at = 0; at <= WORDS; at++) {
        struct line line;
        uint32_t sequence;
        loads_before = -1;
        say(OLD);
        loads_before = at;
        bool whole = read_soon(0, &line, &sequence);
        printf("%d%d%d%d%d ", whole, (int)line.memory_limit_bytes, (int)line.core_permille,
               (int)line.lent_permille, (int)line.lent_until_ns);
    }
}
