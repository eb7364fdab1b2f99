"""The DaemonSet's pod against the restricted profile, control by control, with each exception's reason.

Source: Kubernetes, Pod Security Standards, restricted.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifests import BASE, COMPONENTS, OVERLAYS, Manifest, combined, container_of, only, plain

from tests.security.rights import Right, of_role

EXCEPTIONS = {
    "hostPath volumes": "kubelet's sockets, the library, the containers' directories, /proc",
    "runAsNonRoot": "root owns kubelet's directories, and files of containers of any user",
    "runAsUser": "the same: it says 0",
    "capabilities": "DAC_OVERRIDE and FOWNER: those files; SYS_PTRACE: whose process has the library",
}


# Why a component or an overlay asks for what the base does not.
REASONS = {
    "components/cdi": "it writes CDI files where runtimes look for them, and reads the driver's files",
    "components/evict": "a pod that uses a GPU past its grant is evicted",
    "components/host-pid": "the driver lists to a pod with pids of its own only its own processes; the "
    "agent can then see, and as root also signal, the processes of the host",
    "components/kernel-limits": "a pod sees its own cgroup alone; as root the agent could write there",
    "components/volume-mounts": "NVIDIA's runtime takes the agent's own GPUs from this mount",
    "overlays/slices": "kubelet alone is asked",
    "overlays/nvidia": "kubelet alone is asked, and the Node for the label that chooses a configuration",
    "overlays/mig": "without SYS_ADMIN the driver lets nobody divide a GPU: who has it can mount and "
    "more; HAMi's monitor looks for the lock in its directory",
}


@dataclass(frozen=True, slots=True)
class Pod:
    """What a choice of manifests gives the agent's pod and its account."""

    rights: frozenset[Right]
    token: bool
    not_kept: frozenset[str]  # controls of the profile
    capabilities: frozenset[str]
    mounts: frozenset[str]  # of the host's paths; those that may be written end with " (write)"

    @classmethod
    def of(cls, manifests: list[Manifest]) -> "Pod":
        pod, container = (
            only("DaemonSet", manifests)["spec"]["template"]["spec"],
            container_of(manifests),
        )
        security = container.get("securityContext", {})
        read_only = {m["name"]: m.get("readOnly", False) for m in container["volumeMounts"]}
        roles = [m for m in manifests if m["kind"] == "ClusterRole"]
        return cls(
            frozenset(of_role(manifests)) if roles else frozenset(),
            pod.get("automountServiceAccountToken") is not False,
            frozenset(what for what, kept in judged(pod, container).items() if not kept),
            frozenset(security.get("capabilities", {}).get("add", ())),
            frozenset(
                v["hostPath"]["path"] + ("" if read_only.get(v["name"]) else " (write)")
                for v in pod["volumes"]
                if "hostPath" in v
            ),
        )


def every_choice() -> Mapping[str, Pod]:
    """The base, each component on it, and each overlay. Raises PeersUnavailable without kustomize."""
    return {
        f"{folder.parent.name}/{folder.name}" if folder != BASE else "base": pod_of(folder)
        for folder in (BASE, *COMPONENTS, *OVERLAYS)
    }


def pod_of(folder: Path) -> Pod:
    """Of a component: with the base."""
    component = folder in COMPONENTS
    with tempfile.TemporaryDirectory() as work:
        choice = (BASE, (folder,)) if component else (folder, ())
        return Pod.of(combined(choice, Path(work)))


def difference(base: Pod, pod: Pod) -> str:
    """What a pod has beside the base's, and what it has not, in words; empty: it is the same."""
    more = [
        ("right", sorted(" ".join(right) for right in pod.rights - base.rights)),
        ("control not kept", sorted(pod.not_kept - base.not_kept)),
        ("capability", sorted(pod.capabilities - base.capabilities)),
        ("of the host", sorted(pod.mounts - base.mounts)),
    ]
    words = [f"{what}: {', '.join(some)}" for what, some in more if some]
    if base.rights and not pod.rights:
        words.append("no right in the cluster")
    elif base.rights - pod.rights:
        words.append(f"without {', '.join(sorted(' '.join(r) for r in base.rights - pod.rights))}")
    if base.token and not pod.token:
        words.append("no token")
    return "; ".join(words)


def controls() -> Mapping[str, bool]:
    """Control of the profile -> whether the pod keeps to it."""
    pod = only("DaemonSet", plain())["spec"]["template"]["spec"]
    container = container_of(plain())
    return judged(pod, container)


def judged(pod: Mapping[str, Any], container: Mapping[str, Any]) -> Mapping[str, bool]:
    """The same of any pod with one container."""
    security = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
    capabilities = security.get("capabilities", {})
    volumes = pod.get("volumes", ())
    plain_volumes = ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral",
                     "persistentVolumeClaim", "projected", "secret", "hostPath")  # fmt: skip
    found = {
        "host namespaces": any(pod.get(k) for k in ("hostPID", "hostIPC", "hostNetwork")),
        "privileged": bool(security.get("privileged")),
        "privilege escalation": security.get("allowPrivilegeEscalation") is not False,
        "hostPath volumes": any("hostPath" in volume for volume in volumes),
        "other volumes": any(set(v) - {"name", *plain_volumes} for v in volumes),
        "host ports": any(port.get("hostPort") for port in container.get("ports", ())),
        "runAsNonRoot": security.get("runAsNonRoot") is not True,
        "runAsUser": security.get("runAsUser", 1) == 0,
        "seccomp": security.get("seccompProfile", {}).get("type")
        not in ("RuntimeDefault", "Localhost"),
        "procMount": security.get("procMount", "Default") != "Default",
        "sysctls": bool(security.get("sysctls")),
        "SELinux": bool(security.get("seLinuxOptions")),
        "AppArmor": security.get("appArmorProfile", {}).get("type") == "Unconfined",
        "Windows host process": bool(security.get("windowsOptions")),
        "capabilities": "ALL" not in capabilities.get("drop", ())
        or bool(set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}),
    }
    return {what: not objected for what, objected in found.items()}
