"""Limits changed in place: what a container that has the file mounted sees, whatever goes wrong."""

import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.domain.limit_record import LimitRecord
from agent.domain.limits_file import LimitsFile, decode, encode
from agent.errors import NodeNotReady
from tests.wire.limits_bed import GRANTED, MIB, NAME, UID, A, B, Bed, set_to


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def held(file: LimitsFile | None) -> list[tuple[int, int]]:
    assert file is not None
    return [(device.memory_limit_bytes // MIB, device.core_permille) for device in file.devices]


def lease(until_ns: int) -> Callable[[LimitsFile], LimitsFile]:
    """Block the first device until then, and lend it something."""

    def change(now: LimitsFile) -> LimitsFile:
        first = replace(
            now.devices[0], blocked_until_ns=until_ns, lent_permille=100, lent_until_ns=until_ns + 1
        )
        return replace(now, devices=(first, *now.devices[1:]), alive_at_ns=until_ns - 5)

    return change


# --- changes --------------------------------------------------------------------------------------


def test_a_change_is_seen_by_whoever_has_the_file_mounted(bed: Bed) -> None:
    with bed.path.open("rb") as mounted:
        held_now = bed.limits().set_limits(UID, NAME, set_to(300, 100))
        assert held(held_now) == held(decode(mounted.read())) == [(300, 100), (600, 50)]
        assert bed.path.stat().st_ino == os.fstat(mounted.fileno()).st_ino
    found = decode(bed.path.read_bytes())
    assert replace(found, devices=GRANTED.devices) == GRANTED
    assert found.devices[1].oversubscribe


def test_a_line_that_stays_as_it_is_is_not_touched(bed: Bed) -> None:
    live = bed.limits()
    before = bed.path.read_bytes()
    assert live.change(UID, NAME, lambda now: now) == GRANTED
    assert bed.path.read_bytes() == before
    live.change(UID, NAME, lease(bed.now_ns))
    after = bed.path.read_bytes()
    assert after[128:] == before[128:]
    assert struct.unpack_from("<I", after, 64) == (2,)
    assert not any(bed.state.iterdir()), "what is lent is not remembered"


def test_no_limit_that_held_is_missed_by_who_looks_now_and_then(bed: Bed) -> None:
    limits = bed.limits()
    assert limits.largest_bytes(UID, NAME) == {A: 1000 * MIB, B: 2000 * MIB}
    for memory_mib in (500, 3000, 700):
        limits.set_limits(UID, NAME, set_to(memory_mib))
    assert limits.largest_bytes(UID, NAME) == {A: 3000 * MIB, B: 6000 * MIB}
    assert limits.largest_bytes(UID, NAME) == {A: 700 * MIB, B: 1400 * MIB}
    limits.set_limits(UID, NAME, set_to(0))
    limits.set_limits(UID, NAME, set_to(10))
    assert limits.largest_bytes(UID, NAME) == {A: 0, B: 0}
    assert limits.largest_bytes(UID, "else") is None


def test_what_is_lent_stays_when_limits_change_and_the_other_way_round(bed: Bed) -> None:
    live = bed.limits()
    leased = live.change(UID, NAME, lease(bed.now_ns))
    assert leased == lease(bed.now_ns)(GRANTED)
    changed = live.set_limits(UID, NAME, set_to(300))
    assert changed == decode(bed.path.read_bytes())
    assert changed is not None
    assert changed.devices[0].blocked_until_ns == bed.now_ns
    again = live.change(UID, NAME, lease(bed.now_ns + 7))
    assert held(again) == held(changed)
    assert again == live.read(UID, NAME) == decode(bed.path.read_bytes())


def test_limits_that_are_changed_by_a_function_are_remembered_too(bed: Bed) -> None:
    def halve(now: LimitsFile) -> LimitsFile:
        return replace(
            now,
            devices=tuple(
                replace(d, memory_limit_bytes=d.memory_limit_bytes // 2) for d in now.devices
            ),
        )

    assert held(bed.limits().change(UID, NAME, halve)) == [(500, 400), (1000, 0)]
    bed.write(encode(GRANTED))
    assert bed.limits().mend() == 1
    assert held(bed.limits().read(UID, NAME)) == [(500, 400), (1000, 0)]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda now: replace(now, devices=now.devices[:1]), id="fewer devices"),
        pytest.param(lambda now: replace(now, cache_path="/tmp/x"), id="another region"),
        pytest.param(
            lambda now: replace(
                now, devices=(replace(now.devices[0], uuid=B), *now.devices[1:])
            ),
            id="another device",
        ),
    ],
)  # fmt: skip
def test_what_does_not_change_in_place_is_a_mistake_of_the_caller(
    bed: Bed, change: Callable[[LimitsFile], LimitsFile]
) -> None:
    with pytest.raises(ValueError, match="not changed in place"):
        bed.limits().change(UID, NAME, change)
    assert bed.path.read_bytes() == encode(GRANTED)


