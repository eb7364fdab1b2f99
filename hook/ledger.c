#include "ledger.h"

uint64_t ledger_bytes_in(uint64_t word)
{
    return word & LEDGER_MOST_BYTES;
}

static uint64_t changed(uint64_t word, uint64_t bytes)
{
    return ((word & ~LEDGER_MOST_BYTES) + LEDGER_MOST_BYTES + 1) | bytes;
}

bool ledger_reserve(struct ledger *ledger, uint64_t limit_bytes, uint64_t bytes, uint64_t *taken)
{
    uint64_t most = limit_bytes && limit_bytes < LEDGER_MOST_BYTES ? limit_bytes : LEDGER_MOST_BYTES;
    uint64_t word = atomic_load_explicit(&ledger->word, memory_order_relaxed);
    do {
        uint64_t used = ledger_bytes_in(word);
        if (used > most || bytes > most - used)
            return false;
        *taken = used + bytes;
    } while (!atomic_compare_exchange_weak(&ledger->word, &word, changed(word, *taken)));
    return true;
}

uint64_t ledger_release(struct ledger *ledger, uint64_t bytes)
{
    uint64_t word = atomic_load_explicit(&ledger->word, memory_order_relaxed);
    uint64_t given;
    do {
        uint64_t used = ledger_bytes_in(word);
        given = bytes < used ? bytes : used; /* whoever can write the file can make it say less */
    } while (
        !atomic_compare_exchange_weak(&ledger->word, &word, changed(word, ledger_bytes_in(word) - given)));
    return given;
}

uint64_t ledger_used(const struct ledger *ledger)
{
    return ledger_bytes_in(ledger_read(ledger));
}

uint64_t ledger_read(const struct ledger *ledger)
{
    return atomic_load(&ledger->word);
}

bool ledger_correct(struct ledger *ledger, uint64_t seen, uint64_t bytes)
{
    if (bytes > LEDGER_MOST_BYTES)
        bytes = LEDGER_MOST_BYTES;
    return atomic_compare_exchange_strong(&ledger->word, &seen, changed(seen, bytes));
}
