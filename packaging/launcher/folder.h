/* The unpacked folder: made once, shared by all that run it, removed when nobody does. */
#ifndef FOLDER_H
#define FOLDER_H

#include "payload.h"

/* Have the folder complete below the directory `place`, and share its lock for as long as this process and
 * what it becomes live; NULL, or why not. */
const char *folder_ready(int place, const struct payload *payload);

#endif
