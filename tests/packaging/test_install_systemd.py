"""What is asked of systemd, and when an agent counts as up: against a systemctl that answers from a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.hostinstall.systemd import SERVES_S, SETTLE_S, HostSystemd, NotUpError

SYSTEMCTL = """#!/bin/sh
# show: the next line of the table, the last one for ever
case "$*" in *show*) ;; *) exit 0 ;; esac
read -r shown < "{table}"
printf '%b' "$shown"
[ "$(wc -l < "{table}")" -gt 1 ] && sed -i 1d "{table}"
exit 0
"""
UP, STARTS = "serving 2 of 2 GPUs", "driver: no library"


def shown(active: str = "active", pid: int = 7, status: str = UP) -> str:
    values = {"ActiveState": active, "Result": "success", "MainPID": pid, "StatusText": status}
    return "".join(f"{name}={value}\\n" for name, value in values.items())


@dataclass
class Clock:
    """Time passes only by sleeping."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Bench:
    """A systemd that shows one state after the other."""

    root: Path
    clock: Clock = field(default_factory=Clock)

    def systemd(self, states: Sequence[str]) -> HostSystemd:
        table, program = self.root / "table", self.root / "bin" / "systemctl"
        table.write_text("".join(f"{state}\n" for state in states))
        program.parent.mkdir()
        program.write_text(SYSTEMCTL.format(table=table))
        program.chmod(0o755)
        (program.parent / "journalctl").symlink_to("/bin/true")
        path = f"{program.parent}:/usr/bin:/bin"
        return HostSystemd(lambda _: "", {"PATH": path}, self.clock, self.clock.sleep)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_it_is_up_when_it_has_stayed_so_for_a_while(bench: Bench) -> None:
    bench.systemd([shown()]).start()
    assert SETTLE_S < bench.clock.now_s < SETTLE_S + 1
    assert SETTLE_S >= 2, "an agent that ends as soon as it is up does so within a second"


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(shown("failed", 0), id="it ends"),
        pytest.param(shown("activating", 0), id="it is started again"),
        pytest.param(shown("active", 8), id="it was started again"),
    ],
)
def test_what_comes_up_and_ends_is_not_up(bench: Bench, then: str) -> None:
    with pytest.raises(NotUpError, match="came up and ended again"):
        bench.systemd([shown(), shown(), shown(), then]).start()


def test_what_the_one_before_did_is_waited_for(bench: Bench) -> None:
    late = [shown(status=STARTS)] * 40
    bench.systemd([*late, shown()]).start(serves=True)
    assert SETTLE_S < bench.clock.now_s < SERVES_S


def test_it_is_not_waited_for_ever(bench: Bench) -> None:
    with pytest.raises(NotUpError, match=f"as the one before did: {STARTS}"):
        bench.systemd([shown(status=STARTS)]).start(serves=True)
    assert SERVES_S < bench.clock.now_s < SERVES_S + SETTLE_S + 2


def test_while_it_is_waited_for_it_has_to_stay_up(bench: Bench) -> None:
    states = [shown(status=STARTS)] * 40
    with pytest.raises(NotUpError, match="came up and ended again"):
        bench.systemd([*states, shown(pid=8)]).start(serves=True)


def test_nobody_waits_where_the_one_before_did_not_serve(bench: Bench) -> None:
    bench.systemd([shown(status=STARTS)]).start()
    assert bench.clock.now_s < SETTLE_S + 1


@pytest.mark.parametrize(
    ("state", "serves"),
    [
        pytest.param(shown(), True, id="it says so"),
        pytest.param(shown(status="serving 0 of 0 GPUs"), True, id="nothing is missing"),
        pytest.param(shown(status=STARTS), False, id="something is missing"),
        pytest.param(shown(status=""), False, id="it has said nothing"),
        pytest.param(shown("failed"), False, id="it has ended"),
    ],
)
def test_who_serves(bench: Bench, state: str, serves: bool) -> None:
    assert bench.systemd([state]).state().serving is serves
