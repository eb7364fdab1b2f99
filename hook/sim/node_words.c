#include "node_words.h"

#include "node.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool refuse(const struct line *line, const char *format, ...)
{
    int prefix = snprintf(line->problem, line->problem_bytes, "line %u: ", line->number);
    va_list arguments;
    va_start(arguments, format);
    if (prefix > 0 && (size_t)prefix < line->problem_bytes)
        vsnprintf(line->problem + prefix, line->problem_bytes - (size_t)prefix, format, arguments);
    va_end(arguments);
    return false;
}

static char escaped(char **cursor)
{
    char *c = *cursor + 1; /* behind the backslash */
    if (*c == 'x' && isxdigit((unsigned char)c[1]) && isxdigit((unsigned char)c[2])) {
        char digits[3] = {c[1], c[2], '\0'};
        *cursor = c + 3;
        return (char)strtoul(digits, NULL, 16);
    }
    *cursor = *c ? c + 1 : c;
    return *c;
}

/* Cut the line into words in place, unquoting. */
bool split(struct line *line, char *text)
{
    char *out = text;
    char *in = text;
    while (true) {
        while (*in == ' ' || *in == '\t' || *in == '\r')
            in++;
        if (*in == '\0' || *in == '#')
            return true;
        if (line->count == MAX_WORDS)
            return refuse(line, "more than %d words", MAX_WORDS);
        line->words[line->count++] = out;
        bool quoted = false;
        while (*in && (quoted || !strchr(" \t\r", *in))) {
            if (*in == '"') {
                quoted = !quoted;
                in++;
            } else if (quoted && *in == '\\') {
                *out = escaped(&in);
                if (*out++ == '\0')
                    return refuse(line, "a backslash must be followed by a character other than NUL");
            } else {
                *out++ = *in++;
            }
        }
        if (quoted)
            return refuse(line, "a quote is not closed");
        bool last = *in == '\0';
        *out++ = '\0'; /* at most where `in` stands: words only shrink */
        if (last)
            return true;
        in++;
    }
}

/* The value of `key=value` among the words, or NULL. */
const char *value_of(const struct line *line, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 1; i < line->count; i++)
        if (strncmp(line->words[i], key, length) == 0 && line->words[i][length] == '=')
            return line->words[i] + length + 1;
    return NULL;
}

bool parse_number(const struct line *line, const char *what, const char *text, long low, long high,
                  long *number)
{
    char *end;
    *number = text ? strtol(text, &end, 10) : low - 1;
    if (!text || end == text || *end != '\0' || *number < low || *number > high)
        return refuse(line, "%s must be a number from %ld to %ld", what, low, high);
    return true;
}

/* Like parse_number for an optional key with a default. */
bool number_of(const struct line *line, const char *key, long low, long high, long absent, long *number)
{
    const char *text = value_of(line, key);
    if (text)
        return parse_number(line, key, text, low, high, number);
    *number = absent;
    return true;
}

/* A number, or the word "unsupported", which is UNKNOWN. */
bool number_or_unsupported(const struct line *line, const char *key, long high, long absent, long *number)
{
    const char *text = value_of(line, key);
    if (text && strcmp(text, "unsupported") == 0) {
        *number = UNKNOWN;
        return true;
    }
    return number_of(line, key, 0, high, absent, number);
}

bool parse_choice(const struct line *line, const char *usual, const char *other, bool *is_other)
{
    *is_other = strcmp(line->words[1], other) == 0;
    return *is_other || strcmp(line->words[1], usual) == 0
        || refuse(line, "%s must be %s or %s", line->words[0], usual, other);
}

bool copy_text(const struct line *line, const char *what, const char *text, char *to, size_t bytes)
{
    if (!text || !*text || strlen(text) >= bytes)
        return refuse(line, "%s must have 1 to %zu characters", what, bytes - 1);
    memcpy(to, text, strlen(text) + 1);
    return true;
}

bool copy_or(const struct line *line, const char *key, const char *absent, char *to, size_t bytes)
{
    const char *text = value_of(line, key);
    return copy_text(line, key, text ? text : absent, to, bytes);
}
