# ruff: noqa: ARG002 - a fake has the arguments of its port, used or not
"""Files of the hook go only when nobody wants them: no agent, no container, no process."""

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.grants import Grant, GrantRecord, Mount
from agent.domain.hook_files import (
    MAX_AT_ONCE,
    HookFile,
    forgotten_hooks,
    hook_name,
    hooks_of_containers,
    is_hook_name,
    is_unfinished_name,
    mapped_files,
)
from agent.domain.pods import Container, Pod
from agent.errors import NodeNotReady
from agent.ports import HookListing
from agent.services.hook_gc import AFTER_S as USUAL_AFTER_S
from agent.services.hook_gc import HookGc
from agent.services.hook_install import EVERY_S
from agent.services.published import PodTable, Published
from tests.unit.fakes import FakeCaches, FakeGrantLog

NOW, AFTER_S = 10_000.0, 600.0
OWN, OLD, OLDER = (hook_name("1.0", letter * 64) for letter in "abc")


def hook(name: str, wanted_at_s: float = 0.0, inode: int = 7) -> HookFile:
    return HookFile(name, 0xFE00, inode, wanted_at_s)


def record(uid: str, *libraries: str, container: str = "main") -> GrantRecord:
    mounts = [Mount("/usr/local/vgpu/libvgpu.so", f"/usr/local/vgpu/{n}") for n in libraries]
    return GrantRecord(
        pod_uid=uid,
        namespace="team",
        pod_name=uid,
        container=container,
        device_ids=(),
        claims=(),
        grant=Grant(mounts=(*mounts, Mount("/etc/ld.so.preload", "/usr/local/vgpu/x"))),
        granted_at_s=0.0,
    )


def pod(uid: str, phase: str = "Running", vgpus: int = 1) -> Pod:
    container = Container(name="main", vgpus=vgpus)
    return Pod(namespace="team", name=uid, uid=uid, phase=phase, containers=(container,))


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        pytest.param("libvgpu.so.0.1.0-0123456789abcdef", True, id="as it is made"),
        pytest.param("libvgpu.so.1.0-rc.1-0123456789abcdef", True, id="a version with a dash"),
        pytest.param("libvgpu.so", False, id="HAMi's first name"),
        pytest.param("libvgpu.so.v2.10.0", False, id="HAMi's name with a version"),
        pytest.param("libvgpu.so.0.1.0-0123456789abcde", False, id="a digest too short"),
        pytest.param("libvgpu.so.0.1.0-0123456789ABCDEF", False, id="a digest in capitals"),
        pytest.param("libvgpu.so.0.1.0-0123456789abcdef\n", False, id="a line end"),
        pytest.param("libvgpu.so./-0123456789abcdef", False, id="a path"),
        pytest.param("libvgpu.so.-0123456789abcdef", False, id="no version"),
        pytest.param("xlibvgpu.so.0.1.0-0123456789abcdef", False, id="something before"),
    ],
)
def test_names(name: str, ours: bool) -> None:
    assert is_hook_name(name) is ours
    assert is_unfinished_name(f".{name}.123.0a1b2c3d") is (ours or name == "libvgpu.so")
    assert not is_unfinished_name(name)


def test_unfinished_names_are_those_of_this_directory_alone() -> None:
    assert is_unfinished_name(".ld.so.preload.1.0a1b2c3d")
    assert not is_unfinished_name(".bashrc.1.0a1b2c3d")
    assert not is_unfinished_name(".libvgpu.so.1.0a1b2c3")


# --- what containers were given --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directories", "records", "pods", "named"),
    [
        pytest.param([], [], [], set(), id="nobody"),
        pytest.param(["u_main"], [record("u", OLD)], [pod("u")], {OLD}, id="its grant names it"),
        pytest.param([], [record("u", OLD)], [], {OLD}, id="the grant alone"),
        pytest.param([], [record("u", "libvgpu.so")], [], {"libvgpu.so"}, id="HAMi's own name"),
        pytest.param([], [record("u", OLD), record("v", OLDER)], [], {OLD, OLDER}, id="several"),
        pytest.param([], [record("u")], [], None, id="a grant without a library"),
        pytest.param(["u_main"], [], [], None, id="a directory without a grant"),
        pytest.param(["u_b"], [record("u", OLD)], [], None, id="of the other container"),
        pytest.param([], [], [pod("u")], None, id="a pod without a grant"),
        pytest.param([], [], [pod("u", "Succeeded")], set(), id="a pod that has ended"),
        pytest.param([], [], [pod("u", vgpus=0)], set(), id="a pod without vGPUs"),
    ],
)
def test_what_containers_name(
    directories: list[str], records: list[GrantRecord], pods: list[Pod], named: set[str] | None
) -> None:
    table = {each.uid: each for each in pods}
    assert hooks_of_containers(directories, records, table) == named


@pytest.mark.parametrize(
    ("file", "goes"),
    [
        pytest.param(hook(OLD, NOW - AFTER_S), True, id="old"),
        pytest.param(hook(OLD, NOW - AFTER_S + 1), False, id="wanted a moment ago"),
        pytest.param(hook(OLD, NOW + 9 * AFTER_S), False, id="the clock was set back"),
        pytest.param(hook(OWN, 0), False, id="our own"),
        pytest.param(hook(OLDER, 0), False, id="a container names it"),
    ],
)
def test_who_is_forgotten(file: HookFile, goes: bool) -> None:
    gone = forgotten_hooks([file], own=OWN, named={OLDER}, now_s=NOW, after_s=AFTER_S)
    assert gone == ([file] if goes else [])


