"""Mixes drawn at random: a thread's long kernels beside others' short ones, beside another container.

Always the same ones. Who waits for its launches may not be able to use its share: what it lacks is judged
by what it lacks with no limit of its own, while the others keep theirs.
"""

import random
from collections.abc import Iterator

from share_bed import Kernels, Tenant

MIXES, SEED = 120, 1
KERNELS: Kernels = {
    "s5": 5, "s20": 20, "s50": 50, "s100": 100, "s400": 400, "x": (2, 20), "v": (5, 300),
    "l1": 1000, "l2": 2000, "l5": 5000, "l10": 10_000, "l20": 20_000, "l50": 50_000, "w": (100, 2000),
}  # fmt: skip
LONG = [name for name in KERNELS if name[0] in "lw"]
SHORT = [name for name in KERNELS if name[0] in "sxv"]
SYNC = ("", ",sync=1", ",sync=4", ",sync=20")
STREAMS = ("", ",streams=2", ",streams=4")


def random_mixes(ms: int) -> Iterator[tuple[str, str, tuple[Tenant, ...], Kernels]]:
    """Group, name, tenants and kernels of each; all launch for so long."""
    draw = random.Random(SEED)  # noqa: S311 - no secret
    for _ in range(MIXES):
        percent = draw.choice((10, 30, 50, 70, 80, 90))
        other = draw.choice((100 - percent, max(10, (100 - percent) // 2)))
        ways = [draw.choice(LONG) + draw.choice(SYNC)]
        ways += [
            draw.choice(SHORT) + draw.choice(SYNC) + draw.choice(STREAMS)
            for _ in range(draw.choice((1, 1, 2)))
        ]
        neighbour = draw.choice(LONG + SHORT) + draw.choice(SYNC)
        phases = (f"thread={i},ms={ms},kernel={way}" for i, way in enumerate(ways, 1))
        tenants = (
            Tenant(percent, tuple(phases), threads=len(ways)),
            Tenant(other, (f"ms={ms},kernel={neighbour}",)),
        )
        yield (
            f"mixed: {' | '.join(ways)} beside {neighbour}",
            f"{percent}/{other}",
            tenants,
            KERNELS,
        )
