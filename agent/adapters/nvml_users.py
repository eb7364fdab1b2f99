"""Who is on the GPUs, and nothing else: implements `agent.ports.GpuUsers`.

Asked every few seconds on every node, so it asks the driver for less than `nvml_use` does.
"""

from collections.abc import Mapping

import pynvml

from agent import logs
from agent.adapters.nvml import NOT_OFFERED, asking
from agent.adapters.nvml_use import COMPUTE, GRAPHICS, by_pid, has_odd_lists, held, listed_by
from agent.domain.accounting import GpuProcess
from agent.errors import NvmlError

log = logs.get(__name__)


class NvmlUsers:
    """Implements `agent.ports.GpuUsers`."""

    def look(self) -> Mapping[str, tuple[GpuProcess, ...]]:
        """See `agent.ports.GpuUsers.look`."""
        found: dict[str, tuple[GpuProcess, ...]] = {}
        with held():
            odd_lists = has_odd_lists()
            with asking("the GPUs cannot be counted"):
                count = int(pynvml.nvmlDeviceGetCount())
            for index in range(count):
                try:
                    with asking(f"GPU {index} does not answer"):
                        _look_at(index, found, odd_lists=odd_lists)
                except NvmlError as error:
                    log.failing("gpu processes not read", about=str(index), error=error)
                else:
                    log.recovered("gpu processes not read", about=str(index))
        return found


def _look_at(index: int, found: dict[str, tuple[GpuProcess, ...]], *, odd_lists: bool) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = str(pynvml.nvmlDeviceGetUUID(handle))
    listed = []
    for versions in (COMPUTE, GRAPHICS):
        try:
            listed += listed_by(versions, handle, odd_lists=odd_lists)
        except pynvml.NVMLError as error:
            if error.value not in NOT_OFFERED:
                raise
            if versions is COMPUTE:
                return
    used = by_pid(listed)
    found[uuid] = tuple(GpuProcess(pid=pid, used_bytes=used[pid]) for pid in sorted(used))
