"""A tenant that is killed between any two instructions of an allocation takes nothing with it.

Each of the library's own instructions is tried by `build.py faults`, every 29th by the test run.
"""

import os
import platform
import subprocess
from collections.abc import Iterator

import pytest
from built_hook import built
from c_programs import compiled
from hooked_programs import LIMIT, Node
from region_files import RegionFile
from tenants import Tenant, tenants
from waiting import eventually

NO_TRACING = 77
EACH = 1 if os.environ.get("VGPU_TEST_FAULTS") == "all" else 29  # a prime, so that loops are hit
AT_ONCE = 25  # as many places of the dead are looked after together


class Stepped:
    """Starts tenants and ends each after a number of instructions."""

    def __init__(self, node: Node) -> None:
        self.process = subprocess.Popen(
            [compiled("stepped.c", "-ldl"), built() / "libvgpu.so"],
            env=node.environment(hook=False, **{LIMIT: "1000m"}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _asked(self, line: object) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline().strip()
        if not said and self.process.wait() == NO_TRACING:
            pytest.skip("no process may be traced here")
        return said

    def killed_after(self, instructions: int) -> str:
        return self._asked(instructions)

    def in_the_library(self) -> list[int]:
        """After how many instructions the next one is the library's."""
        ranges = [piece.split("-") for piece in self._asked("where").split()]
        return [step for begin, end in ranges for step in range(int(begin), int(end))]


@pytest.fixture
def stepped(node: Node) -> Iterator[Stepped]:
    made = Stepped(node)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


def used(node: Node, watcher: Tenant) -> int:
    watcher.ask("info")  # which looks for the dead
    return RegionFile(node.cache).ledger()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="stepped.c reads registers of x86_64")
@pytest.mark.timeout(1800)
def test_whoever_is_killed_in_an_allocation_leaves_nothing(node: Node, stepped: Stepped) -> None:
    """One beside it goes on after each, and has all of the memory after some."""
    with tenants(node, 1, **{LIMIT: "1000m"}) as (watcher,):
        at_rest = used(node, watcher)

        def nothing_is_left() -> None:
            eventually(
                lambda: used(node, watcher) == at_rest and RegionFile(node.cache).owned() == 1,
                within_s=20,
            )

        steps = stepped.in_the_library()
        assert len(steps) > 100, "an allocation has more instructions than that"
        held = 0
        for number, step in enumerate(steps[::EACH]):
            assert stepped.killed_after(step) == "killed", step
            held += RegionFile(node.cache).ledger() > at_rest
            assert watcher.ask("churn 3 20")["result"] in {0, 2}, step
            assert RegionFile(node.cache).ledger() <= 1000 << 20, step
            if number % AT_ONCE == AT_ONCE - 1:
                nothing_is_left()
        nothing_is_left()
        assert held, "nobody was killed while something was reserved"
        rest_mib = watcher.ask("info")["devices"][0]["free_mib"]
        assert watcher.ask(f"alloc {rest_mib}")["ok"]
        assert RegionFile(node.cache).counter("underflows") == 0