# --- files that are not there, not in order, or others by now -------------------------------------


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.unlink(), id="gone"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(b"\xff" * 4096), id="all ff"),
        pytest.param(lambda path: os.truncate(path, 4095), id="one byte short"),
    ],
)
@pytest.mark.parametrize("opened_before", [False, True])
def test_without_a_file_of_this_layout_nothing_is_changed_or_remembered(
    bed: Bed, spoil: Callable[[Path], object], opened_before: bool
) -> None:
    live = bed.limits()
    if opened_before:
        live.read(UID, NAME)
        fresh = bed.path.with_name("fresh")
        fresh.write_bytes(bed.path.read_bytes())
        fresh.rename(bed.path)
    spoil(bed.path)
    assert live.read(UID, NAME) is None
    assert live.change(UID, NAME, lease(1)) is None
    assert live.set_limits(UID, NAME, set_to(300)) is None
    assert live.changed() == ()
    assert live.mend() == 0


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "fifo"])
def test_what_is_no_file_is_never_written_to(bed: Bed, make: Callable[[Path], None]) -> None:
    bed.path.unlink()
    make(bed.path)
    with contextlib.suppress(NodeNotReady):
        assert bed.limits().read(UID, NAME) is None
    assert bed.limits().mend() == 0


def test_a_link_is_refused(bed: Bed, tmp_path: Path) -> None:
    victim = bed.path.rename(tmp_path / "victim")
    bed.path.symlink_to(victim)
    with pytest.raises(NodeNotReady, match="link"):
        bed.limits().set_limits(UID, NAME, set_to(300))
    assert victim.read_bytes() == encode(GRANTED)


def test_a_file_that_took_the_place_of_the_old_one_is_the_one_that_changes(bed: Bed) -> None:
    live = bed.limits()
    live.set_limits(UID, NAME, set_to(300))
    fresh = bed.path.with_name("fresh")
    fresh.write_bytes(encode(GRANTED))
    fresh.rename(bed.path)
    assert held(live.read(UID, NAME))[0] == (1000, 400)
    live.settle(UID, NAME)
    assert held(decode(bed.path.read_bytes()))[0] == (300, 400)


def test_files_of_containers_that_are_gone_are_closed(bed: Bed) -> None:
    live = bed.limits()

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(bed.path.parent))

    before = mapped()
    for place in range(20):
        path = bed.path.with_name(f"{UID}_c{place}")
        path.write_bytes(encode(GRANTED))
        assert live.read(UID, f"c{place}") == GRANTED
        path.unlink()
    assert mapped() - before <= 1


def test_a_disk_that_takes_no_record_leaves_all_as_it_was(bed: Bed) -> None:
    (bed.state / "limits").write_text("in the way")
    bed.state.joinpath("limits").chmod(0o600)
    with pytest.raises(NodeNotReady):
        bed.limits().set_limits(UID, NAME, set_to(300))
    assert bed.path.read_bytes() == encode(GRANTED)


# --- after a crash or a boot ----------------------------------------------------------------------


def test_a_line_that_was_left_half_written_is_mended_by_the_record(bed: Bed) -> None:
    bed.limits().set_limits(UID, NAME, set_to(300))
    raw = bytearray(bed.path.read_bytes())
    struct.pack_into("<I", raw, 64, 7)
    struct.pack_into("<Q", raw, 64 + 24, 5 * MIB)
    bed.write(bytes(raw))
    live = bed.limits()
    assert live.mend() == 1
    assert held(decode(bed.path.read_bytes())) == [(300, 400), (600, 200)]
    assert struct.unpack_from("<I", bed.path.read_bytes(), 64) == (8,)
    assert live.mend() == 0


def test_a_lease_that_was_left_half_written_is_taken_back_and_the_limits_stay(bed: Bed) -> None:
    raw = bytearray(encode(lease(bed.now_ns)(GRANTED)))
    struct.pack_into("<I", raw, 64, 9)
    bed.write(bytes(raw))
    live = bed.limits()
    assert live.read(UID, NAME) == replace(GRANTED, alive_at_ns=bed.now_ns - 5)
    assert live.mend() == 1
    assert decode(bed.path.read_bytes()) == replace(GRANTED, alive_at_ns=bed.now_ns - 5)


