"""What Linux says of a process in /proc, as text: in which pod it is, and what it has mapped.

Names in these texts can be a tenant's (paths, cgroups below its own), so every function is total:
whatever it does not understand is as if it was not there.
"""

import re
from dataclasses import dataclass, field

from agent.domain.identities import HOLDER, is_identity

_UUID = r"[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}"  # without dashes: a static pod's
# cgroupfs: pod<uid>; systemd: kubepods-burstable-pod<uid with _>.slice; the last part is what
# containerd makes of a systemd name under the cgroupfs driver.
_POD = re.compile(rf"(?:.*-)?pod({_UUID})(?:\.slice)?(?::[^:]*:(\w+))?", re.ASCII)
_CONTAINER = re.compile(r"(?:.*-)?([0-9A-Za-z]+)(?:\.scope)?", re.ASCII)
_OF_USERS = ("user.slice", "user-", "user@", "session-")
_DEVICE = re.compile(rb"/dev/nvidia[^/]*(?:/[^/]*)?")
_OCTAL = re.compile(r"\\([0-7]{3})", re.ASCII)
_DELETED, _UNLINKED_ROOT = b" (deleted)", "//deleted"
_LIBRARY, _DRIVER, _LIMITS = b"libvgpu.so", b"libcuda.so", b"vgpu.limits"
_UNMOUNTED = b"/"  # what a single file that was mounted is called when it was unmounted lazily
_OF_INTEREST = re.compile(
    rb"libvgpu\.so|libcuda\.so|/nvidia|vgpu\.limits| /(?: \(deleted\))?$", re.MULTILINE
)
_MAPS_FIELDS, _PATH_FIELD, _PERMISSIONS_FIELD, _DEVICE_FIELD, _INODE_FIELD = 6, 5, 1, 3, 4
_ROOT_FIELD, _MOUNTINFO_FIELDS = 3, 6


@dataclass(frozen=True, slots=True)
class Place:
    """Whose a process is, by its cgroup."""

    pod_uid: str
    container_id: str  # the runtime's; empty: the pod's own cgroup


def place_of(cgroup: str) -> Place | None:
    """Read /proc/PID/cgroup; None: in no pod.

    The outermost pod counts, since a container may make cgroups of any name below its own.
    Source: Kubernetes, pkg/kubelet/cm (names of both cgroup drivers); containerd, cri-o, docker
    name a container's cgroup `<id>` or `<runtime>-<id>.scope`.
    """
    for line in cgroup.split("\n"):
        parts = line.split(":", 2)[-1].split("/")
        for index, part in enumerate(parts):
            if part.startswith(_OF_USERS):
                break  # below it a user of the host names cgroups as it likes
            if pod := _POD.fullmatch(part):
                inner = _CONTAINER.fullmatch(parts[index + 1]) if parts[index + 1 :] else None
                identity = pod[2] or (inner[1] if inner else "")
                return Place(pod[1].replace("_", "-"), identity)
    return None


def granted_mount(mountinfo: str, directory: str, pod_uid: str) -> str:
    """Which container of the pod has its own directory mounted, by /proc/PID/mountinfo; "": none.

    `directory` is the name of the one that holds all containers' directories
    (`<pod uid>_<container>`). Only the end of a mount's root is compared: it is a path within the
    file system, not the host's. Source: proc(5), /proc/pid/mountinfo, field 4.
    """
    start = f"/{directory}/{pod_uid}_"
    for line in mountinfo.split("\n"):
        fields = line.split(" ")
        if len(fields) < _MOUNTINFO_FIELDS or start not in fields[_ROOT_FIELD]:
            continue
        root = _OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[_ROOT_FIELD])
        container = root.removesuffix(_UNLINKED_ROOT).rpartition(start)[2]
        if container and "/" not in container:
            return container
    return ""


def mounted_grant(mountinfo: str, directory: str) -> str:
    """The name of the grant (identities) whose directory is mounted there; empty: none.

    Nobody can guess the name of another one's.
    """
    for line in mountinfo.split("\n"):
        fields = line.split(" ")
        if len(fields) < _MOUNTINFO_FIELDS:
            continue
        before, _, last = fields[_ROOT_FIELD].removesuffix(_UNLINKED_ROOT).rpartition("/")
        name, _, holder = last.partition("_")
        if before.endswith(f"/{directory}") and holder == HOLDER and is_identity(name):
            return name
    return ""


