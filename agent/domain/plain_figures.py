"""How are amounts told to people? Short, in binary units, and never more exact than they are."""

import math

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_STEP = 1024
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_TENS = 9.95  # from here on without a decimal


def size_text(count_bytes: int) -> str:
    """Bytes, e.g. "512 MiB" or "7.5 GiB"."""
    size, unit = float(count_bytes), 0
    while abs(size) >= _STEP - 0.5 and unit < len(_UNITS) - 1:
        size /= _STEP
        unit += 1
    text = f"{size:.0f}" if abs(size) >= _TENS else f"{size:.1f}".removesuffix(".0")
    return f"{text} {_UNITS[unit]}"


def span_text(seconds: float) -> str:
    """A length of time in its largest unit, e.g. "12 s" or "3 h"."""
    count = int(seconds)
    for length_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if count >= length_s:
            return f"{count // length_s} {unit}"
    return f"{count} s"


def share_text(share: float) -> str:
    """A share (0 to 1) in percent, e.g. "42 %"; something is never told as nothing."""
    percent = 100 * share
    return "<1 %" if 0 < percent < 1 else f"{math.floor(percent + 0.5)} %"
