"""The agent as a real process under a simulated driver, on whatever node is under test."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.node_under_test import NodeUnderTest
from peers.processes import Process

from agent.sim.driver import SimDriver, SimGpu

TREE = Path(__file__).parents[2]
VGPUS_PER_GPU = 10


class HostFiles:
    """The host's side of what containers get; the agent fills it."""

    def __init__(self, directory: Path) -> None:
        self.hook = directory / "hook"
        self.vgpu = self.hook / "vgpu"
        self.locks = directory / "vgpulock"
        self.vgpu.mkdir(parents=True)


class AgentProcess:
    """`agent.py run`; `start` may be called again after an end, and continues with its state."""

    def __init__(
        self,
        node: NodeUnderTest,
        driver: SimDriver,
        files: HostFiles,
        *flags: str,
        state: Path,
        log: Path,
    ) -> None:
        state.mkdir(exist_ok=True)
        self._settings = [
            f"--node-name={node.name}",
            f"--kubeconfig={node.agent_kubeconfig}",
            f"--kubelet-socket={node.kubelet_socket}",
            f"--pod-resources-socket={node.pod_resources_socket}",
            f"--host-hook-path={files.hook}",
            f"--vgpulock-dir={files.locks}",
            f"--state-dir={state}",
            f"--runtime-dir={state}/run",
            f"--device-split-count={VGPUS_PER_GPU}",
            "--metrics-bind-address=off",
            "--log-level=debug",
            "--log-format=logfmt",
            "--probe-interval=0.5",  # a GPU is to recover while a test waits
            *flags,
        ]
        inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")}
        self._environ = inherited | driver.environment()
        self.process = Process(self._command("run"), log=log, environ=self._environ)

    def _command(self, name: str) -> list[str]:
        return [sys.executable, str(TREE / "agent.py"), name, *self._settings]

    def start(self) -> None:
        """Start it; what it does then is for the test to see from outside."""
        self.process.start()

    def stop(self) -> int:
        """Ask it to end, as systemd and kubelet do; gives its exit code."""
        self.process.stop()
        return self.process.exit_code

    def kill(self) -> None:
        """End it as the kernel does when memory is short."""
        self.process.kill()

    def uninstall(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run `agent.py uninstall` with its settings, to the end."""
        return subprocess.run(
            [*self._command("uninstall"), *flags],
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def registrations(self) -> int:
        """How often kubelet has opened its stream to it."""
        return self.log.count(" registered_with_kubelet ")

    @contextmanager
    def registered_anew(self) -> Iterator[None]:
        """Wait, after the block, until kubelet knows it again.

        The Node object cannot tell: it shows the number of vGPUs of before for up to a second.
        """
        before = self.registrations
        yield
        self.process.wait_until(
            lambda: self.registrations > before, within_s=60, what="kubelet knows the agent again"
        )

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self.process.log.read_text(errors="replace") if self.process.log.exists() else ""


def two_gpus(directory: Path) -> tuple[SimDriver, tuple[SimGpu, SimGpu]]:
    """A simulated driver with two A40s."""
    driver = SimDriver(directory)
    return driver, (driver.add_gpu(), driver.add_gpu())
