"""What somebody else wrote, in a sentence of ours."""

_MOST_CHARS = 80


def shown(text: str) -> str:
    """In quotes, in plain characters, and only its beginning where it is long."""
    return ascii(text if len(text) <= _MOST_CHARS else text[:_MOST_CHARS] + "...")


def bare(text: str) -> str:
    """The same without quotes: of what is a name by itself."""
    return shown(text)[1:-1]
