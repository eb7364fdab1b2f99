/* The hook's files are given a driver of the test's own: whoever includes this has made `driver`. */
#ifndef ONE_DRIVER_H
#define ONE_DRIVER_H

_Atomic(const void *) real_known[DRIVERS] = {&driver, &driver};

const void *real_search(enum driver which, bool load)
{
    (void)which;
    return load ? &driver : NULL;
}

#endif
