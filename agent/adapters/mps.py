"""NVIDIA's MPS control daemon: started, asked, told. Its programs are the driver's.

It is started as a daemon: clients run on when the agent is restarted on the host. It and its
clients must see the same shared memory, which is `<root>/shm` in containers; in a container of ours
that directory is to be mounted at /dev/shm.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import pynvml

from agent import logs
from agent.adapters.nvml_topology import NOT_THERE
from agent.adapters.safe_files import (
    check_ours,
    ensured_directory,
    opened_directory,
    read_small,
    refusing,
    write_whole,
)
from agent.boundaries import passed
from agent.domain.mps import ALIVE, LOG_VARIABLE, PIPE_VARIABLE, MpsPlan
from agent.errors import NodeNotReady

log = logs.get(__name__)

PROGRAM = "nvidia-cuda-mps-control"
ASKING_S = 10.0
STARTING_S = 30.0
QUIT = "quit"
SERVERS, CLIENTS = "get_server_list", "get_client_list"  # pids; of servers, and of one's clients
# Files beside `pipe` and `log`, a uuid a line: whose compute mode was changed; and with which GPUs
# the daemon was started, in the order in which it numbers them.
GPUS, NUMBERED = "gpus", "numbered"
MANY_RESOURCES, MANY_BYTES, MANY_SERVERS = 1000, 100_000, 8
LIBRARIES = "LD_LIBRARY_PATH"
CUDA_ERROR = ", of newer drivers CUDA's error: it must find libcuda.so.1, and that a GPU"
LONGEST_PIPE_BYTES = 87  # or the daemon ends without a word
WHAT = "keep the directories of the MPS daemon"


class HostMps:
    """Implements `Mps`."""

    def __init__(
        self,
        root: Path,
        *,
        path: str = os.environ.get("PATH", os.defpath),
        shared_memory: Path = Path("/dev/shm"),  # noqa: S108 - see above
    ) -> None:
        self._root = root
        self._path = path
        self._shared_memory = shared_memory

    def obstacle(self) -> str:
        """See `Mps.obstacle`."""
        if self._program() is None:
            return (
                f"sharing.mps needs {PROGRAM}, which is not in the agent's PATH: install it on the "
                "host, or run the agent's container with the nvidia runtime class and "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility; or use sharing.timeSlicing"
            )
        shm = self._root / "shm"
        try:
            with self._made() as top:
                with contextlib.suppress(FileExistsError):
                    os.mkdir("shm", 0o755, dir_fd=top)
                theirs = os.stat("shm", dir_fd=top)  # which may lead there: it is only compared
            ours = self._shared_memory.stat()
        except OSError as error:
            return (
                f"sharing.mps needs the directory {shm} ({error.strerror}): make it, or set "
                "--mps-root"
            )
        except NodeNotReady as error:
            return f"sharing.mps needs the directory {shm}: {error}"
        if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino):
            return (
                f"the MPS daemon and its clients must share memory, but {shm} is not the agent's "
                f"{self._shared_memory}: on the host run `mount --bind {self._shared_memory} "
                f"{shm}`, in a container mount the host's {shm} at {self._shared_memory}"
            )
        return ""

    def answer(self, plan: MpsPlan) -> str:
        """See `Mps.answer`."""
        try:
            return self.tell(plan, ALIVE)
        except NodeNotReady:
            return ""

    def start(self, plan: MpsPlan) -> None:
        """See `Mps.start`. A GPU is noted before it is closed: whatever fails, it can be opened."""
        known = self._noted().get(plan.resource, ())
        with refusing(WHAT, self._root / plan.resource), self._made(*_parts(plan)) as own:
            for name in ("pipe", "log"):
                with ensured_directory(name, 0o755, dir_fd=own):
                    pass
            _note([*plan.uuids, *(uuid for uuid in known if uuid not in plan.uuids)], own)
            passed("mps-gpus-written")
            _note(plan.uuids, own, NUMBERED)
        for uuid in plan.uuids:
            _set_mode(uuid, exclusive=True)
        try:
            self._run(plan, ["-d"], "", STARTING_S, {"CUDA_VISIBLE_DEVICES": ",".join(plan.uuids)})
        except NodeNotReady as error:
            pipe = self._directory(plan, "pipe")
            if len(os.fsencode(pipe)) <= LONGEST_PIPE_BYTES:
                raise
            raise NodeNotReady(
                f"{error}. The directory {pipe} has more than {LONGEST_PIPE_BYTES} bytes, too many "
                "for the daemon's sockets: set a shorter --mps-root, or rename the resource"
            ) from error

    def end_unused(self, plan: MpsPlan) -> bool:
        """See `Mps.end_unused`."""
        servers = self.servers(plan)
        if servers is None or any(self.tell(plan, f"{CLIENTS} {pid}") for pid in servers):
            return False
        self.tell(plan, QUIT)
        return True

    def servers(self, plan: MpsPlan) -> Sequence[str] | None:
        """See `Mps.servers`. Whoever is root in a client's container may answer in its place."""
        pids = self.tell(plan, SERVERS).split()
        clear = len(pids) <= MANY_SERVERS and all(p.isascii() and p.isdigit() for p in pids)
        return pids if clear else None

    def release(self, plan: MpsPlan, uuids: Collection[str]) -> None:
        """See `Mps.release`."""
        noted = self._noted()
        self._open(plan.resource, uuids, noted)
        held = noted.get(plan.resource, ())
        left = [uuid for uuid in held if uuid not in uuids]
        numbered = self._words(plan.resource, NUMBERED) is not None
        with refusing(WHAT, self._root / plan.resource), self._there(*_parts(plan)) as own:
            if not numbered:  # from now on GPUS does not tell in which order it was started
                _note(held, own, NUMBERED)
            _note(left, own)

    def tell(self, plan: MpsPlan, command: str) -> str:
        """See `Mps.tell`."""
        return self._run(plan, [], f"{command}\n", ASKING_S)

    def numbers(self, plan: MpsPlan) -> Mapping[str, int]:
        """See `Mps.numbers`. One that was started before they were noted has them by `GPUS`."""
        uuids = self._words(plan.resource, NUMBERED) or self._words(plan.resource, GPUS) or ()
        return {uuid: number for number, uuid in enumerate(uuids)}

    def started(self) -> Sequence[MpsPlan]:
        """See `Mps.started`."""
        return [
            MpsPlan(resource=resource, uuids=uuids) for resource, uuids in self._noted().items()
        ]

    def _noted(self) -> dict[str, tuple[str, ...]]:
        """Whose compute mode was changed, by resource."""
        found = {}
        for resource in islice(self._resources(), MANY_RESOURCES):
            words = self._words(resource, GPUS)
            if words is not None:
                found[resource] = words
        return found

    def _words(self, resource: str, file: str) -> tuple[str, ...] | None:
        """Of a file of its directory; None: it is not there, or cannot be read."""
        try:
            with self._there(*resource.split("/")) as own:
                return tuple((read_small(file, MANY_BYTES, dir_fd=own) or b"").decode().split())
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            log.failing("mps daemon forgotten", about=resource, error=error)
            return None

    def _resources(self) -> Iterator[str]:
        """What may be resources, `nvidia.com/gpu` for instance."""
        with contextlib.suppress(OSError):
            for above in sorted(self._root.iterdir()):
                with contextlib.suppress(OSError):
                    for own in sorted(above.iterdir()):
                        if os.path.lexists(own / GPUS):
                            yield f"{above.name}/{own.name}"

    def retire(self, plan: MpsPlan) -> None:
        """See `Mps.retire`."""
        if self.answer(plan):
            self.tell(plan, QUIT)
        self._open(plan.resource, plan.uuids, self._noted())
        with refusing(WHAT, self._root / plan.resource), contextlib.suppress(FileNotFoundError):
            with self._there(*_parts(plan)) as own:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(NUMBERED, dir_fd=own)
                os.unlink(GPUS, dir_fd=own)
            passed("mps-gpus-removed")

    def _open(
        self, resource: str, uuids: Collection[str], noted: Mapping[str, Sequence[str]]
    ) -> None:
        """Let GPUs be used without a daemon, but those that another resource's daemon has by now.

        Raises NodeNotReady.
        """
        others = {uuid for name, held in noted.items() if name != resource for uuid in held}
        for uuid in uuids:
            if uuid not in others:
                _set_mode(uuid, exclusive=False)

    @contextlib.contextmanager
    def _made(self, *below: str) -> Iterator[int]:
        """A directory of ours, made with those above it. Raises OSError, NodeNotReady.

        Pods that are clients have what is in `pipe` and in `shm`: nothing is made or written here
        where a link leads.
        """
        self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            fd = stack.enter_context(opened_directory(self._root))
            check_ours(fd, self._root)
            for name in below:
                fd = stack.enter_context(ensured_directory(name, 0o755, dir_fd=fd))
            yield fd

    @contextlib.contextmanager
    def _there(self, *below: str) -> Iterator[int]:
        """The same where it is there already. Raises OSError."""
        with contextlib.ExitStack() as stack:
            fd = stack.enter_context(opened_directory(self._root))
            for name in below:
                fd = stack.enter_context(opened_directory(name, dir_fd=fd))
            yield fd

    def _run(
        self,
        plan: MpsPlan,
        flags: Sequence[str],
        words: str,
        within_s: float,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        program = self._program()
        if program is None:
            raise NodeNotReady(self.obstacle())
        try:
            done = subprocess.run(  # noqa: S603 - the driver's program, by its full path
                [program, *flags],
                input=words,
                capture_output=True,
                text=True,
                timeout=within_s,
                env={**self._environment(plan), **more},
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NodeNotReady(
                f"{program} does not run ({error}): see {self._log(plan)}"
            ) from error
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[:200]
            said = said or f"exit code {done.returncode}{CUDA_ERROR if flags else ''}"
            raise NodeNotReady(
                f"the MPS daemon of {plan.resource} refuses {words.strip() or 'to start'!r} "
                f"({said}): see {self._log(plan)}"
            )
        return done.stdout.strip()

    def _environment(self, plan: MpsPlan) -> dict[str, str]:
        environment = {
            "PATH": self._path,
            PIPE_VARIABLE: str(self._directory(plan, "pipe")),
            LOG_VARIABLE: str(self._log(plan)),
        }
        # The daemon of newer drivers is a CUDA program, as each server is.
        if LIBRARIES in os.environ:
            environment[LIBRARIES] = os.environ[LIBRARIES]
        return environment

    def _program(self) -> str | None:
        return shutil.which(PROGRAM, path=self._path)

    def _directory(self, plan: MpsPlan, name: str) -> Path:
        return self._root / plan.resource / name

    def _log(self, plan: MpsPlan) -> Path:
        return self._directory(plan, "log")


def _parts(plan: MpsPlan) -> Sequence[str]:
    return plan.resource.split("/")


def _note(uuids: Sequence[str], own: int, file: str = GPUS) -> None:
    """Write down GPUs in a resource's directory. Raises OSError."""
    write_whole(file, "".join(f"{uuid}\n" for uuid in uuids).encode(), 0o644, dir_fd=own)


def _set_mode(uuid: str, *, exclusive: bool) -> None:
    """Let nobody use the GPU but the daemon (who misses its pipe would run without limits), or all.

    A GPU that is not there any more needs no mode.
    """
    mode = "EXCLUSIVE_PROCESS" if exclusive else "DEFAULT"
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            pynvml.nvmlDeviceSetComputeMode(handle, getattr(pynvml, f"NVML_COMPUTEMODE_{mode}"))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NOT_FOUND and not exclusive:
            return
        if error.value not in NOT_THERE:
            raise NodeNotReady(
                f"the compute mode of {uuid} cannot be set to {mode} ({error}), so "
                + ("processes outside MPS would have no limits" if exclusive else "it stays MPS's")
                + f": run it as root with CAP_SYS_ADMIN, or `nvidia-smi -i {uuid} -c {mode}`"
            ) from error
        log.failing("compute mode not set", about=uuid, error=error)
