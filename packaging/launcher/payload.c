/* Reads the gzip'd tar behind the launcher. Ours wrote it, but a truncated download must end in a sentence.
 */
#define _GNU_SOURCE
#include "payload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { BLOCK = 512, CHUNK = 1 << 17 };

static const char MAGIC[] = "VGPUONE2"; /* without its zero in the file */

const char *payload_find(const char *argv0, struct payload *payload)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length > 0)
        path[length] = '\0';
    else if (!realpath(argv0, path)) /* no /proc */
        return "it cannot find itself";
    payload->file = open(path, O_RDONLY | O_CLOEXEC);
    struct trailer trailer;
    off_t end = payload->file < 0 ? -1 : lseek(payload->file, 0, SEEK_END);
    if (end < (off_t)sizeof trailer)
        return "it cannot be read";
    if (pread(payload->file, &trailer, sizeof trailer, end - (off_t)sizeof trailer) != sizeof trailer
        || memcmp(trailer.magic, MAGIC, sizeof trailer.magic) != 0 || !memchr(trailer.name, '\0', NAME_SIZE)
        || trailer.name[0] == '\0' || strchr(trailer.name, '/')
        || trailer.offset + trailer.size + sizeof trailer != (uint64_t)end)
        return "its end is missing";
    payload->offset = trailer.offset;
    payload->size = trailer.size;
    payload->files = trailer.files;
    payload->bytes = trailer.bytes;
    memcpy(payload->name, trailer.name, NAME_SIZE);
    return NULL;
}

/* The uncompressed stream, read in order. */
struct stream {
    z_stream z;
    const struct payload *payload;
    uint64_t taken;
    unsigned char in[CHUNK], out[CHUNK];
    size_t at, filled;
    bool ended; /* and the sum of all was right */
};

static bool refill(struct stream *stream)
{
    stream->at = stream->filled = 0;
    while (stream->filled == 0) {
        if (stream->z.avail_in == 0) {
            uint64_t left = stream->payload->size - stream->taken;
            size_t want = left < CHUNK ? (size_t)left : CHUNK;
            ssize_t got = pread(stream->payload->file, stream->in, want,
                                (off_t)(stream->payload->offset + stream->taken));
            if (got <= 0)
                return false;
            stream->taken += (uint64_t)got;
            stream->z.next_in = stream->in;
            stream->z.avail_in = (unsigned)got;
        }
        stream->z.next_out = stream->out;
        stream->z.avail_out = CHUNK;
        int result = inflate(&stream->z, Z_NO_FLUSH);
        stream->ended = result == Z_STREAM_END;
        if (result != Z_OK && result != Z_STREAM_END)
            return false;
        stream->filled = CHUNK - stream->z.avail_out;
        if (result == Z_STREAM_END && stream->filled == 0)
            return false;
    }
    return true;
}

/* Take bytes: to memory, to a file, or to nowhere. */
static const char *take(struct stream *stream, uint64_t size, unsigned char *memory, int file)
{
    while (size > 0) {
        if (stream->at == stream->filled && !refill(stream))
            return "the file is damaged";
        size_t here = stream->filled - stream->at;
        here = here < size ? here : (size_t)size;
        if (memory) {
            memcpy(memory, stream->out + stream->at, here);
            memory += here;
        }
        for (size_t done = 0; file >= 0 && done < here;) {
            ssize_t wrote = write(file, stream->out + stream->at + done, here - done);
            if (wrote < 0)
                return strerror(errno);
            done += (size_t)wrote;
        }
        stream->at += here;
        size -= here;
    }
    return NULL;
}

/* A number of a tar header: octal digits. */
static uint64_t number(const unsigned char *field, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size && field[i] >= '0' && field[i] <= '7'; i++)
        value = value * 8 + (uint64_t)(field[i] - '0');
    return value;
}

/* The path of a ustar header, put together; false where it would lead out of the folder. */
static bool path_of(const unsigned char *header, char *path)
{
    int prefix = (int)strnlen((const char *)header + 345, 155);
    int name = (int)strnlen((const char *)header, 100);
    size_t length = 0;
    if (prefix > 0) {
        memcpy(path, header + 345, (size_t)prefix);
        length = (size_t)prefix;
        path[length++] = '/';
    }
    memcpy(path + length, header, (size_t)name);
    path[length + (size_t)name] = '\0';
    return path[0] != '\0' && path[0] != '/' && !strstr(path, "..");
}

static const char *unpack_file(struct stream *stream, int into, const char *path, uint64_t size, mode_t mode)
{
    int file = openat(into, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (file < 0)
        return strerror(errno);
    const char *why = take(stream, size, NULL, file);
    if (close(file) != 0 && !why)
        why = strerror(errno);
    return why ? why : take(stream, (BLOCK - size % BLOCK) % BLOCK, NULL, -1);
}

const char *payload_unpack(const struct payload *payload, int into)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream || inflateInit2(&stream->z, 16 + MAX_WBITS) != Z_OK)
        return "out of memory";
    stream->payload = payload;
    const char *why = NULL;
    while (!why) {
        unsigned char header[BLOCK];
        char path[PATH_MAX];
        why = take(stream, BLOCK, header, -1);
        if (why || header[0] == '\0')
            break;
        mode_t mode = (mode_t)number(header + 100, 8) & 0777;
        if (!path_of(header, path))
            why = "the file is damaged";
        else if (header[156] == '5')
            why = mkdirat(into, path, 0755) == 0 || errno == EEXIST ? NULL : strerror(errno);
        else if (header[156] == '0')
            why = unpack_file(stream, into, path, number(header + 124, 12), mode);
        else
            why = "the file is damaged";
    }
    while (!why && refill(stream)) { } /* to the end, where the checksum is */
    if (!why && !stream->ended)
        why = "the file is damaged";
    inflateEnd(&stream->z);
    free(stream);
    return why;
}
