"""Which files of the hook on the host may go: those that nobody has or will be given any more.

A container keeps the mounts of its Allocate for as long as its pod lives, because kubelet starts it
again with the same ones. So a file stays for as long as a container names it, whoever runs.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from agent.domain.grants import GrantRecord
from agent.domain.identities import directory_of
from agent.domain.pods import Pod

LIBRARY = "libvgpu.so"
DIGEST_CHARS = 16
MAX_AT_ONCE = 16

_VERSION = r"[0-9A-Za-z][0-9A-Za-z.+~_-]{0,63}"
_HOOK = re.compile(rf"libvgpu\.so\.{_VERSION}-[0-9a-f]{{{DIGEST_CHARS}}}", re.ASCII)
_UNFINISHED = re.compile(
    rf"\.(?:libvgpu\.so(?:\.{_VERSION}-[0-9a-f]{{{DIGEST_CHARS}}})?|ld\.so\.preload)"
    r"\.[0-9]{1,10}\.[0-9a-f]{8}",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class HookFile:
    """A file of ours beside the container directories."""

    name: str
    device: int
    inode: int
    wanted_at_s: float  # unix time at which an agent last made or confirmed it


def hook_name(version: str, digest: str) -> str:
    """`libvgpu.so.<version>-<beginning of the content's SHA-256, in hex>`."""
    return f"{LIBRARY}.{version}-{digest[:DIGEST_CHARS]}"


def is_hook_name(name: str) -> bool:
    """Whether a file's name has the form that `hook_name` gives."""
    return bool(_HOOK.fullmatch(name))


def is_content_of(name: str, digest: str) -> bool:
    """Whether the file of that name has, or had, the content with this SHA-256, in hex."""
    return is_hook_name(name) and name.endswith("-" + digest[:DIGEST_CHARS])


def is_unfinished_name(name: str) -> bool:
    """Whether it is what an agent that was killed leaves of a file it was writing."""
    return bool(_UNFINISHED.fullmatch(name))


def hooks_of_containers(
    directories: Iterable[str], records: Iterable[GrantRecord], pods: Mapping[str, Pod]
) -> frozenset[str] | None:
    """Names of the files that containers were given; None: it cannot be said, so all of them.

    `directories` are `<pod uid>_<container>`. What cannot be said: a directory, or a running pod's
    container with vGPUs, of which no grant is remembered, or a grant without a library in it.
    """
    named: set[str] = set()
    known: set[str] = set()
    for record in records:
        own = {
            name
            for mount in record.grant.mounts
            if (name := PurePosixPath(mount.host_path).name) == LIBRARY or is_hook_name(name)
        }
        if not own:
            return None
        named |= own
        known.add(directory_of(record.pod_uid, record.container))
    granted = {
        directory_of(pod.uid, container.name)
        for pod in pods.values()
        if not pod.finished
        for container in pod.containers
        if container.vgpus > 0
    }
    return frozenset(named) if known.issuperset(granted | set(directories)) else None


def forgotten_hooks(
    files: Iterable[HookFile],
    *,
    own: str,
    named: Collection[str],
    now_s: float,
    after_s: float,
) -> list[HookFile]:
    """The files that no agent and no container wants, oldest first, at most MAX_AT_ONCE.

    `own` is the file that this agent gives out; one that some agent has confirmed within `after_s`
    stays as well. Whether a process still has one of them mapped is another question.
    """
    old = [
        file
        for file in files
        if file.name != own and file.name not in named and now_s - file.wanted_at_s >= after_s
    ]
    return sorted(old, key=lambda file: (file.wanted_at_s, file.name))[:MAX_AT_ONCE]


def mapped_files(maps: bytes, files: Collection[HookFile]) -> frozenset[str]:
    """Names of the files that whole lines of /proc/PID/maps show.

    A file is known by inode and device; where a file system shows another device there than stat
    does (btrfs), by inode and the name of the library. Source: proc(5), /proc/pid/maps.
    """
    found: set[str] = set()
    by_inode: dict[bytes, list[HookFile]] = {}
    for file in files:
        by_inode.setdefault(b"%d" % file.inode, []).append(file)
    for line in maps.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) < 5 or fields[4] not in by_inode:  # noqa: PLR2004 - the inode is the fifth
            continue
        library = len(fields) > 5 and LIBRARY.encode() in fields[5]  # noqa: PLR2004 - the path
        for file in by_inode[fields[4]]:
            if library or _device(fields[3]) in (file.device, None):
                found.add(file.name)
    return frozenset(found)


def _device(text: bytes) -> int | None:
    """`08:01` as stat gives it; None for anything else. Source: Linux, new_encode_dev."""
    major, _, minor = text.partition(b":")
    try:
        high, low = int(major, 16), int(minor, 16)
    except ValueError:
        return None
    return (low & 0xFF) | (high & 0xFFF) << 8 | (low & ~0xFF) << 12 | (high & ~0xFFF) << 32
