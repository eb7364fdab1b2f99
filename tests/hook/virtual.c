/* Puts a program that preloads this under the simulated driver's virtual clock, from virtual_begin() on:
 * alone.
 */
#include "virtual_time.c"

int virtual_begin(void);

int virtual_begin(void)
{
    return virtual_time_join(dlopen("libcuda.so.1", RTLD_NOW), 1, 0);
}
