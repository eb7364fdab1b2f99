/* Where the folder is unpacked. */
#ifndef PLACE_H
#define PLACE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum { PLACES = 8 };

struct places {
    char path[PLACES][PATH_MAX];
    size_t count;
};

/* The directories in which to look, best first: those on a disk before those in memory, which the folder
 * would fill. */
void places_find(struct places *places);

/* Open the directory, made where it is missing, if what we write into it stays ours and may be executed; -1,
 * and why not. */
int place_open(const char *path, const char **why);

/* The directory that a user gave, in which ours is made: its path is put together. -1, and why not. */
int place_open_given(const char *given, char path[PATH_MAX], const char **why);

#endif
