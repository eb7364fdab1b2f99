"""Totals on disk: what a killed agent, a full disk or a power cut leave, and that none goes back."""

import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent import logs
from agent.adapters import safe_files, totals_file
from agent.adapters.totals_file import NAME, TotalsFile
from agent.domain.accounting import Totals
from agent.domain.totals import NAMES, Entry, Ledger
from agent.errors import NodeNotReady
from tests.unit.accounting_world import World, record, region, slot
from tests.unit.fakes import CrashError

ROOT = Path(__file__).resolve().parents[2]
S = 1_000_000_000
LEDGER: Ledger = {("u", "main", "G"): Entry(Totals(gpu_ns=7), Totals(gpu_ns=9), 5.0)}


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is logged."""
    sink = logs._Sink()
    sink.stream = io.StringIO()
    monkeypatch.setattr(logs, "_SINK", sink)
    return sink.stream


class Os:
    """The module as a process has it that is killed at its n-th call; nothing is done after that."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.dies_at = dies_at
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        if name[0] == "O" or not callable(real) or name in ("getpid", "urandom"):
            return real

        def call(*args: object, **more: object) -> object:
            self.calls.append(name)
            if self.dies_at is not None and len(self.calls) > self.dies_at:
                raise CrashError(name)
            if self.dies_at == len(self.calls) and name == "write":
                real(args[0], bytes(args[1])[:5])  # type: ignore[call-overload]
                raise CrashError(name)
            return real(*args, **more)

        return call


def test_what_is_saved_is_loaded_by_the_next_agent(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert TotalsFile(folder).load() == {}
    TotalsFile(folder).save(LEDGER)
    assert TotalsFile(folder).load() == LEDGER
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600


def test_the_disk_is_made_to_write_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, calls = [100.0], Os()
    monkeypatch.setattr(safe_files, "os", calls)
    file = TotalsFile(tmp_path, clock=lambda: now_s[0])
    flushed = []
    for after_s in (0, 5, 54, 1, 5, 60):
        now_s[0] += after_s
        before = calls.calls.count("fsync")
        file.save(LEDGER)
        flushed.append(calls.calls.count("fsync") > before)
    assert flushed == [True, False, False, True, False, True]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_bytes(b""), id="empty, after a power cut"),
        pytest.param(lambda path: path.write_bytes(bytes(100)), id="zeros, after a power cut"),
        pytest.param(lambda path: os.truncate(path, 30), id="cut"),
        pytest.param(lambda path: os.truncate(path, 1 << 30), id="huge"),
        pytest.param(lambda path: (path.unlink(), path.mkdir()), id="a directory"),
        pytest.param(lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), id="a link"),
        pytest.param(lambda path: (path.unlink(), os.mkfifo(path)), id="a pipe"),
    ],
)
def test_a_file_that_is_none_starts_anew_and_says_so(
    tmp_path: Path, said: io.StringIO, spoil: Callable[[Path], object]
) -> None:
    TotalsFile(tmp_path).save(LEDGER)
    spoil(tmp_path / NAME)
    file = TotalsFile(tmp_path)
    assert file.load() == {}
    assert "totals_start_anew" in said.getvalue()
    if not (tmp_path / NAME).is_dir():
        file.save(LEDGER)
        assert TotalsFile(tmp_path).load() == LEDGER


def test_a_first_start_is_nothing_to_tell(tmp_path: Path, said: io.StringIO) -> None:
    assert TotalsFile(tmp_path).load() == {}
    assert said.getvalue() == ""


def test_a_disk_that_refuses_is_the_nodes_problem(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"")
    with pytest.raises(NodeNotReady, match="totals of containers"):
        TotalsFile(tmp_path / "state").save(LEDGER)


@pytest.mark.parametrize("flush", [pytest.param(True, id="flushed"), pytest.param(False, id="not")])
def test_killed_between_any_two_steps_the_old_or_the_new_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: bool
) -> None:
    """And what it leaves is removed by the next one."""
    new: Ledger = {("u", "main", "G"): Entry(Totals(gpu_ns=8), Totals(gpu_ns=10), 6.0)}
    seen = []
    for dies_at in range(100):
        TotalsFile(tmp_path).save(LEDGER)
        file = TotalsFile(tmp_path, clock=lambda: 0.0)
        if not flush:
            file.save(LEDGER)
        calls = Os(dies_at)
        with monkeypatch.context() as patch:
            patch.setattr(safe_files, "os", calls)
            patch.setattr(totals_file, "os", calls)
            try:
                file.save(new)
            except CrashError:
                ended = False
            else:
                ended = True
        loaded = TotalsFile(tmp_path).load()
        assert loaded in (LEDGER, new)
        assert [path.name for path in tmp_path.iterdir()] == [NAME]
        seen.append(loaded == new)
        if ended:
            break
    assert ended
    assert seen == sorted(seen)  # once it is there it stays
    assert seen.count(False) > 3


# --- through everything ---------------------------------------------------------------------------

