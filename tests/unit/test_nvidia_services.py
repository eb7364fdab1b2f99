# ruff: noqa: ARG002 - a fake has the arguments of its port, used or not
"""Allocate in mode nvidia, the MPS daemons, and places for resources: with fakes for the world."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from agent.domain.cdi import Edits
from agent.domain.gpu import Gpu, GpuInventory
from agent.domain.grant_plan import GrantPolicy
from agent.domain.grants import Grant, GrantRecord
from agent.domain.mps import ALIVE, MpsPlan, client, plan
from agent.domain.nvidia_config import Replicas, Replication
from agent.domain.nvidia_devices import MPS, TIME_SLICING, Offer
from agent.errors import AllocateRefused, NodeNotReady, RequestRefused, UnknownDevice
from agent.services.mps import MpsDaemons
from agent.services.nvidia import NvidiaAllocator, Offered, Supply
from agent.services.nvidia_grants import NvidiaGrants
from agent.services.nvidia_resources import ResourcePlaces
from agent.services.plugin import Plugin
from agent.services.published import Published
from tests.unit.fakes import FakeGrantLog

GPU = "nvidia.com/gpu"
CARDS = [Gpu(uuid=f"GPU-{n}", index=n, name="A40", memory_mib=40_000, minor=n) for n in range(2)]
SHARED = Replication(fail_above_one=True, resources=(Replicas(name=GPU, replicas=4),))


class FakeDriverFiles:
    """Implements `DriverFiles`."""

    missing = ""

    def common_nodes(self) -> tuple[str, ...]:
        return ("/dev/nvidiactl",)

    def imex_channels(self) -> tuple[int, ...]:
        if self.missing:
            raise NodeNotReady(self.missing)
        return (0,)

    def extra_nodes(self, name: str) -> tuple[str, ...]:
        return ()

    def drm_nodes(self, gpu: Gpu) -> tuple[str, ...]:
        return ()

    def driver(self) -> Edits:
        return Edits()

    def extra_mounts(self, name: str) -> Edits:
        return Edits()


@dataclass
class Bed:
    """An allocator and what it was made of."""

    offer: Offer = field(default_factory=Offer)
    policy: GrantPolicy = field(default_factory=GrantPolicy)
    obstacle: str = ""
    files: FakeDriverFiles = field(default_factory=FakeDriverFiles)
    outcomes: list[str] = field(default_factory=list)
    noted: list[tuple[str, ...]] = field(default_factory=list)

    def allocate(self, *ids: str) -> Grant:
        supply = Supply(
            inventory=Published(GpuInventory.of(CARDS)),
            offered=Offered(self.offer),
            policy=self.policy,
            files=self.files,
            channels=self.files.imex_channels,
            obstacle=lambda _resource: self.obstacle,
            note=lambda devices, _grant: self.noted.append(tuple(d.device_id for d in devices)),
            extras=lambda resource: client(resource, "/run/nvidia/mps"),
            new_id=lambda: "id",
        )
        allocator = NvidiaAllocator(
            GPU, supply, on_outcome=lambda outcome, _took_s: self.outcomes.append(outcome)
        )
        return allocator.allocate(ids, deadline_s=0.0)


def test_devices_are_named_in_the_order_of_the_node() -> None:
    bed = Bed(policy=GrantPolicy(pass_device_specs=True))
    grant = bed.allocate("GPU-1", "GPU-0")
    assert grant.envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1", "NVIDIA_IMEX_CHANNELS": "0"}
    assert [node.host_path for node in grant.device_nodes][:3] == [
        "/dev/nvidiactl",
        "/dev/nvidia0",
        "/dev/nvidia1",
    ]
    assert (bed.outcomes, bed.noted) == (["granted"], [("GPU-0", "GPU-1")])


def test_two_replicas_of_one_gpu_are_one_device() -> None:
    relaxed = replace(SHARED, fail_above_one=False)
    bed = Bed(offer=Offer(strategy=TIME_SLICING, replication=relaxed))
    assert bed.allocate("GPU-0::0", "GPU-0::3").envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"


def test_a_client_of_mps_gets_its_pipe() -> None:
    grant = Bed(offer=Offer(strategy=MPS, replication=SHARED)).allocate("GPU-0::0")
    assert grant.envs["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{GPU}/pipe"
    assert [mount.container_path for mount in grant.mounts] == [f"/mps/{GPU}/pipe", "/dev/shm"]


@pytest.mark.parametrize(
    ("bed", "ids", "error", "words"),
    [
        pytest.param(Bed(), ("GPU-9",), UnknownDevice, "delete the pod", id="a GPU that is not there"),
        pytest.param(Bed(), ("GPU-0::0",), UnknownDevice, "'GPU-0::0'", id="a replica of before"),
        pytest.param(Bed(offer=Offer(strategy=TIME_SLICING, replication=SHARED)), ("GPU-0::0", "GPU-1::0"), RequestRefused, "Ask for nvidia.com/gpu: 1", id="two replicas"),
        pytest.param(Bed(obstacle="there is no daemon"), ("GPU-0",), NodeNotReady, "there is no daemon; then delete the pod", id="an obstacle"),
    ],
)  # fmt: skip
def test_refusals(bed: Bed, ids: tuple[str, ...], error: type[AllocateRefused], words: str) -> None:
    with pytest.raises(error) as refused:
        bed.allocate(*ids)
    assert words in str(refused.value)
    assert bed.noted == []
    assert bed.outcomes != ["granted"]


def test_a_channel_that_is_required_and_missing_refuses() -> None:
    bed = Bed()
    bed.files.missing = "no channel"
    with pytest.raises(NodeNotReady, match="no channel"):
        bed.allocate("GPU-0")
    assert bed.outcomes == ["node_not_ready"]


# --- what is remembered --------------------------------------------------------------------------


def devices_of(*ids: str) -> list[object]:
    found = Offer(strategy=TIME_SLICING, replication=SHARED).resources(GpuInventory.of(CARDS))[GPU]
    return [device for device in found if device.device_id in ids]


def test_a_device_has_one_holder() -> None:
    grants = FakeGrantLog()
    numbers = iter(range(1, 9))
    notes = NvidiaGrants(grants, random=lambda: next(numbers), now_s=lambda: 1.0)
    for ids in (("GPU-0::0",), ("GPU-0::1",), ("GPU-0::0",)):
        notes.note(devices_of(*ids), Grant())  # type: ignore[arg-type]
    assert not grants.records(), "nothing is written before kubelet is answered"
    while notes.write_once():
        pass
    held = {record.pod_uid: record.device_ids for record in grants.records()}
    assert held == {
        "nvidia-0000000000000002": ("GPU-0::1",),
        "nvidia-0000000000000003": ("GPU-0::0",),
    }
    (claim,) = grants.records()[0].claims
    assert (claim.uuid, claim.memory_mib, claim.core_percent) == ("GPU-0", 0, 0)


def test_a_disk_that_refuses_holds_nobody_up() -> None:
    class Full(FakeGrantLog):
        def record(self, record: GrantRecord) -> None:
            raise NodeNotReady("the disk is full")

    notes = NvidiaGrants(Full())
    notes.note(devices_of("GPU-0::0"), Grant())  # type: ignore[arg-type]
    assert notes.write_once()
    assert not notes.write_once(), "it is not tried again"


# --- MPS -----------------------------------------------------------------------------------------


@dataclass
class FakeMps:
    """Implements `Mps`."""

    missing: str = ""
    running: bool = False
    fails: str = ""
    told: list[str] = field(default_factory=list)
    starts: int = 0
    before: list[str] = field(default_factory=list)  # resources whose daemons were started
    deaf: bool = False  # it keeps nothing of what it is told
    answers: dict[str, str] = field(default_factory=dict)

    def obstacle(self) -> str:
        return self.missing

    def answer(self, plan: MpsPlan) -> str:
        return self.answers.get(ALIVE, "100.0") if self.running else ""

    def start(self, plan: MpsPlan) -> None:
        if self.fails:
            raise NodeNotReady(self.fails)
        self.starts += 1
        self.running = True

    def numbers(self, plan: MpsPlan) -> Mapping[str, int]:
        return {}

    def servers(self, plan: MpsPlan) -> Sequence[str]:
        return ()

    def tell(self, plan: MpsPlan, command: str) -> str:
        if command.startswith("get_"):
            return self.answers.get(command, "")
        self.told.append(command)
        name, *where, value = command.split()
        self.answers |= {} if self.deaf else {" ".join([f"g{name[1:]}", *where]): value}
        return ""

    def started(self) -> Sequence[MpsPlan]:
        return [MpsPlan(resource=name, uuids=("GPU-9",)) for name in self.before]

    def end_unused(self, plan: MpsPlan) -> bool:
        raise AssertionError("no GPU is new here")

    def release(self, plan: MpsPlan, uuids: Collection[str]) -> None:
        raise AssertionError("no GPU leaves here")

    def retire(self, plan: MpsPlan) -> None:
        if self.fails:
            raise NodeNotReady(self.fails)
        self.before.remove(plan.resource)


def daemons(mps: FakeMps) -> MpsDaemons:
    offer = Offer(strategy=MPS, replication=SHARED)
    return MpsDaemons(Published(GpuInventory.of(CARDS)), offer, mps)


COMMANDS = [
    "set_default_device_pinned_mem_limit 0 10000M",
    "set_default_device_pinned_mem_limit 1 10000M",
    "set_default_active_thread_percentage 25",
]


def test_limits_are_set_before_anybody_is_a_client() -> None:
    mps = FakeMps()
    service = daemons(mps)
    assert "not ready yet" in service.problem(GPU)
    assert service.problem("nvidia.com/other") == ""
    assert not service.tried(0)
    service.look_once()
    assert (mps.starts, mps.told, service.problem(GPU)) == (1, COMMANDS, "")
    assert service.tried(0)
    service.look_once()
    assert (mps.starts, mps.told) == (1, COMMANDS), "said once"


def test_nobody_is_a_client_of_a_daemon_that_keeps_no_limits() -> None:
    mps = FakeMps(deaf=True)
    service = daemons(mps)
    service.look_once()
    assert "did not take the memory limit of GPU-0" in service.problem(GPU)
    assert "Drivers before" not in service.problem(GPU), "it does not say that it is an old one"
    mps.deaf = False
    service.look_once()
    assert service.problem(GPU) == "", "it is told again at the next look"


def test_a_daemon_that_is_there_is_used() -> None:
    mps = FakeMps(running=True)
    daemons(mps).look_once()
    assert (mps.starts, mps.told) == (0, COMMANDS)


def test_a_daemon_that_has_died_is_started_and_told_again() -> None:
    mps = FakeMps()
    service = daemons(mps)
    service.look_once()
    mps.running = False
    service.look_once()
    assert (mps.starts, mps.told) == (2, COMMANDS * 2)


@pytest.mark.parametrize(
    ("mps", "words"),
    [
        pytest.param(FakeMps(missing="no program"), "no program", id="no program"),
        pytest.param(FakeMps(fails="it does not start"), "it does not start", id="no start"),
    ],
)
def test_what_is_missing_is_told(mps: FakeMps, words: str) -> None:
    service = daemons(mps)
    service.look_once()
    assert service.problem(GPU) == service.first_problem() == words
    assert service.tried(0), "kubelet may ask: there is something to say"


def test_a_daemon_of_earlier_settings_is_ended() -> None:
    mps = FakeMps(before=[GPU, "nvidia.com/old"])
    daemons(mps).look_once()
    assert mps.before == [GPU]
    without = MpsDaemons(Published(GpuInventory.of(CARDS)), Offer(), mps)
    mps.fails = "no right"
    without.look_once()
    assert mps.before == [GPU], "tried again at the next look"
    mps.fails = ""
    without.look_once()
    assert (mps.before, without.problem(GPU)) == ([], "")


def test_a_daemon_whose_gpus_are_not_seen_stays() -> None:
    """The driver may be away for a moment; its clients are not."""
    mps = FakeMps(before=[GPU])
    service = MpsDaemons(
        Published(GpuInventory.of([])), Offer(strategy=MPS, replication=SHARED), mps
    )
    service.look_once()
    assert mps.before == [GPU]
    assert "not ready yet" in service.problem(GPU)


def test_what_is_shared_in_another_way_gets_no_daemon() -> None:
    mps = FakeMps(before=["nvidia.com/old"])
    offer = Offer(strategy=TIME_SLICING, replication=SHARED)
    service = MpsDaemons(Published(GpuInventory.of(CARDS)), offer, mps)
    assert service.problem(GPU) == ""
    service.look_once()
    assert (mps.starts, mps.told, mps.before, service.problem(GPU)) == (0, [], [], "")


def test_a_daemon_of_some_gpus_has_only_those() -> None:
    some = replace(SHARED.resources[0], devices=1)
    offer = Offer(strategy=MPS, replication=replace(SHARED, resources=(some,)))
    made = plan(GPU, offer.resources(GpuInventory.of(CARDS))[GPU])
    assert made == MpsPlan(resource=GPU, uuids=("GPU-0",), memory_mib={"GPU-0": 10000}, percent=25)
    assert plan(GPU, Offer().resources(GpuInventory.of(CARDS))[GPU]) is None


# --- places for resources ------------------------------------------------------------------------


class FakeMade:
    """What `made` gives here; it is never run."""

    def __init__(self, resource: str) -> None:
        self.resource = resource


def places(count: int, names: Callable[[], list[str]]) -> tuple[ResourcePlaces, list[FakeMade]]:
    made: list[FakeMade] = []

    def make(resource: str) -> Plugin:
        made.append(FakeMade(resource))
        return made[-1]  # type: ignore[return-value]

    inventory = Published(GpuInventory.of(CARDS))
    return ResourcePlaces(inventory, lambda _gpus: names(), make, count), made


def test_a_resource_keeps_its_place() -> None:
    there = ["a", "b"]
    found, made = places(3, lambda: there)
    assert [getattr(found.plugin_of(n), "resource", None) for n in range(3)] == ["a", "b", None]
    there[:] = ["c", "b"]
    assert [getattr(found.plugin_of(n), "resource", None) for n in range(3)] == ["a", "b", "c"]
    assert [one.resource for one in made] == ["a", "b", "c"], "each is made once"


def test_one_too_many_has_no_place() -> None:
    found, made = places(1, lambda: ["a", "b"])
    assert found.plugin_of(0) is not None
    assert found.plugin_of(1) is None
    assert [one.resource for one in made] == ["a"]