def test_only_so_many_at_once_the_oldest_first() -> None:
    files = [hook(hook_name("1", f"{n:016x}"), float(n)) for n in reversed(range(40))]
    gone = forgotten_hooks(files, own=OWN, named=(), now_s=NOW, after_s=AFTER_S)
    assert [file.wanted_at_s for file in gone] == [float(n) for n in range(MAX_AT_ONCE)]


# --- /proc/PID/maps --------------------------------------------------------------------------------


def line(path: str, device: str = "fe:00", inode: int = 7) -> bytes:
    return f"7f00-7f10 r-xp 00000000 {device} {inode} {path}\n".encode()


@pytest.mark.parametrize(
    ("maps", "found"),
    [
        pytest.param(line("/usr/local/vgpu/libvgpu.so"), {OLD}, id="mapped"),
        pytest.param(line("/x (deleted)"), {OLD}, id="under any name"),
        pytest.param(line("/libvgpu.so", device="00:1f"), {OLD}, id="by btrfs' other device"),
        pytest.param(line("/lib/libc.so.6", device="08:01"), set(), id="of another disk"),
        pytest.param(line("/x", device="?"), {OLD}, id="of a device that cannot be read"),
        pytest.param(line("/libvgpu.so", inode=77), set(), id="another file"),
        pytest.param(line(""), {OLD}, id="without a path"),
        pytest.param(line("/a") + line("/b", inode=8) + b"7f", {OLD, OLDER}, id="two"),
        pytest.param(b"\n \n7f00-7f10 r-xp 0 fe:00\n\xff\xfe", set(), id="nonsense"),
    ],
)
def test_maps(maps: bytes, found: set[str]) -> None:
    assert mapped_files(maps, [hook(OLD), hook(OLDER, inode=8)]) == found


@given(st.binary(max_size=200))
def test_any_maps_are_read(maps: bytes) -> None:
    assert mapped_files(maps, [hook(OLD)]) <= {OLD}


# --- the round -------------------------------------------------------------------------------------


@dataclass
class FakeHooks:
    """Implements `InstalledHooks` as a list."""

    files: list[HookFile]
    unfinished: list[HookFile] = field(default_factory=list)
    linked: frozenset[str] = frozenset()
    in_use: frozenset[str] | None = frozenset()
    broken: str = ""
    looked: int = 0

    def listed(self) -> HookListing:
        if self.broken == "list":
            raise NodeNotReady("no disk")
        return HookListing(tuple(self.files), tuple(self.unfinished), self.linked)

    def mapped(self, files: Collection[HookFile]) -> frozenset[str] | None:
        self.looked += 1
        return self.in_use

    def delete(self, file: HookFile) -> None:
        if file.name == self.broken:
            raise NodeNotReady("no disk")
        (self.files if file in self.files else self.unfinished).remove(file)


def collect(
    hooks: FakeHooks, *records: GrantRecord, own: str = OWN, synced: bool = True
) -> set[str]:
    """One round; what is left."""
    log = FakeGrantLog()
    for each in records:
        log.record(each)
    pods = Published(PodTable({}, synced=synced))
    HookGc(hooks, FakeCaches(), log, pods, after_s=AFTER_S, now_s=lambda: NOW).collect_once(own)
    return {file.name for file in hooks.files}


def three(**more: object) -> FakeHooks:
    return FakeHooks([hook(name, inode=n) for n, name in enumerate((OWN, OLD, OLDER))], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hooks", "records", "left"),
    [
        pytest.param(three(), [], {OWN}, id="nobody wants the older ones"),
        pytest.param(three(), [record("u", OLD)], {OWN, OLD}, id="a container names one"),
        pytest.param(three(), [record("u")], {OWN, OLD, OLDER}, id="a container may name any"),
        pytest.param(three(in_use=frozenset({OLD})), [], {OWN, OLD}, id="a process has one mapped"),
        pytest.param(three(in_use=None), [], {OWN, OLD, OLDER}, id="processes cannot be seen"),
        pytest.param(three(linked=frozenset({OLD})), [], {OWN, OLD}, id="a link leads to one"),
        pytest.param(three(broken="list"), [], {OWN, OLD, OLDER}, id="not to be listed"),
        pytest.param(three(broken=OLD), [], {OWN, OLD}, id="not to be deleted"),
    ],
)
def test_a_round(hooks: FakeHooks, records: list[GrantRecord], left: set[str]) -> None:
    assert collect(hooks, *records) == left


def test_nothing_goes_before_the_pods_are_known() -> None:
    assert collect(three(), synced=False) == {OWN, OLD, OLDER}


def test_nothing_goes_where_the_library_is_somebody_elses() -> None:
    assert collect(three(), own="libvgpu.so") == {OWN, OLD, OLDER}


def test_what_another_agent_confirms_now_and_then_stays() -> None:
    """By the times that are in use: an agent that is late a few times does not lose its file."""
    hooks = FakeHooks([hook(OLD, NOW - 5 * EVERY_S), hook(OLDER, NOW - USUAL_AFTER_S)])
    pods = Published(PodTable({}, synced=True))
    HookGc(hooks, FakeCaches(), FakeGrantLog(), pods, now_s=lambda: NOW).collect_once(OWN)
    assert [file.name for file in hooks.files] == [OLD]


def test_processes_are_looked_at_only_when_a_file_might_go() -> None:
    hooks = three()
    collect(hooks, record("u", OLD, OLDER))
    assert hooks.looked == 0


def test_what_was_not_written_to_its_end_goes_whoever_runs() -> None:
    left = hook(f".{OLD}.12.0a1b2c3d")
    young = hook(f".{OLD}.13.0a1b2c3d", NOW)
    hooks = three(in_use=None, unfinished=[left, young])
    collect(hooks, record("u"))
    assert hooks.unfinished == [young]
