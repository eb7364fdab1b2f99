"""The directories of a host with one container's limits file, for whoever changes it in place."""

from pathlib import Path

from agent.adapters.live_limits import HostLiveLimits
from agent.domain.limit_record import LimitRecord, SetLimit
from agent.domain.limits_file import DeviceLimit, LimitsFile, encode
from agent.sim.driver import made_up_uuid

A, B = (made_up_uuid(place) for place in range(2))
UID, NAME = "11111111-2222-3333-4444-555555555555", "main"
MIB = 1 << 20
GRANTED = LimitsFile(
    devices=(
        DeviceLimit(uuid=A, memory_limit_bytes=1000 * MIB, core_permille=400),
        DeviceLimit(uuid=B, memory_limit_bytes=2000 * MIB, oversubscribe=True),
    ),
    cache_path="/usr/local/vgpu/x.cache",
    region_inode=17,
    region_id=18,
)


class Bed:
    """The directories of a host with one container's limits file."""

    def __init__(self, root: Path) -> None:
        self.host, self.state = root / "vgpu", root / "state"
        self.path = self.host / "limits" / f"{UID}_{NAME}"
        self.path.parent.mkdir(parents=True)
        self.state.mkdir()
        self.now_ns = 1_000_000_000_000
        self.write(encode(GRANTED))

    def write(self, content: bytes) -> None:
        self.path.write_bytes(content)

    def limits(self) -> HostLiveLimits:
        """An agent that has just started."""
        return HostLiveLimits(self.host, self.state, clock_ns=lambda: self.now_ns)


def set_to(memory_mib: int, core_permille: int = 400) -> LimitRecord:
    second = GRANTED.devices[1]
    return LimitRecord(
        limits=(
            SetLimit(uuid=A, memory_limit_bytes=memory_mib * MIB, core_permille=core_permille),
            SetLimit(
                uuid=B,
                memory_limit_bytes=second.memory_limit_bytes // 1000 * memory_mib,
                core_permille=core_permille // 2,
            ),
        ),
        source="socket",
    )