def pid_inside(status: str) -> int:
    """The pid by which a process knows itself: the last of NSpid in /proc/PID/status; 0: none."""
    for line in status.split("\n"):
        if line.startswith("NSpid:"):
            last = (line.split() or [""])[-1]
            return int(last) if last.isascii() and last.isdigit() and len(last) <= 10 else 0  # noqa: PLR2004 - more are no pid
    return 0


@dataclass(frozen=True, slots=True)
class Life:
    """Which program a pid stands for: another process or another program has another one."""

    state: str = field(compare=False)  # "R", "S", "Z" ...
    start_time: int  # clock ticks from boot
    code_at: int  # addresses that each exec chooses anew; 0: not to be known
    stack_at: int
    mapped_bytes: int = field(default=0, compare=False)  # all that it has mapped, as a sum

    @property
    def ended(self) -> bool:
        """Whether it is a zombie. Of a process that is said of its first thread alone."""
        return self.state in ("Z", "X")


def life_of(stat: str) -> Life | None:
    """Read /proc/PID/stat; None: it says something else.

    Source: proc(5), fields 3, 22, 26, 28 and 23. The name in field 2 can hold anything.
    """
    fields = stat.rpartition(")")[2].split()
    try:
        return Life(fields[0], int(fields[19]), int(fields[23]), int(fields[25]), int(fields[20]))
    except (IndexError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class FileId:
    """Which file of the machine it is, whatever it is called where."""

    major: int
    minor: int
    inode: int

    def stands_for(self, own: "FileId") -> bool:
        """Whether this, as /proc/PID/maps has it, is `own`, as stat has it.

        On a file system without a device of its own (btrfs) the two may name other devices.
        """
        same_device = (self.major, self.minor) == (own.major, own.minor)
        return self.inode == own.inode and (same_device or own.major == 0)


@dataclass(frozen=True, slots=True)
class Mapped:
    """What of interest a process has mapped."""

    library: bool = False  # the hook, executable
    gpu: bool = False  # the CUDA driver, or a device file of a GPU
    limits: frozenset[FileId] = frozenset()  # what the hook may take for the container's limits

    def __or__(self, other: "Mapped") -> "Mapped":
        return Mapped(
            self.library or other.library, self.gpu or other.gpu, self.limits | other.limits
        )


def mapped(maps: bytes) -> Mapped:
    """Read whole lines of /proc/PID/maps. Files are known by their names alone."""
    found = Mapped()
    if not _OF_INTEREST.search(maps):
        return found
    for line in maps.split(b"\n"):
        fields = line.split(None, _PATH_FIELD)
        if len(fields) < _MAPS_FIELDS:
            continue
        path = fields[_PATH_FIELD].removesuffix(_DELETED)
        name = path.rpartition(b"/")[2]
        found |= Mapped(
            name.startswith(_LIBRARY) and b"x" in fields[_PERMISSIONS_FIELD],
            name.startswith(_DRIVER) or is_gpu_device(fields[_PATH_FIELD]),
            _file_id(fields)
            if (name == _LIMITS or path == _UNMOUNTED) and _as_the_hook(fields)
            else frozenset(),
        )
    return found


def _as_the_hook(fields: list[bytes]) -> bool:
    """Whether it is mapped as the hook maps limits: shared, and opened for reading only.

    Of what was unmounted lazily there may be more: single libraries, as NVIDIA's runtime mounts
    them, are mapped privately, and nodes of devices to be written. By mprotect the hook's mapping
    comes to look like none of these, only executable.
    """
    permissions = fields[_PERMISSIONS_FIELD]
    return permissions.endswith(b"s") and b"w" not in permissions


def _file_id(fields: list[bytes]) -> frozenset[FileId]:
    major, _, minor = fields[_DEVICE_FIELD].partition(b":")
    try:
        return frozenset({FileId(int(major, 16), int(minor, 16), int(fields[_INODE_FIELD]))})
    except ValueError:
        return frozenset()


def is_gpu_device(path: bytes) -> bool:
    """Whether an open or mapped file is a device file of NVIDIA's driver, by its name.

    Whatever comes before /dev is the way to a container's root.
    """
    at = path.rfind(b"/dev/nvidia")
    return at >= 0 and _DEVICE.fullmatch(path[at:].removesuffix(_DELETED)) is not None
