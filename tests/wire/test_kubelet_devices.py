"""Who offers and holds which device, by the books of a kubelet of either generation."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from toy_plugin import ToyPlugin, register

from agent.adapters.kubelet_devices import KubeletDevices
from agent.domain.ownership import HeldDevice
from agent.errors import KubeletUnavailable
from agent.sim.kubelet import ContainerSpec, PodSpec, StandInKubelet
from tests.fake_proc import FakeProc
from tests.waiting import eventually

THEIRS = "nvidia.com/gpu.shared"
IDS = [f"GPU-a::{number}" for number in range(2)]


class Bed:
    """A kubelet with another's plugin, and a /proc."""

    def __init__(self, directory: Path, behaviour: str, stack: ExitStack) -> None:
        self.kubelet = stack.enter_context(
            StandInKubelet(directory / "dp", directory / "pr", behaviour=behaviour)
        )
        plugin = ToyPlugin(directory / "dp" / "toy.sock", IDS)
        stack.callback(plugin.stop)
        register(self.kubelet, plugin, THEIRS)
        eventually(lambda: self.kubelet.node_status().allocatable.get(THEIRS) == len(IDS))
        self.proc = FakeProc(directory / "proc")
        assert self.kubelet.pod_resources_socket is not None
        self.devices = KubeletDevices(
            self.kubelet.pod_resources_socket, directory / "dp", self.proc.root
        )

    def give(self, uid: str) -> str:
        """A pod with one of theirs; gives the id."""
        spec = PodSpec(uid, "team", "theirs", [ContainerSpec("main", {THEIRS: 1})])
        (one,) = self.kubelet.admit(spec).containers["main"].device_ids[THEIRS]
        return one


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a name so short that sockets fit into it."""
    return tmp_path_factory.mktemp("d")


UID = "0ad3a3c5-4de2-4f2f-9f4e-6f4f8b1c2d3e"
OF_POD = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{'0' * 64}\n"


def test_a_newer_kubelet_is_asked(directory: Path, stack: ExitStack) -> None:
    bed = Bed(directory, "1.36", stack)
    given = bed.give(UID)
    assert sorted(bed.devices.offered()[THEIRS]) == IDS
    assert bed.devices.held() == (HeldDevice("team/theirs/main", THEIRS, given),)


@pytest.mark.parametrize("behaviour", ["1.20", "1.22"])
def test_of_an_older_kubelet_the_checkpoint_is_read(
    directory: Path, stack: ExitStack, behaviour: str
) -> None:
    """Which lists who is gone, too. 1.21 and 1.22 know the call, and refuse it."""
    bed = Bed(directory, behaviour, stack)
    given = bed.give(UID)
    assert sorted(bed.devices.offered()[THEIRS]) == IDS
    assert bed.devices.held() == (), "no process of the pod is seen"
    bed.proc.add(77, OF_POD)
    assert bed.devices.held() == (HeldDevice(f"pod {UID}/main", THEIRS, given),)


def test_where_there_is_no_socket_the_checkpoint_is_read(directory: Path, stack: ExitStack) -> None:
    bed = Bed(directory, "1.36", stack)
    given = bed.give(UID)
    bed.proc.add(77, OF_POD)
    devices = KubeletDevices(directory / "none.sock", directory / "dp", bed.proc.root)
    assert sorted(devices.offered()[THEIRS]) == IDS
    assert devices.held() == (HeldDevice(f"pod {UID}/main", THEIRS, given),)


def test_a_process_that_cannot_be_read_costs_no_other(directory: Path, stack: ExitStack) -> None:
    bed = Bed(directory, "1.20", stack)
    given = bed.give(UID)
    bed.devices.offered()
    bed.proc.add(77, OF_POD)
    unread = bed.proc.add(78, OF_POD) / "cgroup"
    unread.unlink()
    unread.symlink_to("x" * 300)  # ENAMETOOLONG
    assert bed.devices.held() == (HeldDevice(f"pod {UID}/main", THEIRS, given),)


def test_without_any_book_it_says_so(directory: Path, stack: ExitStack) -> None:
    bed = Bed(directory, "1.20", stack)
    bed.kubelet.delete_checkpoint()
    with pytest.raises(KubeletUnavailable, match="kubelet_internal_checkpoint"):
        bed.devices.offered()


def test_sockets_count_while_somebody_listens(directory: Path, stack: ExitStack) -> None:
    bed = Bed(directory, "1.36", stack)
    assert bed.devices.other_plugins() == ("toy.sock",), "not kubelet's own"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(directory / "dp" / "nvidia-gpu.sock"))
        assert bed.devices.other_plugins() == ("toy.sock",), "nobody listens"
        other.listen()
        assert bed.devices.other_plugins() == ("nvidia-gpu.sock", "toy.sock")
    assert bed.devices.other_plugins() == ("toy.sock",), "a file that was left behind"
