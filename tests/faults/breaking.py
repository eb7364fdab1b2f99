"""Orders to the agent of breaking_agent.py: end or wait at the so-many-th boundary from now."""

import ast
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from agent.sim.node import SimNode

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(Path(__file__).with_name("breaking_agent.py"))]
NUMBERS = itertools.count()


def names() -> dict[str, list[str]]:
    """Every boundary in the source, and where it is passed."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "agent").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _is_passed(node.func):
                (name,) = node.args
                assert isinstance(name, ast.Constant), f"{path}: a boundary's name is a literal"
                found.setdefault(str(name.value), []).append(f"{path.name}:{node.lineno}")
    return found


def _is_passed(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id == "passed"


class Breaking:
    """The orders for one node's agent."""

    def __init__(self, root: Path) -> None:
        self._order = root / "break.json"
        self._trail = root / "trail"

    @property
    def environ(self) -> dict[str, str]:
        return {"VGPU_TEST_BREAK": str(self._order)}

    def order(self, do: str, at: int, *, of: str = "") -> None:
        """From now on: `kill` or `hold` at boundary number `at`; 0: only note where it passes.

        With a name in `of`, at the so-many-th of that name.
        """
        self._trail = self._order.with_name(f"trail-{next(NUMBERS)}")
        text = json.dumps({"do": do, "at": at, "of": of, "trail": str(self._trail)})
        made = self._order.with_suffix(".new")
        made.write_text(text)
        made.rename(self._order)

    def order_like(self, do: str, trail: list[str], at: int) -> None:
        """At the boundary that was number `at` of an earlier trail, whatever other threads pass."""
        self.order(do, trail[:at].count(trail[at - 1]), of=trail[at - 1])

    def lift(self) -> None:
        self._order.unlink(missing_ok=True)

    def trail(self) -> list[str]:
        """The boundaries passed since the order."""
        return [line.split()[0] for line in lines_of(self._trail)]

    def reached(self) -> str:
        """The boundary at which the order was carried out; empty: none yet."""
        return next((line.split()[0] for line in lines_of(self._trail) if " " in line), "")


def lines_of(trail: Path) -> list[str]:
    """A boundary each; behind it a space and `kill` or `hold` where that was done."""
    return trail.read_text().splitlines() if trail.exists() else []


def carried_out(root: Path) -> dict[str, list[str]]:
    """By what was done: the boundaries at which the agents of these orders met it."""
    found: dict[str, list[str]] = {"kill": [], "hold": []}
    for trail in sorted(root.glob("trail-*")):
        for name, done in (line.split() for line in lines_of(trail) if " " in line):
            found[done].append(name)
    return found


def breaking_node(
    make_node: object, root: Path, *flags: str, **how: object
) -> tuple[SimNode, Breaking]:
    """A node whose agent obeys, and its orders."""
    breaking = Breaking(root)
    node = make_node(*flags, command=COMMAND, environ=breaking.environ, **how)  # type: ignore[operator]
    return node, breaking


def spread(count: int, most: int) -> Iterator[int]:
    """At most so many of 1 to `count`, the first and the last among them."""
    if count <= most:
        yield from range(1, count + 1)
        return
    yield from sorted({1 + round(n * (count - 1) / (most - 1)) for n in range(most)})
