"""Random calls, forks, execs and deaths of several processes that share memory, against an oracle.

They take memory in every way that is charged by the call, pass it to each other by descriptor and by legacy
handle, and give back in any order. The oracle is the simulated driver, which keeps its own books in its own
file: whenever nobody is in the middle of anything, the ledger of each device must say what the driver says,
to the byte.
"""

import os
import signal
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from model_world import (
    DEVICES,
    ENDS,
    HANDLES,
    LIMITS_MIB,
    MIB,
    POOL_STEP_MIB,
    TAKES,
    UUIDS,
    WITHIN_S,
    Container,
    Holding,
    Process,
)
from region_files import RegionFile
from waiting import eventually

MOST_PROCESSES = 5
QUIETENS = ("trim", "synchronize")
SUCCESS, OUT_OF_MEMORY = 0, 2


def in_steps(mib: int) -> int:
    """What a pool reserves for it."""
    return -(-mib // POOL_STEP_MIB) * POOL_STEP_MIB


class Machine(RuleBasedStateMachine):
    """Up to six processes; the first one, which looks on, lives throughout.

    One rule that chooses: of several, Hypothesis leaves some out of each run, so that those that belong
    together are seldom all in it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.container = Container()
        self.others: list[Process] = []
        self.deaths = False

    @initialize()
    def two(self) -> None:
        self.others = [self.container.spawn() for _ in range(2)]

    @rule(data=st.data())
    def act(self, data: Any) -> None:
        few = len(self.others) < MOST_PROCESSES
        weights = {
            self.take: 6,
            self.give: 4 if self._held(*ENDS) else 0,
            self.map: 3 if self._held(*HANDLES) else 0,
            self.export_and_import: 3 if self._held(*HANDLES) and self.others else 0,
            self.open: 2 if self._held("alloc") and self.others else 0,
            self.quieten: 2 if self._pools() else 0,
            self.start: 1 if few else 0,
            self.fork: 1 if few and self.others else 0,
            self.execute: 1 if self.others else 0,
            self.end: 1 if self.others else 0,
        }
        names = [action.__name__ for action, weight in weights.items() for _ in range(weight)]
        getattr(self, data.draw(st.sampled_from(names)))(data)

    def _processes(self) -> list[Process]:
        return [self.container.looker, *self.others]

    def _held(self, *kinds: str) -> list[tuple[Process, Holding]]:
        return [(p, h) for p in self._processes() for h in p.holdings if h.kind in kinds]

    def _pools(self) -> list[tuple[Process, int]]:
        return [(p, device) for p in self._processes() for device in sorted(p.pools)]

    def _another(self, data: Any, process: Process) -> Process:
        choice: Process = data.draw(
            st.sampled_from([p for p in self._processes() if p is not process])
        )
        return choice

    # --- memory -----------------------------------------------------------------------------------

    def take(self, data: Any) -> None:
        """Given if it fits, after what the process's own pool has idle was trimmed."""
        process: Process = data.draw(st.sampled_from(self._processes()))
        kind = data.draw(st.sampled_from(TAKES))
        device, mib = data.draw(st.integers(0, DEVICES - 1)), data.draw(st.integers(1, 400))
        mib += mib % 2 if kind == "create" else 0  # pages
        reserved, drawn = process.ask("reserved", device)[1], process.drawn_mib(device)
        taken = in_steps(drawn + mib) if kind == "draw" else in_steps(drawn) + mib
        would_be = self.container.books()[device] + (taken - reserved) * MIB
        result, number = process.ask(kind, device, mib)
        fits = would_be <= LIMITS_MIB[device] * MIB
        assert result == (SUCCESS if fits else OUT_OF_MEMORY)
        if fits:
            process.hold(kind, device, mib, number)

    def give(self, data: Any) -> None:
        process, holding = data.draw(st.sampled_from(self._held(*ENDS)))
        self._give(process, holding, data.draw(st.sampled_from(ENDS[holding.kind])))

    def _give(self, process: Process, holding: Holding, command: str) -> None:
        """Importers go before the last that their exporter has; it may be one of them itself."""
        memory = holding.of or holding
        own = process.parts(memory)
        if process.created(memory) and (own == [holding] or any(p.kind == "import" for p in own)):
            for other in self._processes():
                for part in other.parts(memory):
                    if part is not holding:
                        assert other.give(part, ENDS[part.kind][0]) == SUCCESS
        assert process.give(holding, command) == SUCCESS

    def quieten(self, data: Any) -> None:
        """The driver then has back what pools do not need."""
        process, device = data.draw(st.sampled_from(self._pools()))
        assert process.ask(data.draw(st.sampled_from(QUIETENS)), device)[0] == SUCCESS
        assert process.ask("reserved", device)[1] == in_steps(process.drawn_mib(device))

    def map(self, data: Any) -> None:
        process, handle = data.draw(st.sampled_from(self._held(*HANDLES)))
        result, address = process.ask("map", handle.device, handle.words, handle.mib)
        assert result == SUCCESS
        words = f"{address} {handle.mib}"
        process.hold("map", handle.device, handle.mib, words, handle.of or handle)

    # --- memory of others -------------------------------------------------------------------------

    def export_and_import(self, data: Any) -> None:
        exporter, handle = data.draw(st.sampled_from(self._held(*HANDLES)))
        importer = self._another(data, exporter)
        _, fd = exporter.ask("export", handle.device, handle.words)
        _, imported = importer.ask("import", handle.device, fds=[fd])
        os.close(fd)
        importer.hold("import", handle.device, handle.mib, imported, handle.of or handle)

    def open(self, data: Any) -> None:
        exporter, memory = data.draw(st.sampled_from(self._held("alloc")))
        opener = self._another(data, exporter)
        result, name = exporter.ask("name", memory.device, memory.words)
        assert result == SUCCESS
        result, address = opener.ask("open", memory.device, name)
        assert result == SUCCESS
        opener.hold("open", memory.device, memory.mib, address)

    # --- processes --------------------------------------------------------------------------------

    def start(self, _: Any) -> None:
        self.others.append(self.container.spawn())

    def fork(self, data: Any) -> None:
        parent: Process = data.draw(st.sampled_from(self.others))
        assert parent.ask("fork")[0] == SUCCESS
        parent.forked = True
        self.others.append(self.container.accept())

    def execute(self, data: Any) -> None:
        """With whatever it holds, which is given back unless a child has the driver's files."""
        process: Process = data.draw(st.sampled_from(self.others))
        self._leave_nothing_imported(process)
        process.tell("exec")
        process.close()
        self.others[self.others.index(process)] = self.container.accept()
        self.deaths = True

    def _leave_nothing_imported(self, process: Process) -> None:
        """To children, who keep it on the GPU without holding it: nobody's, once its exporter lets it go."""
        for part in [
            p for p in process.holdings if process.forked and self._is_imported(process, p)
        ]:
            assert process.give(part, ENDS[part.kind][0]) == SUCCESS

    @staticmethod
    def _is_imported(process: Process, part: Holding) -> bool:
        return part.of is not None and not process.created(part.of)

    def end(self, data: Any) -> None:
        """Children of others stay zombies."""
        process: Process = data.draw(st.sampled_from(self.others))
        self.others.remove(process)
        self._leave_nothing_imported(process)
        how = data.draw(st.sampled_from([signal.SIGKILL, signal.SIGTERM, None]))
        if how is None:
            process.tell("exit")
        else:
            os.kill(process.pid, how)
        self.container.forget(process)
        self.deaths = True

    # --- what must hold ---------------------------------------------------------------------------

    @invariant()
    def the_ledgers_say_what_the_driver_says(self) -> None:
        if not self.deaths:  # then they do so at once
            assert self.container.ledgers() == self.container.books()
            return
        eventually(self._agreed_after_a_look, within_s=WITHIN_S)
        self.deaths = False

    def _agreed_after_a_look(self) -> bool:
        self.container.looker.ask("look")
        return self.container.ledgers() == self.container.books()

    def teardown(self) -> None:
        with self.container:
            for uuid, limit_mib in zip(UUIDS, LIMITS_MIB, strict=True):
                assert self.container.sim.peak_mib(uuid) <= limit_mib
            for place in range(DEVICES):
                assert RegionFile(self.container.node.cache).counter("underflows", place) == 0


TestModel = Machine.TestCase
TestModel.settings = settings(
    max_examples=20,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
