#include "amounts.h"
#include "settings.h"

#include <string.h>
#include <strings.h>

#define BLANKS " \t"
#define MOST_FRACTION_SCALE 1000000 /* further digits are only looked at to tell an amount from none */

struct number {
    uint64_t whole;
    uint64_t fraction, scale; /* fraction / scale < 1 */
    bool more; /* digits other than 0 that are not in the fraction */
    char unit[8];
};

static int digit_of(char letter, unsigned base)
{
    int digit = letter >= '0' && letter <= '9'             ? letter - '0'
        : (letter | 0x20) >= 'a' && (letter | 0x20) <= 'f' ? (letter | 0x20) - 'a' + 10
                                                           : -1;
    return digit < (int)base ? digit : -1;
}

static bool parse_whole(const char **text, uint64_t *whole)
{
    bool hexadecimal = (*text)[0] == '0' && ((*text)[1] | 0x20) == 'x' && digit_of((*text)[2], 16) >= 0;
    unsigned base = hexadecimal ? 16 : 10;
    const char *from = *text += hexadecimal ? 2 : 0;
    *whole = 0;
    for (int digit; (digit = digit_of(**text, base)) >= 0; ++*text)
        if (__builtin_mul_overflow(*whole, (uint64_t)base, whole)
            || __builtin_add_overflow(*whole, (uint64_t)digit, whole))
            return false;
    return *text > from;
}

static bool parse_fraction(const char **text, struct number *number)
{
    number->fraction = 0;
    number->scale = 1;
    number->more = false;
    if (**text != '.')
        return true;
    const char *from = ++*text;
    for (; digit_of(**text, 10) >= 0; ++*text) {
        if (number->scale >= MOST_FRACTION_SCALE) {
            number->more = number->more || **text != '0';
            continue;
        }
        number->fraction = number->fraction * 10 + (uint64_t)digit_of(**text, 10);
        number->scale *= 10;
    }
    return *text > from;
}

/* A number and one word behind it, the unit. */
static bool parse_number(const char *text, struct number *number)
{
    text += strspn(text, BLANKS);
    text += *text == '+';
    if (!parse_whole(&text, &number->whole) || !parse_fraction(&text, number))
        return false;
    text += strspn(text, BLANKS);
    size_t length = strcspn(text, BLANKS "\r\n");
    if (length >= sizeof number->unit || text[length + strspn(text + length, BLANKS "\r\n")])
        return false;
    memcpy(number->unit, text, length);
    number->unit[length] = '\0';
    return true;
}

static bool parse_unit(const char *text, unsigned *shift)
{
    static const char letters[] = "kmgt";
    if (*text == '\0' || strcasecmp(text, "b") == 0) {
        *shift = 0;
        return true;
    }
    for (unsigned i = 0; letters[i]; i++) {
        if ((*text | 0x20) != letters[i])
            continue;
        *shift = 10 * (i + 1);
        return text[1] == '\0' || strcasecmp(text + 1, "b") == 0 || strcasecmp(text + 1, "i") == 0
            || strcasecmp(text + 1, "ib") == 0;
    }
    return false;
}

/* Something so small that nothing is left of it: it must not mean none. */
static bool is_lost(const struct number *number, uint64_t result)
{
    return !result && (number->whole || number->fraction || number->more);
}

bool parse_bytes(const char *text, uint64_t *bytes)
{
    struct number number;
    unsigned shift = 0;
    if (!parse_number(text, &number) || !parse_unit(number.unit, &shift)
        || number.whole > UINT64_MAX >> (shift + 1) || (number.scale > 1 && shift == 0))
        return false;
    uint64_t amount = (number.whole << shift) + (number.fraction << shift) / number.scale;
    if (is_lost(&number, amount))
        return false;
    *bytes = amount;
    return true;
}

bool parse_percent(const char *text, uint32_t *permille)
{
    struct number number;
    if (!parse_number(text, &number) || (*number.unit && strcmp(number.unit, "%") != 0))
        return false;
    /* Never less than asked. */
    uint64_t tenths = (number.fraction * 10 + number.scale - 1) / number.scale;
    uint64_t share = number.whole >= 100 ? WHOLE_GPU_PERMILLE : number.whole * 10 + tenths;
    if (is_lost(&number, share))
        return false;
    *permille = (uint32_t)(share < WHOLE_GPU_PERMILLE ? share : WHOLE_GPU_PERMILLE);
    return true;
}
