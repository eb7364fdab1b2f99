"""What the names of cases of `build.py shares` mean, from the cases themselves."""

import re
from collections.abc import Iterable, Mapping, Sequence

from share_bed import Microseconds

from tests.bench.share_case import Case, length

WORDS: Mapping[str, str] = {  # as in hook/sim/sim_gpu_tenant.c
    "kernel": "which kernels a thread launches; `a+b`: these in turn",
    "sync": "waits for its stream after every so many launches; without it never",
    "streams": "streams of each thread, used in turn (0: the default stream); without it one",
    "by": "the call that launches: `cuLaunchKernelEx` (`ex`), `cuLaunchCooperativeKernel` "
    "(`cooperative`) or `cuGraphLaunch` (`graph`)",
    "nodes": "kernels in a graph",
    "burst": "launches so many, then waits for them and pauses",
    "idle_us": "for so many microseconds",
    "shapes": "the grid takes so many sizes in turn, so that each kernel is as many kinds",
}
_WORD = re.compile(r"\b([a-z_]+)=")
_NAMED = re.compile(r"(?:kernel=|mixed: |\| |beside )([a-z0-9+]+)(?=,| |$)")


def words_in(group: str) -> set[str]:
    """The words before a `=` in a group's name."""
    return set(_WORD.findall(group))


def kernels_in(cases: Iterable[Case]) -> dict[str, Microseconds]:
    """Those of the cases' kernels that their groups' names have, and how long they are."""
    found: dict[str, Microseconds] = {}
    order: dict[str, None] = {}
    for case in cases:
        for names in _NAMED.findall(case.group):
            found |= {name: case.kernels[name] for name in names.split("+") if name in case.kernels}
        order |= dict.fromkeys(case.kernels)
    return {name: found[name] for name in order if name in found}


def legend(families: Mapping[str, Sequence[Case]]) -> str:
    """The section of the page that explains its names."""
    used = {word for cases in families.values() for case in cases for word in words_in(case.group)}
    words = [f"- `{word}=`: {text}" for word, text in WORDS.items() if word in used]
    kernels = [
        f"- {name}: " + ", ".join(f"`{kernel}` {length(us)}" for kernel, us in named.items())
        for name, cases in families.items()
        if (named := kernels_in(cases))
    ]
    return (
        "\n## How cases are named\n\n"
        "A name says what is launched: how long each kernel takes, on how many threads and streams. "
        "`beside` is between containers, `|` between threads of one, and `limits, %` has their limits in "
        "the same order. `2 us to 20 us` is another length at each launch, `20 us, one in 100 of 2 ms` one "
        "that is long now and then, `each new` a kind that was never launched before.\n"
        + ("\n" + "\n".join(words) + "\n" if words else "")
        + (
            "\nKernels that are called by letters, in cases of\n\n" + "\n".join(kernels) + "\n"
            if kernels
            else ""
        )
    )
