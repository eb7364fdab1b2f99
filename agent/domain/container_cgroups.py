"""Where a container's cgroup lies below the host's cgroup file system.

Its path is made of what kubelet says: the pod's uid and the runtime's id of the container, both of
which must look as such, so that no path leads anywhere else. Source: Kubernetes, pkg/kubelet/cm
(names of both cgroup drivers); containerd, cri-o, docker (names of a container's). cri-o puts its
prefix before the id with the cgroupfs driver, too.
"""

import re

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_STATIC_UID = re.compile(r"[0-9a-f]{32}", re.ASCII)  # of a static pod
_IDENTITY = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CLASSES = ("", "burstable", "besteffort")
_RUNTIMES = ("cri-containerd", "crio", "docker")


def cgroup_paths(pod_uid: str, container_id: str) -> tuple[str, ...]:
    """All places where it may be, relative to the root of cgroup v2; none for odd names. Total."""
    known = _UID.fullmatch(pod_uid) or _STATIC_UID.fullmatch(pod_uid)
    if not known or not _IDENTITY.fullmatch(container_id):
        return ()
    found = []
    for quality in _CLASSES:
        middle = f"-{quality}" if quality else ""
        slices = [f"kubepods{middle}.slice"] if quality else []
        pod = f"kubepods{middle}-pod{pod_uid.replace('-', '_')}.slice"
        systemd = "/".join(["kubepods.slice", *slices, pod])
        found += [f"{systemd}/{runtime}-{container_id}.scope" for runtime in _RUNTIMES]
        plain = [quality] if quality else []
        for name in (container_id, f"crio-{container_id}"):
            found.append("/".join(["kubepods", *plain, f"pod{pod_uid}", name]))
    return tuple(found)
