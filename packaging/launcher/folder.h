/* The unpacked folder: made once, shared by all that run it, removed when nobody does. */
#ifndef FOLDER_H
#define FOLDER_H

#include "payload.h"

enum { FOLDER_SIZE = NAME_SIZE + 32 };

/* Have the folder complete in the directory `place`, which only we may enter, and share its lock for as long
 * as this process and what it becomes live; NULL and its name, or why not. */
const char *folder_ready(int place, const struct payload *payload, char name[FOLDER_SIZE]);

#endif
