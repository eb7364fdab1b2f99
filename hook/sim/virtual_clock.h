/* How a program takes part in the virtual clock: exported by the simulated libcuda, used by virtual_time.c.
 */
#ifndef VGPU_SIM_VIRTUAL_CLOCK_H
#define VGPU_SIM_VIRTUAL_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#ifndef EXPORT
#define EXPORT __attribute__((visibility("default")))
#endif

/* The calling thread takes part from now on; time begins when `processes` have joined. `rank`: who goes first
 * among processes of the same time. -1 when time is real, or there is no room. */
int sim_clock_join(unsigned processes, unsigned rank);
bool sim_clock_joined(void);

/* The processor that all should run on: as only one runs at a time, changing between them is faster there. */
int sim_clock_processor(void);

/* A thread that is about to be created gets a number, by which it enters. 0: the creator takes no part. */
unsigned sim_clock_new_thread(void);
void sim_clock_enter(unsigned thread);

/* It ends (0: the calling one). */
void sim_clock_leave(unsigned thread);

/* The calling thread's time in ns; looking costs a little of it. */
uint64_t sim_clock_read(void);

/* The same, which takes no time: nobody else goes on meanwhile. */
uint64_t sim_clock_now(void);
void sim_clock_sleep_until(uint64_t ns);

#endif