def test_leases_of_the_boot_before_are_taken_back(bed: Bed) -> None:
    bed.write(encode(lease(bed.now_ns + 60_000_000_000)(GRANTED)))
    assert bed.limits().mend() == 1
    assert decode(bed.path.read_bytes()).devices == GRANTED.devices
    bed.write(encode(lease(bed.now_ns + 900_000_000)(GRANTED)))
    assert bed.limits().mend() == 0, "one that this boot gave stays"


def test_a_record_that_cannot_be_read_counts_as_none(bed: Bed) -> None:
    bed.limits().set_limits(UID, NAME, set_to(300))
    (record,) = (bed.state / "limits").iterdir()
    record.write_bytes(b"\xff{")
    live = bed.limits()
    assert live.record(UID, NAME) == LimitRecord()
    assert live.mend() == 0
    assert held(live.read(UID, NAME))[0] == (300, 400)


def test_the_largest_limit_of_all_times_outlives_the_agent(bed: Bed) -> None:
    granted = {d.uuid: d.memory_limit_bytes for d in GRANTED.devices}
    bed.limits().set_limits(UID, NAME, set_to(300))
    assert bed.limits().largest_ever(UID, NAME) == granted
    more = set_to(granted[A] // MIB * 3)
    for record in (more, set_to(1)):
        live = bed.limits()
        before = live.record(UID, NAME)
        live.set_limits(UID, NAME, replace(before, limits=record.limits))
    assert bed.limits().largest_ever(UID, NAME)[A] == 3 * granted[A]
    assert bed.limits().largest_ever(UID, "other") == {}


def test_a_file_that_is_exchanged_while_it_is_changed_says_the_same(bed: Bed) -> None:
    """An Allocate puts another one, with what was granted, in its place."""
    asked = 0

    def change(now: LimitsFile) -> LimitsFile:
        nonlocal asked
        asked += 1
        if asked == 2:  # the record is on disk, and the line is about to be written
            new = bed.path.with_name("new")
            new.write_bytes(encode(GRANTED))
            new.replace(bed.path)
        first = replace(now.devices[0], memory_limit_bytes=300 * MIB)
        return replace(now, devices=(first, *now.devices[1:]))

    bed.limits().change(UID, NAME, change)
    assert held(decode(bed.path.read_bytes()))[0] == (300, GRANTED.devices[0].core_permille)


def test_a_record_is_forgotten_with_its_container(bed: Bed) -> None:
    live = bed.limits()
    live.set_limits(UID, NAME, set_to(300))
    assert live.changed() == ((UID, NAME),)
    live.forget(UID, NAME)
    live.forget(UID, NAME)
    assert (live.changed(), live.record(UID, NAME)) == ((), LimitRecord())


def test_killed_at_every_step_a_change_is_whole_or_was_never_made(bed: Bed) -> None:
    script = Path(__file__).with_name("killed_changes.py")
    done = subprocess.run(
        [sys.executable, str(script), str(bed.host), str(bed.state), UID, NAME],
        capture_output=True, text=True, check=False, timeout=250,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["wrong"] == []
    assert said["kills"] > 100
    assert said["half_written"] > 5, "some were killed within a line"
    assert said["old"] > 0
    assert said["new"] > 0


# --- many at once ---------------------------------------------------------------------------------


def test_leases_and_limits_from_many_threads_never_tear_and_lose_nothing(bed: Bed) -> None:
    live = bed.limits()
    stop = threading.Event()
    wrong: list[object] = []
    pairs = {(memory, memory) for memory in (300, 700, 1000)} | {(1000, 400)}

    def renew() -> None:
        until = bed.now_ns
        while not stop.is_set():
            until += 1
            live.change(UID, NAME, lease(until))

    def look() -> None:
        while not stop.is_set():
            found = live.read(UID, NAME)
            assert found is not None
            first = found.devices[0]
            if (first.memory_limit_bytes // MIB, first.core_permille) not in pairs:
                wrong.append(first)
            if first.lent_until_ns and first.lent_until_ns != first.blocked_until_ns + 1:
                wrong.append(first)

    threads = [threading.Thread(target=work) for work in (renew, look)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(60):
            memory = (300, 700, 1000)[turn % 3]
            assert held(live.set_limits(UID, NAME, set_to(memory, memory)))[0] == (memory, memory)
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)
    assert wrong == []
    found = decode(bed.path.read_bytes())
    assert held(found)[0] == (1000, 1000)
    assert found.devices[0].blocked_until_ns > bed.now_ns
