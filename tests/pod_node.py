"""A simulated node whose agent is the DaemonSet's container, of the image that is released."""

import itertools
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from certificates import make_bare_identity
from manifests import only, plain
from peers.image_tools import Containerd
from peers.runc import Runc
from pod_container import SERVICE_ACCOUNT, PodBundle, bundle_of, mount

from agent.sim.apiserver import ApiServer
from agent.sim.node import SimNode
from agent.version import VERSION

IMAGE = f"localhost/vgpu-agent:{VERSION}"
# What a container has unless it is taken away. Source: containerd 1.6, oci/spec.go.
CONTAINERD_GIVES = {
    *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID"),
    *("SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
}
NUMBERS = itertools.count()
QUICK = {"VGPU_CACHE_GC_AFTER": "10s", "VGPU_CACHE_GC_INTERVAL": "1s"}
QUICK |= {"VGPU_PROCESS_INTERVAL": "0.2s", "VGPU_PROBE_INTERVAL": "0.5s"}


class Runtime(Protocol):
    """What runs a container in the foreground: a command line, and its environment."""

    def command(self, bundle: PodBundle, name: str) -> tuple[list[str], Mapping[str, str]]: ...
    def delete(self, name: str) -> None: ...


@dataclass(frozen=True)
class ByRunc:
    """Without a seccomp profile."""

    runc: Runc

    def command(self, bundle: PodBundle, name: str) -> tuple[list[str], Mapping[str, str]]:
        bundle.write()
        words = self.runc.command("run", "--bundle", str(bundle.directory), name)
        return words, self.runc.tools.environ

    def delete(self, name: str) -> None:
        self.runc.delete(name)


@dataclass(frozen=True)
class ByContainerd:
    """With containerd's own default seccomp profile, of the image that it imported."""

    daemon: Containerd

    def command(self, bundle: PodBundle, name: str) -> tuple[list[str], Mapping[str, str]]:
        assert bundle.read_only
        assert not bundle.new_privileges
        words = [str(word) for word in self.daemon.client()]
        words += ["run", "--rm", "--read-only", "--seccomp", "--net-host"]
        wanted = set(bundle.capabilities)
        for capability in sorted(CONTAINERD_GIVES - wanted):
            words += ["--cap-drop", f"CAP_{capability}"]
        for capability in sorted(wanted - CONTAINERD_GIVES):
            words += ["--cap-add", f"CAP_{capability}"]
        for key, value in bundle.env.items():
            words += ["--env", f"{key}={value}"]
        for found in bundle.bound:
            options = ":".join(found["options"])
            place = f"src={found['source']},dst={found['destination']},options={options}"
            words += ["--mount", f"type=bind,{place}"]
        return [*words, IMAGE, name, *bundle.args], self.daemon.environ

    def delete(self, name: str) -> None:
        self.daemon.ctr("task", "delete", "--force", name)
        self.daemon.ctr("container", "delete", name)


class PodNode(SimNode):
    """A simulated node whose agent is the DaemonSet's container."""

    def __init__(
        self, root: Path, runtime: Runtime, bundle_directory: Path, config: dict[str, Any]
    ) -> None:
        super().__init__(root, ["a container"])
        self.runtime, self.bundle_directory, self.image_config = runtime, bundle_directory, config
        self.container = ""  # the name of the one that was started last
        # Python as it is shipped refuses such an authority unless it is told not to.
        identity = make_bare_identity()
        self.in_cluster = ApiServer(tokens=["token"], tls=identity.server_context(root))
        self.account = root / "account"
        self.in_cluster.write_service_account(self.account, "token", identity.certificate)
        self.host = {
            "/var/lib/kubelet/device-plugins": root / "dp",
            "/var/lib/kubelet/pod-resources": root / "pr",
            "/usr/local/vgpu": root / "vgpu",
            "/var/lib/vgpu-agent": root / "agent-state",
            "/run/vgpu-agent": root / "agent-run",
            "/proc": Path("/proc"),
        }

    def start(self) -> Self:
        super().start()
        self.in_cluster.objects = self.api.objects  # one cluster, by HTTP for us, by TLS for pods
        self.in_cluster.start()
        for name in ("vgpu", "agent-state", "agent-run"):  # kubelet makes them: DirectoryOrCreate
            (self.root / name).mkdir(mode=0o755)
        return self

    def stop(self) -> None:
        super().stop()
        if self.container:
            self.runtime.delete(self.container)
        self.in_cluster.stop()

    def start_container(self, without: tuple[str, ...] = ()) -> None:
        """Run the agent in its container; its log goes to `self.log`."""
        self.container = f"vgpu-agent-{os.getpid()}-{next(NUMBERS)}"
        driver = self.driver.config_path.parent
        bundle = bundle_of(
            only("DaemonSet", plain()),
            self.image_config,
            self.bundle_directory,
            host=self.host,
            node_name=self.name,
            env={
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(self.in_cluster.port),
                "VGPU_METRICS_BIND_ADDRESS": f"127.0.0.1:{self.metrics_port}",
                "VGPU_SIM_DRIVER": str(self.driver.config_path),
                **QUICK,
            },
            bound=[
                mount(SERVICE_ACCOUNT, self.account),
                # The part of NVIDIA's runtime.
                mount(
                    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
                    self.driver.libraries / "libnvidia-ml.so.1",
                ),
                mount(str(driver), driver, "rw"),
            ],
            without=without,
        )
        words, environ = self.runtime.command(bundle, self.container)
        with self.log.open("ab") as log:
            self.agent = subprocess.Popen(
                words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environ
            )
        self.wait("registration", lambda: self.allocatable() > 0, 60)
        self.wait("readiness", self.ready, 60)

    def on_host(self, path: str) -> Path:
        """Where a path that kubelet was told lies on this machine."""
        for place, here in self.host.items():
            if path == place or path.startswith(f"{place}/"):
                return here / path.removeprefix(place).lstrip("/")
        raise AssertionError(f"{path} is at no place that the pod mounts")
