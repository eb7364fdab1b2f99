/* What lies behind the launcher in the single file. */
#ifndef PAYLOAD_H
#define PAYLOAD_H

#include <stddef.h>
#include <stdint.h>

enum { NAME_SIZE = 64 };

/* The last bytes of the file, little-endian; written by packaging/bundling/single_file.py. */
struct trailer {
    char magic[8];
    uint64_t offset; /* of the gzip'd tar */
    uint64_t size;
    uint64_t files, bytes; /* how many it holds, and their sizes together */
    char name[NAME_SIZE]; /* of the folder that it becomes: ends with the hash of its content */
};

struct payload {
    int file;
    uint64_t offset, size, files, bytes;
    char name[NAME_SIZE];
};

/* Find it in the program that runs; NULL, or why not. */
const char *payload_find(const char *argv0, struct payload *payload);

/* Unpack it into a directory; NULL, or why not. */
const char *payload_unpack(const struct payload *payload, int into);

#endif
