"""Random allocations, frees, forks, execs and deaths of several processes against an oracle.

The oracle is the simulated driver, which keeps its own books in its own file: whenever nobody is in
the middle of anything, the ledger of each device must say what the driver says, to the byte.
"""

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from built_hook import sim_libraries
from hooked_programs import CALLS, LIMIT, Node
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from region_files import RegionFile
from waiting import eventually

from agent.sim.driver import SimDriver, SimGpu, made_up_uuid

MIB = 1 << 20
LIMITS_MIB = (1000, 600)
DEVICES = len(LIMITS_MIB)
MOST_PROCESSES = 5
WITHIN_S = 10.0
# The simulated driver's books, hook/sim/memory.c: 64 GPUs, then the rows.
_HEAD, _GPUS, _UUID_BYTES = 8, 64, 96
_ROWS_AT = _HEAD + _GPUS * _UUID_BYTES + _GPUS * 8
_ROW = struct.Struct("<IIQQ")


class Process:
    """One process of the container, that obeys."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(WITHIN_S)
        self._stream = connection.makefile("rw")
        connection.close()
        self.pid = int(self._stream.readline())
        self.blocks: list[tuple[int, int]] = []  # MiB, device

    def ask(self, command: str) -> int:
        self._stream.write(command + "\n")
        self._stream.flush()
        return int(self._stream.readline())

    def tell(self, command: str) -> None:
        self._stream.write(command + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


class Container:
    """A container's processes and what the driver and the hook say of them."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="m"))
        self.sim = SimDriver(self.directory, libraries=sim_libraries())
        for number in range(DEVICES):
            self.sim.add_gpu(gpu=SimGpu(uuid=made_up_uuid(number), memory_mib=4096))
        self.node = Node(self.sim, self.directory / "region.cache")
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.directory / "s"))
        self._listening.listen(16)
        self._listening.settimeout(WITHIN_S)
        self._children: list[subprocess.Popen[bytes]] = []
        self._pids: set[int] = set()
        self.looker = self.spawn()

    def __enter__(self) -> Self:
        return self

    def spawn(self) -> Process:
        """Start one."""
        limits = {f"{LIMIT}_{i}": f"{mib}m" for i, mib in enumerate(LIMITS_MIB)}
        uuids = ",".join(made_up_uuid(i) for i in range(DEVICES))
        env = self.node.environment(NVIDIA_VISIBLE_DEVICES=uuids, **limits)
        words = [
            sys.executable,
            "-S",
            "-E",
            str(CALLS / "model_tenant.py"),
            str(self.directory / "s"),
        ]
        self._children.append(subprocess.Popen(words, env=env))
        return self.accept()

    def accept(self) -> Process:
        """The next that connects."""
        process = Process(self._listening.accept()[0])
        self._pids.add(process.pid)
        return process

    def forget(self, process: Process) -> None:
        """It has ended, or is about to: reap it if it is a child of ours."""
        process.close()
        self._pids.discard(process.pid)
        for child in self._children:
            if child.pid == process.pid:
                child.wait(WITHIN_S)

    def books(self) -> list[int]:
        """What the driver says is held of each device."""
        raw = Path(f"{self.sim.config_path}.state").read_bytes()
        held = [0] * DEVICES
        uuids = [
            raw[_HEAD + _UUID_BYTES * i :][:_UUID_BYTES].rstrip(b"\0").decode()
            for i in range(_GPUS)
        ]
        for pid, gpu, _, amount in _ROW.iter_unpack(raw[_ROWS_AT:][: _ROW.size * 4096]):
            if pid in self._pids:
                held[[made_up_uuid(i) for i in range(DEVICES)].index(uuids[gpu])] += amount
        return held

    def ledgers(self) -> list[int]:
        """What the hook says is held of each device."""
        region = RegionFile(self.node.cache)
        return [region.ledger(place) for place in range(DEVICES)]

    def close(self) -> None:
        for child in self._children:
            child.kill()
        for pid in self._pids - {child.pid for child in self._children}:
            os.kill(pid, signal.SIGKILL)
        for child in self._children:
            child.wait(WITHIN_S)
        self._listening.close()
        shutil.rmtree(self.directory)

    def __exit__(self, *_: object) -> None:
        self.close()


class Machine(RuleBasedStateMachine):
    """Up to five processes; the first one, which looks on, lives throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.container = Container()
        self.others: list[Process] = []
        self.deaths = False

    @initialize()
    def one_more(self) -> None:
        self.others.append(self.container.spawn())

    @precondition(lambda self: len(self.others) < MOST_PROCESSES)
    @rule()
    def start(self) -> None:
        self.others.append(self.container.spawn())

    def _pick(self, data: Any) -> Process:
        choice: Process = data.draw(st.sampled_from([self.container.looker, *self.others]))
        return choice

    @rule(data=st.data(), mib=st.integers(1, 500), device=st.integers(0, DEVICES - 1))
    def alloc(self, data: Any, mib: int, device: int) -> None:
        process = self._pick(data)
        used = self.container.books()[device]
        result = process.ask(f"alloc {mib} {device}")
        fits = used + mib * MIB <= LIMITS_MIB[device] * MIB
        assert result == (0 if fits else 2)
        if fits:
            process.blocks.append((mib, device))

    @rule(data=st.data())
    def free(self, data: Any) -> None:
        process = self._pick(data)
        assert process.ask("free") == 0
        process.blocks[-1:] = []

    @precondition(lambda self: 0 < len(self.others) < MOST_PROCESSES)
    @rule(data=st.data())
    def fork(self, data: Any) -> None:
        parent: Process = data.draw(st.sampled_from(self.others))
        assert parent.ask("fork") == 0
        self.others.append(self.container.accept())

    @precondition(lambda self: self.others)
    @rule(data=st.data())
    def execute(self, data: Any) -> None:
        """With empty hands: the driver's books would take the new program for the old one."""
        process: Process = data.draw(st.sampled_from(self.others))
        while process.blocks:
            assert process.ask("free") == 0
            process.blocks.pop()
        process.tell("exec")
        process.close()
        self.others[self.others.index(process)] = self.container.accept()
        self.deaths = True

    @precondition(lambda self: self.others)
    @rule(data=st.data(), how=st.sampled_from([signal.SIGKILL, signal.SIGTERM, None]))
    def end(self, data: Any, how: int | None) -> None:
        """Children of others stay zombies."""
        process: Process = data.draw(st.sampled_from(self.others))
        self.others.remove(process)
        if how is None:
            process.tell("exit")
        else:
            os.kill(process.pid, how)
        self.container.forget(process)
        self.deaths = True

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
        for number, limit_mib in enumerate(LIMITS_MIB):
            assert self.container.sim.peak_mib(made_up_uuid(number)) <= limit_mib
        assert RegionFile(self.container.node.cache).counter("underflows") == 0
        self.container.close()


TestModel = Machine.TestCase
TestModel.settings = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
