"""The DaemonSet's pod against the restricted profile, control by control, with each exception's reason.

Source: Kubernetes, Pod Security Standards, restricted.
"""

from collections.abc import Mapping
from typing import Any

from manifests import container_of, only, plain

EXCEPTIONS = {
    "hostPath volumes": "kubelet's sockets, the library, the containers' directories, /proc",
    "runAsNonRoot": "root owns kubelet's directories, and files of containers of any user",
    "runAsUser": "the same: it says 0",
    "capabilities": "DAC_OVERRIDE and FOWNER: those files; SYS_PTRACE: whose process has the library",
}


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
