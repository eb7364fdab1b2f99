"""What is lent and blocked, in limits files that change for other reasons at the same time."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from agent.adapters.live_limits import HostLiveLimits
from agent.domain.lending import Lease
from agent.domain.limits_file import DeviceLimit, LimitsFile, decode, encode

UID, NAME = "0a1b2c3d-0000-4000-8000-00000000000f", "main"
GPU_A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
GPU_B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
LINE_AT = 64
LEASE = Lease(200, 10**18, 7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A container's limits file."""
    for name in ("", "limits", "state"):
        (tmp_path / "vgpu" / name).mkdir(mode=0o755)
    made = tmp_path / "vgpu" / "limits" / f"{UID}_{NAME}"
    devices = tuple(
        DeviceLimit(uuid=uuid, memory_limit_bytes=1 << 30, core_permille=300)
        for uuid in (GPU_A, GPU_B)
    )
    made.write_bytes(encode(LimitsFile(devices=devices, cache_path="/x")))
    return made


@pytest.fixture
def limits(path: Path) -> HostLiveLimits:
    root = path.parent.parent
    return HostLiveLimits(root, root / "state", clock_ns=lambda: 42)


def test_a_lease_changes_nothing_else(path: Path, limits: HostLiveLimits) -> None:
    before = decode(path.read_bytes())
    assert limits.lease(UID, NAME, {1: LEASE})
    found = decode(path.read_bytes())
    leased = replace(before.devices[1], lent_permille=200, lent_until_ns=10**18, blocked_until_ns=7)
    assert found == replace(before, devices=(before.devices[0], leased), alive_at_ns=42)
    assert limits.read(UID, NAME) == found


def sequence(path: Path, place: int = 0) -> int:
    return int.from_bytes(path.read_bytes()[LINE_AT + 64 * place :][:4], "little")


def test_readers_are_told_of_a_change_and_of_nothing_else(
    path: Path, limits: HostLiveLimits
) -> None:
    assert limits.lease(UID, NAME, {0: LEASE})
    assert (sequence(path), sequence(path, 1)) == (2, 0)
    assert limits.lease(UID, NAME, {0: LEASE})
    assert sequence(path) == 2
    assert limits.lease(UID, NAME, {0: Lease()})
    assert sequence(path) == 4


def test_limits_and_leases_stand_side_by_side(path: Path, limits: HostLiveLimits) -> None:
    limits.lease(UID, NAME, {0: LEASE})
    limits.change(
        UID,
        NAME,
        lambda now: replace(now, devices=tuple(replace(d, core_permille=500) for d in now.devices)),
    )
    first, second = decode(path.read_bytes()).devices
    assert (first.core_permille, first.lent_permille, first.blocked_until_ns) == (500, 200, 7)
    assert (second.core_permille, second.lent_permille) == (500, 0)


def with_cores(limits: HostLiveLimits, permille: int) -> DeviceLimit:
    """The first device after a change of its share."""
    found = limits.change(
        UID,
        NAME,
        lambda now: replace(
            now, devices=(replace(now.devices[0], core_permille=permille), now.devices[1])
        ),
    )
    assert found is not None
    return found.devices[0]


def test_a_share_that_grows_takes_from_what_is_lent(path: Path, limits: HostLiveLimits) -> None:
    limits.lease(UID, NAME, {0: Lease(699, 10**18, 0)})
    assert with_cores(limits, 700).lent_permille == 299
    assert decode(path.read_bytes()).devices[0].lent_permille == 299


@pytest.mark.parametrize(
    ("own", "lent"),
    [
        pytest.param(700, 299, id="as much as is left"),
        pytest.param(300, 699, id="all of it"),
        pytest.param(0, 699, id="no limit: nothing to go by"),
        pytest.param(1000, 699, id="no limit"),
    ],
)
def test_no_more_is_lent_than_the_share_leaves(
    path: Path, limits: HostLiveLimits, own: int, lent: int
) -> None:
    """Whoever lends may know an older share."""
    with_cores(limits, own)
    for _ in range(2):
        limits.lease(UID, NAME, {0: Lease(699, 10**18, 0)})
        assert decode(path.read_bytes()).devices[0].lent_permille == lent
    assert sequence(path) in (2, 4)  # the second time says nothing new


def test_who_listens_is_told_of_limits_and_of_no_lease(limits: HostLiveLimits) -> None:
    told = []
    limits.listen(lambda: told.append(1))
    with_cores(limits, 500)
    assert len(told) == 1
    limits.set_limits(UID, NAME, limits.record(UID, NAME))
    assert len(told) == 2
    limits.settle(UID, NAME)  # as Allocate does
    assert len(told) == 3
    limits.forget(UID, NAME)
    assert len(told) == 4
    limits.lease(UID, NAME, {0: LEASE})
    limits.read(UID, NAME)
    assert len(told) == 4


@pytest.mark.parametrize("place", [-1, 2, 16])
def test_a_device_that_it_has_not(path: Path, limits: HostLiveLimits, place: int) -> None:
    before = path.read_bytes()
    assert not limits.lease(UID, NAME, {0: LEASE, place: LEASE})
    assert path.read_bytes() == before


def test_no_file(path: Path, limits: HostLiveLimits) -> None:
    path.unlink()
    assert not limits.lease(UID, NAME, {0: LEASE})


def test_a_line_that_is_half_written_is_left_alone(path: Path, limits: HostLiveLimits) -> None:
    content = bytearray(path.read_bytes())
    content[LINE_AT] = 1
    path.write_bytes(content)
    limits.lease(UID, NAME, {0: LEASE})
    assert path.read_bytes()[LINE_AT : LINE_AT + 64] == bytes(content[LINE_AT : LINE_AT + 64])


def test_a_file_that_is_exchanged_is_found_again(path: Path, limits: HostLiveLimits) -> None:
    limits.lease(UID, NAME, {0: LEASE})
    fresh = encode(replace(decode(path.read_bytes()), cache_path="/y"))
    path.with_suffix(".new").write_bytes(fresh)
    path.with_suffix(".new").rename(path)
    assert limits.lease(UID, NAME, {0: Lease(1, 2, 3)})
    found = decode(path.read_bytes())
    assert (found.devices[0].lent_permille, found.cache_path) == (1, "/y")


def test_leases_and_limits_at_once(path: Path, limits: HostLiveLimits) -> None:
    """Two threads of the agent; neither undoes what the other one wrote."""
    shares: list[int] = []
    together: set[int] = set()

    def lend() -> None:
        for number in range(400):
            limits.lease(UID, NAME, {0: Lease(number % 1000, number, 0)})
            seen = limits.read(UID, NAME)
            assert seen is not None
            together.add(seen.devices[0].core_permille + seen.devices[0].lent_permille)

    lending = threading.Thread(target=lend)
    lending.start()
    while lending.is_alive() or len(shares) < 20:
        share = len(shares) % 900 + 1
        limits.change(
            UID,
            NAME,
            lambda now, share=share: replace(  # type: ignore[misc]
                now, devices=(replace(now.devices[0], core_permille=share), now.devices[1])
            ),
        )
        shares.append(share)
        seen = limits.read(UID, NAME)
        assert seen is not None
        assert seen.devices[0].core_permille == share
    lending.join()
    (device, _) = decode(path.read_bytes()).devices
    assert device.core_permille == shares[-1]
    assert device.lent_permille <= min(399, 999 - shares[-1])
    assert device.lent_until_ns == 399
    assert max(together) <= 999
