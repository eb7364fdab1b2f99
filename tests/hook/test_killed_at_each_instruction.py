"""A tenant that is killed between any two instructions of the library takes nothing with it.

Parts of its life are tried apart. `build.py faults` kills at up to 2,500 instructions of each, which
is every one of an allocation; the test run at some 30.
"""

import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from built_hook import built
from c_programs import compiled
from hooked_programs import LIMIT, Node
from region_files import RegionFile
from tenants import Tenant, tenants
from waiting import eventually

NO_TRACING = 77
MOST = 2500 if os.environ.get("VGPU_TEST_FAULTS") == "all" else 30
AT_ONCE = 25  # as many places of the dead are looked after together
LIMITED = {LIMIT: "1000m"}

pytestmark = [
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="stepped.c reads registers of x86_64"
    ),
    pytest.mark.timeout(1800),
]


class Stepped:
    """Starts tenants and ends each before one of the library's instructions."""

    def __init__(
        self, node: Node, part: str, before: Callable[[], object] = lambda: None, **env: str
    ) -> None:
        self.before = before  # each tenant
        self.process = subprocess.Popen(
            [compiled("stepped.c", "-ldl"), built() / "libvgpu.so", part],
            env=node.environment(hook=False, **env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # Once a second an allocation looks at NVML's figures, which takes half as many again.
        self.count = min(int(self.asked("count")) for _ in range(5))
        self.killed = self.tried = 0

    def asked(self, line: object) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.before()
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline().strip()
        if not said and self.process.wait() == NO_TRACING:
            pytest.skip("no process may be traced here")
        return said

    def numbers(self) -> range:
        """Which instructions are tried; an odd step, so that loops are hit everywhere."""
        return range(0, self.count, -(-self.count // MOST) | 1)

    def kill(self, number: int) -> None:
        """Threads do not always meet alike: a tenant may end before it came there as often."""
        said = self.asked(number)
        assert said in {"killed", "ended"}, (number, said)
        self.tried += 1
        self.killed += said == "killed"


@contextmanager
def stepped(
    node: Node, part: str, before: Callable[[], object] = lambda: None, **env: str
) -> Iterator[Stepped]:
    made = Stepped(node, part, before, **env)
    try:
        yield made
        assert made.killed > made.tried * 3 // 4, (made.killed, made.tried)
    finally:
        made.process.kill()
        made.process.communicate()


def used(node: Node, watcher: Tenant) -> int:
    watcher.ask("info")  # which looks for the dead
    return RegionFile(node.cache).ledger()


@pytest.mark.parametrize(
    ("part", "least", "command", "env"),
    [
        pytest.param("start", 1000, "churn 3 20", {}, id="the first use of CUDA"),
        pytest.param("memory", 100, "churn 3 20", {}, id="an allocation and its end"),
        pytest.param("pool", 500, "churn 3 20", {}, id="an allocation in the order of a stream"),
        pytest.param("module", 100, "churn 3 20", {}, id="a module that is loaded and unloaded"),
        pytest.param(
            "launch", 1000, "launch 1", {"CUDA_DEVICE_SM_LIMIT": "30"}, id="launches under a limit"
        ),
        pytest.param("end", 10, "churn 3 20", {}, id="the end of the program"),
    ],
)
def test_whoever_is_killed_leaves_nothing(
    node: Node, part: str, least: int, command: str, env: dict[str, str]
) -> None:
    """One beside it goes on after each, and has all of the memory after some."""
    node.sim.kernel("kernel", 200)
    env = {**LIMITED, **env}
    with tenants(node, 1, **env) as (watcher,):
        watcher.ask(command)  # what is charged at the first time only
        at_rest = used(node, watcher)

        def nothing_is_left() -> None:
            eventually(
                lambda: used(node, watcher) == at_rest and RegionFile(node.cache).owned() == 1,
                within_s=60,
            )

        with stepped(node, part, **env) as tenant:
            assert tenant.count > least, "that part has more instructions"
            held = 0
            for tried, number in enumerate(tenant.numbers()):
                tenant.kill(number)
                held += RegionFile(node.cache).ledger() > at_rest
                assert watcher.ask(command)["result"] in {0, 2}, number
                assert RegionFile(node.cache).ledger() <= 1000 << 20, number
                if tried % AT_ONCE == AT_ONCE - 1:
                    nothing_is_left()
            nothing_is_left()
            assert held, "nobody was killed while something was reserved"
        rest_mib = watcher.ask("info")["devices"][0]["free_mib"]
        assert watcher.ask(f"alloc {rest_mib}")["ok"]
        assert RegionFile(node.cache).counter("underflows") == 0


def test_whoever_is_killed_while_the_region_is_made_spoils_it_for_nobody(node: Node) -> None:
    """The next one in the container makes it, or takes over what is there, and has all of the memory."""

    def anew() -> None:
        node.cache.unlink(missing_ok=True)

    with tenants(node, 1, **LIMITED) as (first,):
        free_mib = first.ask("info")["devices"][0]["free_mib"]
    with stepped(node, "start", anew, **LIMITED) as tenant:
        for number in tenant.numbers():
            tenant.kill(number)
            with tenants(node, 1, **LIMITED) as (after,):
                eventually(
                    lambda after=after: (  # type: ignore[misc] # it is asked within the turn
                        after.ask("info")["devices"][0]["free_mib"] == free_mib
                        and RegionFile(node.cache).owned() == 1
                    ),
                    within_s=60,
                    what=f"all of the memory after instruction {number}",
                )
