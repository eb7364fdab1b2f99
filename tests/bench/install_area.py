"""How long do the commands take that a reader types to install it? Those of docs/install, on this machine.

Counted is what the machine does, not what a person reads or copies; from the release's files to a node
that is registered with kubelet and published. What cannot be done on a machine is left out, with why.
"""

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from agent.sim.driver import SimGpu, made_up_uuid
from agent.version import VERSION
from tests.bench.nodes import ROOT
from tests.bench.rows import Page, Row, row

RUNS = 3
FIVE_MINUTES_S = 300.0
NAME = f"vgpu-agent-{VERSION}-linux-x86_64"
FROZEN = ROOT / ".build" / "dist" / "frozen" / "vgpu-agent"
INSTALLING = Page(
    title="How long installing takes",
    how="""each way three times; values are medians. How large the release is: [bench.md](bench.md), area `artifact`.

Counted is what the machine does with the commands of the [pages](../install/kubernetes.md), from the release's files, which
are there already, to the end in the table. *Serves* means that a stand-in kubelet counts the vGPUs of two simulated GPUs and that
the Node is published.

| way | measured | not measured |
|---|---|---|
| systemd | `tar`, `install.sh` and the service's start, in namespaces that systemd has booted, with a stand-in kubelet and API server | the kubeconfig, which is there already; a real kubelet, a real driver |
| DaemonSet | containerd's import of the image, and the start of the container that the manifest describes, until it is ready; with a stand-in kubelet and API server, and the tests' shorter intervals (GPUs are probed every 0.5 s) | `kubectl apply`, scheduling, the roll-out over nodes, pulling from a registry; NVIDIA's runtime, whose library is mounted by hand |
| air-gapped | every command of [offline.md](../install/offline.md) but the last, the demo among them | `install.sh` works into an empty tree (`--root`): no service is started, nothing is served |

Not in it: what a person reads and types, copying files to a node, NVIDIA's driver and container toolkit, and the time in which a
real cluster places the first pod. Five minutes, the target, are the project's own figure for all of an installation; the
table shows that the machine's part of it is small.""",
)


def install_area() -> Iterator[Row]:
    """From the release's files to a node that serves, on each of the three targets."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "packaging")]  # as pytest has them
    targets: tuple[tuple[str, Callable[[], float]], ...] = (
        ("systemd: tarball unpacked, install.sh, until the node serves", on_systemd),
        ("DaemonSet: image imported by containerd, its container, until the node serves", in_a_pod),
        ("air-gapped: sums, tarball, demo, install.sh, with no network but loopback", offline),
    )
    for name, measure in targets:
        try:
            took = [measure() for _ in range(RUNS)]
        except _Missing as why:
            print(f"install: left out: {name}: {why}", file=sys.stderr)
            continue
        yield row("install", name, took, "s", target=FIVE_MINUTES_S)


class _Missing(Exception):
    """It cannot be done here; the message says why."""


def on_systemd() -> float:
    """As docs/install/systemd.md has it, on a machine that systemd has booted."""
    from systemd_machine import Machine, missing
    from systemd_node import SETTINGS, Node
    from waiting import eventually

    if why := missing():
        raise _Missing(why)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgpu-", dir="/tmp")))
        machine = Machine(place / "root")
        stack.callback(machine.stop)
        machine.boot()
        node = Node(machine, FROZEN)
        stack.callback(node.stop)
        node.start()
        node.settings().write_text(SETTINGS.format(config=node.driver.config_path.name))
        shutil.copy(ROOT / "dist" / f"{NAME}.tar.gz", machine.root / "root")
        began = time.perf_counter()
        machine.ok("tar", "-xzf", f"/root/{NAME}.tar.gz", "-C", "/root")
        machine.ok(f"/root/{NAME}/install.sh")
        eventually(node.serves, within_s=FIVE_MINUTES_S, every_s=0.1, what="the node serves")
        return time.perf_counter() - began


def in_a_pod() -> float:
    """The image and the manifest's container, by containerd; kubectl and the roll-out are not in it."""
    from image_archive import ImageArchive
    from peers.container_tools import PeersUnavailable, container_tools
    from peers.image_tools import running_containerd
    from peers.runc import unusable
    from pod_node import ByContainerd, PodNode

    image = ROOT / "dist" / f"{NAME}.oci.tar"
    archive = ImageArchive.read(image)
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="vgpu-img-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        for name in ("containerd", "node", "bundle"):
            (place / name).mkdir()
        try:
            if why := unusable(container_tools(), place):
                raise _Missing(why)
            daemon = stack.enter_context(running_containerd(place / "containerd"))
        except PeersUnavailable as error:
            raise _Missing(str(error)) from error
        node = PodNode(place / "node", ByContainerd(daemon), place / "bundle", archive.config)
        stack.callback(node.stop)
        node.start()
        for number in range(2):
            node.driver.add_gpu(number, SimGpu(uuid=made_up_uuid(number)))
        began = time.perf_counter()
        loaded = daemon.ctr("image", "import", image)
        if loaded.returncode:
            raise _Missing(loaded.stderr.strip()[-200:])
        node.start_container()
        return time.perf_counter() - began


def offline() -> float:
    """Every command of docs/install/offline.md but the last, which takes it off; into a tree."""
    from bundle.test_offline import Offline
    from install_page import PAGES, lines

    if os.geteuid():
        raise _Missing("namespaces take root")
    with tempfile.TemporaryDirectory(prefix="vgpu-off-") as directory:
        here = Path(directory)
        for name in ("home", "host"):
            (here / name).mkdir()
        for name in (f"{NAME}.tar.gz", "SHA256SUMS"):
            shutil.copy(ROOT / "dist" / name, here)
        shell = Offline(here)
        typed = [line for line in lines(PAGES / "offline.md") if "uninstall" not in line]
        began = time.perf_counter()
        for line in typed:
            shell.succeed(re.sub(r"(?<=install\.sh)", " --root $HERE/host", line))
        return time.perf_counter() - began
