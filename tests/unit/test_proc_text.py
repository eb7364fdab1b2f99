"""Texts of /proc: every spelling of a pod's cgroup, and whatever a tenant makes of the rest."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.proc_text import (
    FileId,
    Life,
    Mapped,
    Place,
    granted_mount,
    is_gpu_device,
    life_of,
    mapped,
    pid_inside,
    place_of,
)

UID = "0a1b2c3d-0000-4000-8000-00000000000f"
OTHER = "ffffffff-0000-4000-8000-00000000000f"
SYSTEMD = UID.replace("-", "_")
ID = "ab" * 32
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice"


@pytest.mark.parametrize(
    ("cgroup", "container_id"),
    [
        pytest.param(f"0::{BURSTABLE}/cri-containerd-{ID}.scope\n", ID, id="containerd, systemd"),
        pytest.param(f"0::{BURSTABLE}/crio-{ID}.scope/container\n", ID, id="cri-o, nested"),
        pytest.param(f"0::{BURSTABLE}/docker-{ID}.scope\n", ID, id="docker, systemd"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope\n",
            ID,
            id="guaranteed, systemd",
        ),
        pytest.param(f"0::/kubepods/besteffort/pod{UID}/{ID}\n", ID, id="cgroupfs"),
        pytest.param(f"0::/kubepods/pod{UID}/{ID}\n", ID, id="guaranteed, cgroupfs"),
        pytest.param(
            f"12:pids:/kubepods/pod{UID}/{ID}\n1:name=systemd:/kubepods/pod{UID}/{ID}\n0::/\n",
            ID,
            id="version 1",
        ),
        pytest.param(f"4:cpu,cpuacct:/\n0::/kubepods/pod{UID}/{ID}\n", ID, id="one line of many"),
        pytest.param(
            f"0::/../../kubepods-burstable-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope\n",
            ID,
            id="seen from a cgroup namespace",
        ),
        pytest.param(
            f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SYSTEMD}.slice/"
            f"cri-containerd-{ID}.scope\n",
            ID,
            id="kubelet below a cgroup root",
        ),
        pytest.param(
            f"0::/system.slice/containerd.service/kubepods-burstable-pod{SYSTEMD}.slice"
            f":cri-containerd:{ID}\n",
            ID,
            id="systemd's name under the cgroupfs driver",
        ),
        pytest.param(f"0::/kubepods/pod{UID}\n", "", id="the pod's own"),
        pytest.param(f"0::/kubepods/pod{UID}/{ID}/init.scope\n", ID, id="systemd in the container"),
        pytest.param(
            f"0::/kubepods/pod{UID}/{ID}/kubepods/pod{OTHER}/{'cd' * 32}\n",
            ID,
            id="a pod made up inside",
        ),
        pytest.param(f"0::/kubepods/pod{UID}/a b\n", "", id="a name that no runtime gives"),
    ],
)
def test_the_pod_of_a_cgroup(cgroup: str, container_id: str) -> None:
    assert place_of(cgroup) == Place(UID, container_id)


@pytest.mark.parametrize(
    "cgroup",
    [
        pytest.param("", id="nothing"),
        pytest.param("0::/\n", id="the root"),
        pytest.param("0::/user.slice/user-0.slice/session-1.scope\n", id="a login"),
        pytest.param(
            f"0::/user.slice/user-7.slice/user@7.service/app.slice/kubepods/pod{UID}/{ID}\n",
            id="a user who plays kubelet",
        ),
        pytest.param(
            f"0::/../../../user@7.service/app.slice/pod{UID}/{ID}\n",
            id="the same, from a cgroup namespace",
        ),
        pytest.param(f"0::/machine.slice/libpod-{ID}.scope\n", id="podman"),
        pytest.param(f"0::/kubepods/pod{UID}x/{ID}\n", id="more than a uid"),
        pytest.param(f"0::/tripod{UID}/{ID}\n", id="another word"),
        pytest.param("0::/kubepods/podinfo/x\n", id="no uid"),
    ],
)
def test_what_is_in_no_pod(cgroup: str) -> None:
    assert place_of(cgroup) is None


def test_a_static_pods_uid_has_no_dashes() -> None:
    assert place_of(f"0::/kubepods/pod{'0f' * 16}/{ID}") == Place("0f" * 16, ID)


ROOT = f"/usr/local/vgpu/containers/{UID}_main"


def mount(root: str, at: str = "/usr/local/vgpu") -> str:
    return f"612 598 8:1 {root} {at} rw,relatime - ext4 /dev/sda1 rw\n"


@pytest.mark.parametrize(
    ("mountinfo", "container"),
    [
        pytest.param(mount("/") + mount(ROOT), "main", id="among others"),
        pytest.param(mount(f"/vgpu/containers/{UID}_main"), "main", id="a file system of its own"),
        pytest.param(mount(f"{ROOT}//deleted"), "main", id="deleted meanwhile"),
        pytest.param(mount(rf"/with\040blank/containers/{UID}_a.b"), "a.b", id="escaped"),
        pytest.param(mount(f"/usr/local/vgpu/containers/{OTHER}_main"), "", id="another pod's"),
        pytest.param(mount(f"{ROOT}/libvgpu.so"), "", id="a file in it"),
        pytest.param(mount("/x", at=ROOT), "", id="mounted there, not from there"),
        pytest.param(mount(f"/other/{UID}_main"), "", id="another directory"),
        pytest.param(mount(f"/usr/local/vgpu/containers/{UID}_"), "", id="no name"),
        pytest.param(f"1 2 3 {ROOT}\n", "", id="cut short"),
    ],
)
def test_whose_directory_is_mounted(mountinfo: str, container: str) -> None:
    assert granted_mount(mountinfo, "containers", UID) == container


@pytest.mark.parametrize(
    ("status", "pid"),
    [
        pytest.param("Name:\tpython\nNSpid:\t4242\t17\t3\nThreads:\t1\n", 3, id="nested"),
        pytest.param("NSpid:\t4242\n", 4242, id="the host's own"),
        pytest.param("Name:\tNSpid: 5\n", 0, id="not its own line"),
        pytest.param("NSpid:\n", 0, id="empty"),
        pytest.param("NSpid:\t4\tx\n", 0, id="no number"),
        pytest.param("NSpid:\t4\t²\n", 0, id="no digit"),
        pytest.param("NSpid:\t99999999999999\n", 0, id="too large"),
        pytest.param("", 0, id="an old kernel"),
    ],
)
def test_the_pid_inside(status: str, pid: int) -> None:
    assert pid_inside(status) == pid


STAT = (
    "77 ({name}) {state} 1 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {start} 1 1 18446744073709551615"
    " 1000 1001 {stack} 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0"
)


@pytest.mark.parametrize("name", ["cat", "a b", ") R 1 1", "", "\n"])
def test_which_program_runs(name: str) -> None:
    life = life_of(STAT.format(name=name, state="S", start=55, stack=140))
    assert life == Life("S", 55, 1000, 140)
    assert life == life_of(STAT.format(name="x", state="Z", start=55, stack=140))
    assert life != life_of(STAT.format(name=name, state="S", start=56, stack=140))
    assert life != life_of(STAT.format(name=name, state="S", start=55, stack=150))


def line(path: str, permissions: str = "r-xp") -> str:
    return f"7f00-7f10 {permissions} 00000000 08:01 42    {path}\n"


@pytest.mark.parametrize(
    ("maps", "library", "gpu"),
    [
        pytest.param(line("/usr/local/vgpu/libvgpu.so"), True, False, id="the library"),
        pytest.param(line("/host/libvgpu.so.0.1-ab (deleted)"), True, False, id="an older one"),
        pytest.param(line("/x/libvgpu.so", "r--p"), False, False, id="merely read"),
        pytest.param(line("/x/libvgpu.so/y"), False, False, id="a directory of that name"),
        pytest.param(line("/lib/libcuda.so.1", "r--p"), False, True, id="the driver"),
        pytest.param(line("/lib/libcuda.so.570.1"), False, True, id="the driver's own name"),
        pytest.param(line("/lib/libcudart.so.12"), False, False, id="the runtime alone"),
        pytest.param(line("/dev/nvidia0", "rw-s"), False, True, id="a device"),
        pytest.param(line("/a b/libvgpu.so") + line("/dev/nvidia-uvm"), True, True, id="both"),
        pytest.param(line("") + line("[heap]") + "libvgpu.so\n", False, False, id="neither"),
    ],
)
def test_what_is_mapped(maps: str, library: bool, gpu: bool) -> None:
    assert mapped(maps.encode()) == Mapped(library, gpu)


OURS = FileId(8, 0xFE, 42)


@pytest.mark.parametrize(
    ("maps", "limits"),
    [
        pytest.param(line("/etc/vgpu.limits", "r--s").replace("01", "fe"), {OURS}, id="one"),
        pytest.param(
            line("/host/a b/vgpu.limits (deleted)", "r--s").replace("01", "fe"), {OURS}, id="gone",
        ),
        pytest.param(
            line("/etc/vgpu.limits", "r--s") + line("/etc/vgpu.limits", "r--s").replace("42", "43"),
            {FileId(8, 1, 42), FileId(8, 1, 43)}, id="two",
        ),
        pytest.param(line("/", "r--s"), {FileId(8, 1, 42)}, id="unmounted lazily"),
        pytest.param(line("/ (deleted)", "r--s"), {FileId(8, 1, 42)}, id="and deleted"),
        pytest.param(line("/", "r-xs"), {FileId(8, 1, 42)}, id="made executable, to be missed"),
        pytest.param(line("/") + line("/", "r--p"), set(), id="a library unmounted lazily"),
        pytest.param(line("/", "rw-s"), set(), id="a device's node unmounted lazily"),
        pytest.param(line("/data/vgpu.limits", "rw-s"), set(), id="a program's own data"),
        pytest.param(
            line("/etc/vgpu.limits.old", "r--s") + line("/vgpu.limits/x", "r--s"), set(),
            id="other names",
        ),
        pytest.param("a r--s c x:y 4 /etc/vgpu.limits\n", set(), id="no device"),
        pytest.param("a r--s c 1 z /etc/vgpu.limits\n", set(), id="no inode"),
    ],
)  # fmt: skip
def test_which_limits_files_are_mapped(maps: str, limits: set[FileId]) -> None:
    assert mapped(maps.encode()) == Mapped(limits=frozenset(limits))


@pytest.mark.parametrize(
    ("own", "stands"),
    [
        pytest.param(OURS, True, id="the same"),
        pytest.param(replace(OURS, inode=43), False, id="another inode"),
        pytest.param(replace(OURS, minor=1), False, id="another partition"),
        pytest.param(replace(OURS, major=9), False, id="another disk"),
        pytest.param(FileId(0, 44, 42), True, id="a file system without a device of its own"),
        pytest.param(FileId(0, 44, 43), False, id="another inode there"),
    ],
)
def test_which_file_it_is(own: FileId, stands: bool) -> None:
    assert OURS.stands_for(own) is stands


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("/dev/nvidia0", True),
        ("/dev/nvidiactl", True),
        ("/dev/nvidia-uvm (deleted)", True),
        ("/dev/nvidia-caps/nvidia-cap1", True),
        ("/run/rootfs/dev/nvidia0", True),
        ("/dev/null", False),
        ("/home/dev/nvidia/a/b", False),
        ("socket:[1]", False),
    ],
)
def test_device_files(path: str, is_one: bool) -> None:
    assert is_gpu_device(path.encode()) is is_one


WORDS = st.lists(
    st.sampled_from(
        ["pod", UID, SYSTEMD, "/", "-", "_", ":", "\n", "\t", " ", ".slice", ".scope", ID, "(", ")",
         "NSpid:", "containers", "\\040", "\\9", "0", "libvgpu.so", "/dev/nvidia", "²", "/etc/vgpu.limits"],
    )
    | st.text(max_size=5),
    max_size=60,
).map("".join)  # fmt: skip


@given(WORDS)
def test_anything_at_all_is_read(text: str) -> None:
    place = place_of(text)
    assert place is None or len(place.pod_uid) in (32, 36)
    assert "/" not in granted_mount(text, "containers", UID)
    assert pid_inside(text) >= 0
    life_of(text)
    mapped(text.encode())
    is_gpu_device(text.encode())


@given(st.lists(st.from_regex(r"[a-z0-9.-]{1,12}", fullmatch=True), max_size=3), st.booleans())
def test_below_any_root_and_above_any_child(parts: list[str], systemd: bool) -> None:
    pod = f"kubepods-burstable-pod{SYSTEMD}.slice" if systemd else f"pod{UID}"
    path = "/".join(["", *parts, pod, ID, *parts])
    assert place_of(f"0::{path}\n") == Place(UID, ID)
