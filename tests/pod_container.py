"""The agent's container as a node would run it: of its manifest, and of its image, an OCI bundle.

What kubelet and containerd add is added here: the service account, the usual mounts, masked paths.
Not imitated: the seccomp profile RuntimeDefault, AppArmor and SELinux, the memory limit; and the
pod's network, because the stand-ins it talks to listen on this machine's loopback.

Source: OCI runtime specification 1.0, config.md; containerd 1.6, pkg/cri (as it translates a pod).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from peers.runc import Bundle

Json = Mapping[str, Any]
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
MASKED = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
          "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware")  # fmt: skip
READ_ONLY = ("/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys",
             "/proc/sysrq-trigger")  # fmt: skip


def mount(destination: str, source: str | Path, *options: str) -> dict[str, Any]:
    """A path of the host in the container, read-only unless told otherwise."""
    options = ("rbind", "rprivate", *(options or ("ro",)))
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": list(options),
    }


def virtual(destination: str, kind: str, *options: str) -> dict[str, Any]:
    """A file system that the kernel makes."""
    return {"destination": destination, "type": kind, "source": kind, "options": list(options)}


USUAL = (
    virtual("/proc", "proc", "nosuid", "noexec", "nodev"),
    virtual("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
    virtual("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
    virtual("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
    mount("/sys", "/sys"),
)


@dataclass(frozen=True, slots=True)
class PodBundle(Bundle):
    """A bundle whose process, root and rights are said in full. `directory` has its rootfs."""

    capabilities: Sequence[str] = ()
    read_only: bool = True
    new_privileges: bool = False
    bound: Iterable[Mapping[str, Any]] = ()
    namespaces: Sequence[str] = ("pid", "ipc", "uts", "mount")

    def write(self) -> None:
        """Write config.json."""
        rights = [f"CAP_{name}" for name in self.capabilities]
        ordered = sorted(self.bound, key=lambda m: len(PurePosixPath(m["destination"]).parts))
        config = {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "args": list(self.args),
                "env": [f"{name}={value}" for name, value in self.env.items()],
                "cwd": "/",
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), rights),
                "noNewPrivileges": not self.new_privileges,
            },
            "root": {"path": "rootfs", "readonly": self.read_only},
            "hostname": "vgpu-agent-x",
            "mounts": [*USUAL, *ordered],
            "linux": {
                "namespaces": [{"type": kind} for kind in self.namespaces],
                "maskedPaths": list(MASKED),
                "readonlyPaths": list(READ_ONLY),
            },
        }
        (self.directory / "config.json").write_text(json.dumps(config, indent=1))


def bundle_of(
    daemonset: Json,
    image_config: Json,
    directory: Path,
    *,
    host: Mapping[str, Path],
    node_name: str,
    env: Mapping[str, str],
    bound: Iterable[Mapping[str, Any]] = (),
    without: Iterable[str] = (),
) -> PodBundle:
    """The container of a DaemonSet's pod.

    `host`: which directory of this machine stands for a path of the node. `env` and `bound`: what
    kubelet and the NVIDIA runtime add. `without`: capabilities that it does not get after all.
    Whatever else the manifest asks for of a path of the host is an error.
    """
    pod = daemonset["spec"]["template"]["spec"]
    [container] = pod["containers"]
    security, image = container["securityContext"], image_config["config"]
    variables = dict(word.split("=", 1) for word in image["Env"])
    for variable in container["env"]:
        variables[variable["name"]] = _value(variable, node_name)
    volumes = {volume["name"]: volume["hostPath"] for volume in pod["volumes"]}
    mounts = []
    for wanted in container["volumeMounts"]:
        place = volumes[wanted["name"]]["path"]
        way = "ro" if wanted.get("readOnly") else "rw"
        mounts.append(mount(wanted["mountPath"], host[place], way))
    assert security["capabilities"]["drop"] == ["ALL"]
    return PodBundle(
        directory,
        args=[*image["Entrypoint"], *container.get("args", image["Cmd"])],
        env={**variables, **env},
        capabilities=[c for c in security["capabilities"]["add"] if c not in set(without)],
        read_only=security["readOnlyRootFilesystem"],
        new_privileges=security["allowPrivilegeEscalation"],
        bound=[*mounts, *bound],
        # Without hostPID and the like, the pod has its own; its network see above.
        namespaces=("pid", "ipc", "uts", "mount"),
    )


def _value(variable: Json, node_name: str) -> str:
    if "valueFrom" in variable:
        assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
        return node_name
    return str(variable["value"])