COUNTS = st.integers(0, 20 * S) | st.integers(0, (1 << 64) - 1)


class NeverBack(RuleBasedStateMachine):
    """A tenant, the clock, and agents that are killed at any step: what is shown never goes back."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        sink = logs._Sink()
        sink.stream = io.StringIO()
        self.patch.setattr(logs, "_SINK", sink)
        self.world = World(TotalsFile(Path(self.scratch.name)))
        self.counted = Totals()
        self.shown = Totals()
        self.count()
        self.world.give(record())
        self.back: list[str] = []
        self.world.accounting.use.listen(self.is_shown)

    def is_shown(self) -> None:
        """At once, whatever happens to the agent next."""
        for container in self.world.accounting.use.now().containers:
            now = container.devices[0].totals
            self.back += [n for n in NAMES if getattr(now, n) < getattr(self.shown, n)]
            self.shown = now

    def teardown(self) -> None:
        self.patch.undo()
        self.scratch.cleanup()

    def count(self) -> None:
        now = self.counted
        self.world.count(
            region(
                slot(), charged_ns=now.gpu_ns, throttled_ns=now.throttled_ns, launches=now.launches,
                refusals=now.refusals, refused_bytes=now.refused_bytes,
            )
        )  # fmt: skip

    @rule(seconds=st.floats(0.1, 100), share=st.floats(0, 1), launches=st.integers(0, 1000))
    def works(self, seconds: float, share: float, launches: int) -> None:
        self.world.pass_s(seconds)
        self.counted = Totals(
            gpu_ns=self.counted.gpu_ns + int(seconds * share * S),
            throttled_ns=self.counted.throttled_ns + int(seconds * (1 - share) * S),
            launches=self.counted.launches + launches,
            refusals=self.counted.refusals + launches // 7,
            refused_bytes=self.counted.refused_bytes + launches,
        )
        self.count()

    @rule(gpu_ns=COUNTS, throttled_ns=COUNTS, count=COUNTS)
    def forges(self, gpu_ns: int, throttled_ns: int, count: int) -> None:
        self.counted = Totals(
            gpu_ns=gpu_ns, throttled_ns=throttled_ns, launches=count, refusals=count
        )
        self.count()

    @rule()
    def sets_back(self) -> None:
        self.counted = Totals()
        self.count()

    @rule(seconds=st.floats(-1000, 1000))
    def the_clock_is_set(self, seconds: float) -> None:
        self.world.now_s += seconds

    @rule()
    def looks(self) -> None:
        self.world.look()

    @rule()
    def is_started_again(self) -> None:
        self.world.store = TotalsFile(Path(self.scratch.name))
        self.world.start()
        self.world.accounting.use.listen(self.is_shown)

    @rule(dies_at=st.integers(0, 40))
    def is_killed_while_it_looks(self, dies_at: int) -> None:
        calls = Os(dies_at)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(safe_files, "os", calls)
            patch.setattr(totals_file, "os", calls)
            try:
                self.world.look()
            except CrashError:
                self.is_started_again()

    @rule()
    def cannot_read_the_region_for_a_while(self) -> None:
        self.world.regions.broken = "the directory can be written by others: chmod it"
        self.world.look()
        self.world.regions.broken = ""

    @invariant()
    def nothing_goes_back(self) -> None:
        assert self.back == []


NeverBack.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
TestNeverBack = NeverBack.TestCase

AGENT = """
import os, sys
from pathlib import Path
from agent.adapters.totals_file import TotalsFile
from tests.unit.accounting_world import World, record, region, slot
state, tenant = map(Path, sys.argv[1:])
world = World(TotalsFile(state))
world.give(record())
turns = int(tenant.read_text())
while True:
    turns += 1  # a tenant that works 4 of 5 seconds, whether there is an agent or not
    (beside := tenant.with_suffix(".new")).write_text(str(turns))
    os.rename(beside, tenant)
    world.now_s = 2000.0 + 5 * turns
    world.count(region(slot(), charged_ns=turns * 4_000_000_000))
    print(turns * 4_000_000_000, world.device(0).totals.gpu_ns, flush=True)
"""


def test_agents_that_are_killed_at_any_moment_go_on_where_they_were(tmp_path: Path) -> None:
    """Real processes, real kills: each goes on with all that the ones before it have shown."""
    tenant = tmp_path / "tenant"
    tenant.write_text("0")
    latest = 0
    for lines in (1, 30, 60, 7):
        with subprocess.Popen(
            [sys.executable, "-c", AGENT, str(tmp_path / "state"), str(tenant)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        ) as agent:  # fmt: skip
            assert agent.stdout is not None
            said = [agent.stdout.readline() for _ in range(lines)]
            agent.send_signal(signal.SIGKILL)
            said += agent.stdout.readlines()
        whole = [line.split() for line in said if line.endswith("\n")]
        assert len(whole) >= lines
        for charged_ns, shown_ns in whole:
            assert int(shown_ns) == int(charged_ns) > latest
            latest = int(shown_ns)
