"""What does an environment file say? As systemd reads it; there are no expansions in it.

Source: systemd, systemd.exec(5), EnvironmentFile=, and what systemd 252 and later make of the cases
that the manual leaves open.
"""

import re

MAX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SPACE, _ESCAPED_IN_QUOTES = " \t\r", '"\\`$'


def parse(content: bytes) -> dict[str, str]:
    """Variables and their values; of several of one name the last. What is none is skipped.

    `#` and `;` begin a comment line. Quotes may span lines; a backslash at the end of a line joins
    it with the next.
    """
    text = content[:MAX_BYTES].decode("utf-8", "replace")
    found, at = {}, 0
    while at < len(text):
        if text[at] in _SPACE or text[at] == "\n":
            at += 1
            continue
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        equals = text.find("=", at, end)
        if text[at] in "#;" or equals < 0:
            at = end
            continue
        name = text[at:equals].rstrip(_SPACE)
        value, at = _value(text, equals + 1)
        if _NAME.fullmatch(name):
            found[name] = value
    return found


def _value(text: str, at: int) -> tuple[str, int]:
    """The value that begins here, and where the line ends on which it ends.

    It is made of quoted pieces, one after the other, and then of a plain one, in which a quote is
    a letter.
    """
    pieces = []
    while at < len(text) and text[at] != "\n":
        if text[at] in _SPACE:
            at += 1
        elif text[at] == "'":
            end = text.find("'", at + 1)
            end = len(text) if end < 0 else end
            pieces.append(text[at + 1 : end])
            at = end + 1
        elif text[at] == '"':
            piece, at = _in_double_quotes(text, at + 1)
            pieces.append(piece)
        else:
            piece, at = _plain(text, at)
            pieces.append(piece)
    return "".join(pieces), at


def _in_double_quotes(text: str, at: int) -> tuple[str, int]:
    out = []
    while at < len(text) and text[at] != '"':
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
            if text[at] != "\n":
                out.append(text[at] if text[at] in _ESCAPED_IN_QUOTES else f"\\{text[at]}")
        elif text[at] != "\\":
            out.append(text[at])
        at += 1
    return "".join(out), at + 1


def _plain(text: str, at: int) -> tuple[str, int]:
    out, kept = (
        [],
        0,
    )  # of `out`, what follows `kept` is space that ends the line if nothing follows
    while at < len(text) and text[at] != "\n":
        if text[at] == "\\":
            at += 1
            if at < len(text) and text[at] != "\n":
                out.append(text[at])
            kept = len(out)
        else:
            out.append(text[at])
            kept = kept if text[at] in _SPACE else len(out)
        at += 1
    return "".join(out[:kept]), at
