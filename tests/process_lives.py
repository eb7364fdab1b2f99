"""What tests/hook/lives.c prints for each of its lives under a limit of 100 MiB, whatever they run on."""

import pytest

_LIVES = {
    "one": ("one process", ["new 0 0"]),
    "fork first": ("fork before cuInit", ["child 0 0", "parent 0 0"]),
    "vfork": ("vfork and exec", ["new 0 0", "parent 0 0"]),
    "exec": ("exec gives back what the old image had", ["before 0 2", "new 0 0"]),
    "threads": ("32 threads race for the first call", ["threads 11 21"]),
    "signals": ("lookups in a signal handler", ["signals 0 0"]),
    "end": ("calls at exit", ["main 0 0", "end 0 2"]),
    "end of who came first": ("calls at exit, after ours", ["main 0 0", "end 0 2"]),
}


def lives(*without: str) -> pytest.MarkDecorator:
    """Rows of `life` and what is `said`, but for the lives that are not lived there."""
    rows = [
        pytest.param(life, said, id=name)
        for life, (name, said) in _LIVES.items()
        if life not in without
    ]
    assert len(rows) == len(_LIVES) - len(without), without
    return pytest.mark.parametrize(("life", "said"), rows)
