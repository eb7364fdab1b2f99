"""Names that grants get where nobody tells in time whose they are.

Kubelet asks with device ids alone. Where no scheduler says which pod that is for, the grant gets a
name of its own, in the place of a pod's uid: its files are named by it, whoever it turns out to be.
One such name stands for one container.
"""

import re

HOLDER = "c"  # the part of the files' names where a container's name stands otherwise
MARKLESS = "nvidia-"  # the mode in which containers get devices and nothing else
_IDENTITY = re.compile(r"[a-z]{3,16}-[0-9a-f]{16}", re.ASCII)


def identity(mode: str, number: int) -> str:
    """`<mode>-<16 hex digits>` of a random number of 64 bits: nobody can guess another's."""
    return f"{mode}-{number & 0xFFFFFFFFFFFFFFFF:016x}"


def is_identity(pod_uid: str) -> bool:
    """Whether this is such a name; no uid of a pod has this form."""
    return _IDENTITY.fullmatch(pod_uid) is not None


def leaves_no_mark(pod_uid: str) -> bool:
    """Whether the grant mounts nothing by which its container's processes could be known."""
    return is_identity(pod_uid) and pod_uid.startswith(MARKLESS)


def held_as(pod_uid: str, container: str) -> str:
    """The container's part of its files' names: its own name, unless its grant came before it."""
    return HOLDER if is_identity(pod_uid) else container


def directory_of(pod_uid: str, container: str) -> str:
    """`<pod uid>_<container>`, as everything of a container is named on the host."""
    return f"{pod_uid}_{held_as(pod_uid, container)}"
