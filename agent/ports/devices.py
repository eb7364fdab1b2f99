"""Device nodes, driver files, CDI files and MPS daemons of the host, as services need them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from agent.domain.cdi import CdiSpec, Edits
from agent.domain.gpu import Gpu
from agent.domain.mps import MpsPlan


class DriverFiles(Protocol):
    """What the host has of the driver, as its containers will find it. Thread-safe."""

    def common_nodes(self) -> tuple[str, ...]:
        """Device nodes of all GPUs that exist, e.g. /dev/nvidiactl, without the dev root."""

    def imex_channels(self) -> tuple[int, ...]:
        """The IMEX channels to hand out. Raises NodeNotReady when one is required and missing."""

    def extra_nodes(self, name: str) -> tuple[str, ...]:
        """Device nodes of `gds`, `mofed` or `gdrcopy` that exist."""

    def drm_nodes(self, gpu: Gpu) -> tuple[str, ...]:
        """Device nodes of a GPU for graphics."""

    def driver(self) -> Edits:
        """Libraries and programs of the driver. Raises NodeNotReady when there are none."""

    def extra_mounts(self, name: str) -> Edits:
        """Files that go with `gds`, `mofed` or `gdrcopy`."""


class CdiFiles(Protocol):
    """The directory in which container runtimes look for what devices are."""

    def write(self, spec: CdiSpec) -> bool:
        """Write a file unless it says so already; whether it was written. Raises NodeNotReady."""


class Mps(Protocol):
    """NVIDIA's MPS daemons, one for each resource. Called by one thread."""

    def obstacle(self) -> str:
        """Why there can be none on this node, and what to do; empty: there can."""

    def answer(self, plan: MpsPlan) -> str:
        """What this one says to `domain.mps.ALIVE`; empty: none answers."""

    def start(self, plan: MpsPlan) -> None:
        """Start it, and let nobody else use its GPUs. Raises NodeNotReady."""

    def end_unused(self, plan: MpsPlan) -> bool:
        """End it, its GPUs staying its own; False: it has clients, or what it says is unclear.

        Raises NodeNotReady.
        """

    def release(self, plan: MpsPlan, uuids: Collection[str]) -> None:
        """Let some GPUs be used without it, for good; it goes on. Raises NodeNotReady."""

    def numbers(self, plan: MpsPlan) -> Mapping[str, int]:
        """By uuid, the numbers by which it knows GPUs; empty: it was not started here."""

    def servers(self, plan: MpsPlan) -> Sequence[str] | None:
        """Pids of its servers; None: what it says is unclear. Raises NodeNotReady."""

    def tell(self, plan: MpsPlan, command: str) -> str:
        """Give it a command; gives its answer. Raises NodeNotReady."""

    def started(self) -> Sequence[MpsPlan]:
        """Those that were started here, now or by an agent before, without their commands.

        Their GPUs are all whose compute mode was changed, also where a start has failed since.
        """

    def retire(self, plan: MpsPlan) -> None:
        """End it, and let its GPUs be used without one again. Raises NodeNotReady."""
