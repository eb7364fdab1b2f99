"""A container of several processes that take, pass on and give back memory as they are told.

Both counts of it are read from outside: the simulated driver's books and the hook's ledgers.
"""

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from built_hook import sim_libraries
from hooked_programs import CALLS, LIMIT, Node
from region_files import RegionFile
from waiting import eventually

from agent.sim.driver import SimDriver, SimGpu, made_up_uuid

MIB = 1 << 20
LIMITS_MIB = (1000, 600)
DEVICES = len(LIMITS_MIB)
UUIDS = [made_up_uuid(number) for number in range(DEVICES)]
POOL_STEP_MIB = 32
WITHIN_S = 10.0
LONGEST_BYTES = 4096
# The simulated driver's books, hook/sim/memory.c: 64 GPUs, then the rows.
_HEAD, _GPUS, _UUID_BYTES = 8, 64, 96
_ROWS_AT = _HEAD + _GPUS * _UUID_BYTES + _GPUS * 8
_ROW = struct.Struct("<I12xQI4xQ")
_OPENED_AT = _ROWS_AT + _ROW.size * 4096
_DEVICES_AT = _OPENED_AT + 8  # a byte for each opening of the device file, locked while it is open
_F_OFD_GETLK = 36
_FLOCK = struct.Struct("hhqqi4x")

# The ways to take memory, and by which of a tenant's commands what came of each is given back.
TAKES = ("draw", "create", "alloc", "managed", "pitched", "array")
HANDLES = ("create", "import")
ENDS = {
    "alloc": ("free", "put"),
    "managed": ("free", "put"),
    "pitched": ("free", "put"),
    "array": ("destroy",),
    "draw": ("put",),
    "create": ("release",),
    "import": ("release",),
    "map": ("unmap",),
    "open": ("close",),
}


def _is_open(state: int, opening: int) -> bool:
    """Whether somebody has this device file open: who opened it, or a child."""
    lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _DEVICES_AT + opening, 1, 0)
    answer: bytes = fcntl.fcntl(state, _F_OFD_GETLK, lock)
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK


def _has_ended(pid: int) -> bool:
    """Gone, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


@dataclass(eq=False)
class Holding:
    """What a process has and can give back: memory, or a handle, mapping or view of some."""

    kind: str  # the command that it came of
    device: int
    mib: int
    words: str  # what commands call it
    of: "Holding | None" = (
        None  # what cuMemCreate gave, for its handles and mappings in other hands
    )


class Process:
    """One process of the container, that obeys."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(WITHIN_S)
        self._connection = connection
        self.pid = self._answer()[1]
        self.holdings: list[Holding] = []
        self._created: list[Holding] = []
        self.pools: set[int] = set()  # the devices whose it has drawn from
        self.forked = False  # its children may have the driver's files

    def _answer(self) -> tuple[int, int]:
        packet, fds, _, _ = socket.recv_fds(self._connection, LONGEST_BYTES, 1)
        result, number = map(int, packet.decode().split())
        return result, fds[0] if fds else number

    def tell(self, *words: str | int, fds: Sequence[int] = ()) -> None:
        socket.send_fds(self._connection, [" ".join(map(str, words)).encode()], fds)

    def ask(self, *words: str | int, fds: Sequence[int] = ()) -> tuple[int, int]:
        """CUresult, and what the command gives: a number or a descriptor."""
        self.tell(*words, fds=fds)
        return self._answer()

    def hold(
        self, kind: str, device: int, mib: int, words: str | int, of: Holding | None = None
    ) -> None:
        self.holdings.append(Holding(kind, device, mib, str(words), of))
        if kind == "draw":
            self.pools.add(device)
        elif kind == "create":
            self._created.append(self.holdings[-1])

    def give(self, holding: Holding, command: str) -> int:
        """CUresult of giving it back."""
        self.holdings.remove(holding)
        return self.ask(command, holding.device, holding.words)[0]

    def created(self, memory: Holding) -> bool:
        return memory in self._created

    def parts(self, memory: Holding) -> list[Holding]:
        """Its handles and mappings of what was created."""
        return [h for h in self.holdings if memory in (h, h.of)]

    def drawn_mib(self, device: int) -> int:
        """What is live of the device's pool."""
        return sum(h.mib for h in self.holdings if (h.kind, h.device) == ("draw", device))

    def close(self) -> None:
        self._connection.close()


class Container:
    """A container's processes and what the driver and the hook say of them."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="m"))
        self.sim = SimDriver(self.directory, libraries=sim_libraries())
        for uuid in UUIDS:
            self.sim.add_gpu(gpu=SimGpu(uuid=uuid, memory_mib=4096, pool_step_mib=POOL_STEP_MIB))
        self.node = Node(self.sim, self.directory / "region.cache")
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(self.directory / "s"))
        self._listening.listen(16)
        self._listening.settimeout(WITHIN_S)
        self._children: list[subprocess.Popen[bytes]] = []
        self._living: dict[int, Process] = {}  # by pid
        self.looker = self.spawn()

    def __enter__(self) -> Self:
        return self

    def spawn(self) -> Process:
        """Start one."""
        limits = {f"{LIMIT}_{i}": f"{mib}m" for i, mib in enumerate(LIMITS_MIB)}
        env = self.node.environment(NVIDIA_VISIBLE_DEVICES=",".join(UUIDS), **limits)
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
        self._living[process.pid] = process
        return process

    def forget(self, process: Process) -> None:
        """It has ended, or is about to: once it has, its files are closed. Reap it if it is a child of ours."""
        process.close()
        self._living.pop(process.pid, None)
        for child in self._children:
            if child.pid == process.pid:
                child.wait(WITHIN_S)
        eventually(lambda: _has_ended(process.pid), within_s=WITHIN_S)

    def books(self) -> list[int]:
        """What the driver says is held of each device, and so what the ledgers have to say.

        Importers hold nothing as long as the exporter lives and has it. What it lets go of before they do is
        theirs at a moment that cannot be foretold (docs/hook.md), so nobody does so here: test_vmm.py has that.
        """
        state = Path(f"{self.sim.config_path}.state")
        raw = state.read_bytes()
        held = [0] * DEVICES
        uuids = [
            raw[_HEAD + _UUID_BYTES * i :][:_UUID_BYTES].rstrip(b"\0").decode()
            for i in range(_GPUS)
        ]
        with state.open("r+b") as file:
            for pid, opening, gpu, amount in _ROW.iter_unpack(raw[_ROWS_AT:_OPENED_AT]):
                if pid and _is_open(file.fileno(), opening):
                    held[UUIDS.index(uuids[gpu])] += amount
        return held

    def ledgers(self) -> list[int]:
        """What the hook says is held of each device."""
        region = RegionFile(self.node.cache)
        return [region.ledger(place) for place in range(DEVICES)]

    def close(self) -> None:
        for child in self._children:
            child.kill()
        for process in self._living.values():
            process.close()
        for pid in self._living.keys() - {child.pid for child in self._children}:
            os.kill(pid, signal.SIGKILL)
        for child in self._children:
            child.wait(WITHIN_S)
        self._listening.close()
        shutil.rmtree(self.directory)

    def __exit__(self, *_: object) -> None:
        self.close()
