/* Exchanges what libraries were given, when they were loaded, of the functions that they ask others for. */
#ifndef VGPU_REBIND_H
#define VGPU_REBIND_H

#include <link.h>

/* What a library is to have of the function `name` instead of `found`, which it was given; NULL there: it has
 * yet to be looked up. NULL: what it has, or what will be found. Called with the loader's locks held. */
typedef void *rebind_choice(const struct dl_phdr_info *library, const char *name, const void *found);

/* Libraries that are loaded from the first call of this on, */
void rebind_begin(void);

/* but for those that were there the last time. */
void rebind_new(rebind_choice *choose);

/* Libraries that keep the driver's functions in variables of their own, which have the functions' names: each
 * gets its variables where the loader has given it ours, and so does who is linked to it. By who has the
 * loader's lock. */
void rebind_variables(void);

#endif
