/* One line of the configuration, cut into words, and how numbers and texts are taken from it. What cannot be
 * taken is said in the line's `problem`. No state.
 */
#ifndef VGPU_SIM_NODE_WORDS_H
#define VGPU_SIM_NODE_WORDS_H

#include <stdbool.h>
#include <stddef.h>

enum { MAX_WORDS = 24 };

struct line {
    char *words[MAX_WORDS]; /* words[0] is the statement */
    size_t count;
    char *problem;
    size_t problem_bytes;
    unsigned number;
};

/* Say what is wrong with the line; always false. */
bool refuse(const struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Cut `text` into words, in place, unquoting. */
bool split(struct line *line, char *text);

/* The value of `key=value` among the words, or NULL. */
const char *value_of(const struct line *line, const char *key);

/* `text` (which may be NULL) as a number between `low` and `high`; `what` is its name in the complaint. */
bool parse_number(const struct line *line, const char *what, const char *text, long low, long high,
                  long *number);

/* The same for the value of a key, which may be absent. */
bool number_of(const struct line *line, const char *key, long low, long high, long absent, long *number);

/* A number from 0, or the word "unsupported", which gives UNKNOWN. */
bool number_or_unsupported(const struct line *line, const char *key, long high, long absent, long *number);

/* The word behind the statement, one of two: whether it is the other. */
bool parse_choice(const struct line *line, const char *usual, const char *other, bool *is_other);

/* `text` (which may be NULL), if it is neither empty nor too long. */
bool copy_text(const struct line *line, const char *what, const char *text, char *to, size_t bytes);

/* The same for the value of a key, which may be absent. */
bool copy_or(const struct line *line, const char *key, const char *absent, char *to, size_t bytes);

#endif
