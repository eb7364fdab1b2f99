"""One GPU, one owner: what of kubelet's list is somebody else's hand on our GPUs."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.gpu import Gpu, GpuInventory
from agent.domain.ownership import (
    MAX_IDS,
    MAX_TOLD,
    HeldDevice,
    Rival,
    as_told,
    is_plugin_of_gpus,
    rivals,
    told,
    withheld,
)
from agent.errors import KubeletUnavailable
from agent.ports import ClusterEvent
from agent.services.ownership import Ownership
from agent.services.published import Published
from agent.sim.driver import made_up_uuid
from agent.supervisor import Supervisor
from tests.waiting import eventually

A, B = made_up_uuid(0), made_up_uuid(1)
GPUS = GpuInventory.of(
    [
        Gpu(uuid=A, index=0, name="NVIDIA A40", memory_mib=46068, minor=3),
        Gpu(uuid=B, index=1, name="NVIDIA A40", memory_mib=46068, minor=0),
    ]
)
OURS = "nvidia.com/gpu"
HOLDER = "team/train/main"


def held(manager: str, device: str, *, claimed: bool = False) -> HeldDevice:
    return HeldDevice(HOLDER, manager, device, claimed=claimed)


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        pytest.param(held(OURS, f"{A}-3"), "", id="a vGPU of ours"),
        pytest.param(held(OURS, A), A, id="of our resource, from NVIDIA's plugin before us"),
        pytest.param(held(OURS, "1"), B, id="the same, named by index"),
        pytest.param(held(OURS, f"{A}::2"), "", id="the same in time slices: read as ours"),
        pytest.param(held("nvidia.com/gpu.shared", f"{B}::2"), B, id="another resource, replicas"),
        pytest.param(held("volcano.sh/vgpu-number", f"{A}-3"), A, id="Volcano's plugin"),
        pytest.param(held("volcano.sh/vgpu-memory", f"{A}-memory-17"), A, id="Volcano's memory"),
        pytest.param(held("nvidia.com/mig-1g.10gb", f"MIG-{A}/1/0"), A, id="old name of MIG"),
        pytest.param(held("nvidia.com/x", "1::0"), B, id="replicas named by index"),
        pytest.param(held("example.com/fpga", "1"), "", id="another vendor's number"),
        pytest.param(held("nvidia.com/x", "²"), "", id="no number"),
        pytest.param(held("nvidia.com/x", "7"), "", id="no such index"),
        pytest.param(held("example.com/nic", "GPU-0"), "", id="another vendor's name"),
        pytest.param(held("gpu.nvidia.com", "gpu-3", claimed=True), A, id="DRA, by minor number"),
        pytest.param(held("gpu.nvidia.com", "gpu-0-mig-9-0-1", claimed=True), B, id="MIG by DRA"),
        pytest.param(held("gpu.nvidia.com", "gpu-7", claimed=True), "", id="DRA, no such GPU"),
        pytest.param(held("gpu.example.com", "gpu-3", claimed=True), "", id="another DRA driver"),
        pytest.param(held("gpu.nvidia.com", "gpu-3\n", claimed=True), "", id="no DRA device"),
    ],
)
def test_whose_gpu_a_held_device_is(device: HeldDevice, gpu: str) -> None:
    found = rivals([device], {}, own_resources=[OURS], gpus=GPUS)
    assert found == ((Rival(gpu, device.manager, HOLDER),) if gpu else ())


@pytest.mark.parametrize(
    ("offered", "found"),
    [
        pytest.param({OURS: [f"{A}-0", f"{B}-1"]}, (), id="ours"),
        pytest.param({OURS: [A, f"{B}-1"]}, (Rival(A, OURS),), id="our name, taken over"),
        pytest.param(
            {"volcano.sh/vgpu-number": [f"{A}-0", f"{A}-1", f"{B}-0"]},
            (Rival(A, "volcano.sh/vgpu-number"), Rival(B, "volcano.sh/vgpu-number")),
            id="each GPU once",
        ),
        pytest.param({"example.com/nic": ["eth0"]}, (), id="nothing to do with GPUs"),
    ],
)
def test_what_is_offered_by_others(
    offered: Mapping[str, list[str]], found: tuple[Rival, ...]
) -> None:
    assert rivals([], offered, own_resources=[OURS], gpus=GPUS) == tuple(sorted(found))


def test_who_has_ids_of_another_form_says_so() -> None:
    found = rivals([held(OURS, A)], {}, own_resources=[OURS], gpus=GPUS, own_form=lambda *_: True)
    assert found == ()


@given(st.text(max_size=80), st.text(max_size=80), st.booleans())
def test_any_text_is_judged(manager: str, device: str, claimed: bool) -> None:
    one = held(manager, device, claimed=claimed)
    found = rivals([one], {manager: [device]}, own_resources=[OURS], gpus=GPUS)
    assert all(rival.gpu in (A, B) for rival in found)


def test_a_flood_is_cut() -> None:
    many = [replace(held("nvidia.com/x", A), holder=f"a/b/{n}") for n in range(2 * MAX_TOLD)]
    assert len(rivals(many, {}, own_resources=[OURS], gpus=GPUS)) == MAX_TOLD


def test_only_what_is_held_is_withheld_and_the_sentences_say_what_to_do() -> None:
    offers, holds = Rival(A, "volcano.sh/vgpu-number"), Rival(B, "nvidia.com/x", HOLDER)
    reasons = withheld([offers, holds])
    assert list(reasons) == [B]
    assert HOLDER in reasons[B]
    assert "nvidia.com/x" in reasons[B]
    assert "nodeSelector" in told(offers, GPUS.gpu(A))
    assert f"GPU 1 {B} is held by {HOLDER}" in told(holds, GPUS.gpu(B))
    assert "taken that name over" in told(Rival(A, OURS), GPUS.gpu(A), [OURS])
    assert "another device plugin gave it" in told(Rival(B, OURS, HOLDER), GPUS.gpu(B), [OURS])


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        pytest.param("nvidia-gpu.sock", True, id="NVIDIA's and HAMi's"),
        pytest.param("nvidia-vgpu-memory.sock", True, id="Volcano's"),
        pytest.param("nvidiaGPU-1700000000.sock", True, id="GKE's"),
        pytest.param("vgpu-agent-1-1-abc.sock", True, id="another agent of this kind"),
        pytest.param("kubelet.sock", False, id="kubelet's own"),
        pytest.param("gpu.intel.com-i915.sock", False, id="another vendor's GPUs"),
        pytest.param("nvidia-gpu.json", False, id="no socket"),
    ],
)
def test_which_sockets_are_of_plugins_for_gpus(name: str, is_one: bool) -> None:
    assert is_plugin_of_gpus(name) is is_one


class Books:
    """Kubelet's list, as the test has it."""

    def __init__(self) -> None:
        self.holds: tuple[HeldDevice, ...] = ()
        self.offers: Mapping[str, tuple[str, ...]] = {}
        self.neighbours: tuple[str, ...] = ()
        self.silent = False

    def held(self) -> tuple[HeldDevice, ...]:
        if self.silent:
            raise KubeletUnavailable("kubelet is silent")
        return self.holds

    def offered(self) -> Mapping[str, tuple[str, ...]]:
        return self.offers

    def other_plugins(self) -> tuple[str, ...]:
        return self.neighbours


class Bed:
    def __init__(self, gpus: GpuInventory = GPUS) -> None:
        self.books = Books()
        self.withheld: Mapping[str, str] = {}
        self.posted: list[ClusterEvent] = []
        self.renewed: list[Collection[str]] = []
        self.inventory = Published(gpus)
        self.ownership = Ownership(
            self.books,
            self.inventory,
            [OURS],
            withhold=self._withhold,
            expected=lambda: {OURS: 2},
            renew=self.renewed.append,
            post=self.posted.append,
            every_s=3600.0,
        )

    def _withhold(self, reasons: Mapping[str, str]) -> None:
        self.withheld = reasons


def test_a_gpu_that_another_holds_is_withheld_until_it_is_free() -> None:
    bed = Bed()
    bed.books.holds = (held("nvidia.com/x", A),)
    bed.ownership.look_once()
    bed.ownership.look_once()
    assert list(bed.withheld) == [A]
    assert [event.reason for event in bed.posted] == ["GpuHasTwoOwners"], "once, not at each look"
    assert [rival.state for rival in bed.ownership.found.now()] == ["held"]

    bed.books.silent = True
    assert not bed.ownership.look_once(), "it is to be asked again soon"
    assert list(bed.withheld) == [A], "silence is no news"

    bed.books.silent, bed.books.holds = False, ()
    bed.ownership.look_once()
    assert bed.withheld == {}
    assert bed.ownership.found.now() == ()


def test_an_offer_is_told_but_takes_nothing_away() -> None:
    bed = Bed()
    bed.books.offers = {"nvidia.com/gpu.shared": (f"{A}::0",)}
    bed.ownership.look_once()
    assert bed.withheld == {}
    assert [event.reason for event in bed.posted] == ["GpuHasTwoOwners"]
    assert [rival.state for rival in bed.ownership.found.now()] == ["offered"]


def test_nothing_is_judged_before_the_gpus_are_known() -> None:
    bed = Bed(GpuInventory())
    bed.books.silent = True
    bed.ownership.look_once()
    assert bed.ownership.found.now() == ()


def test_another_plugin_that_takes_connections_is_told_once() -> None:
    """It may offer what we offer, by ids of the same form: nothing else would show."""
    bed = Bed()
    bed.books.neighbours = ("nvidia-gpu.sock",)
    bed.ownership.look_once()
    bed.ownership.look_once()
    (event,) = bed.posted
    assert (event.reason, "nvidia-gpu.sock" in event.message) == ("GpuHasTwoOwners", True)
    bed.books.neighbours = ()
    bed.ownership.look_once()
    bed.books.neighbours = ("nvidia-gpu.sock",)
    bed.ownership.look_once()
    assert len(bed.posted) == 2, "it came back"


def test_what_is_held_is_known_as_soon_as_the_gpus_are() -> None:
    """Not at the look after that: till then the GPU would be given away once more."""
    bed = Bed(GpuInventory())
    bed.books.holds = (held("nvidia.com/x", A),)
    supervisor = Supervisor([bed.ownership])
    supervisor.start()
    try:
        bed.inventory.publish(GPUS)
        assert eventually(lambda: list(bed.withheld) == [A], within_s=60)
    finally:
        supervisor.stop()
    assert supervisor.join() == 0


def test_a_name_that_was_taken_and_is_nobodys_is_registered_anew() -> None:
    """Kubelet ends no stream of ours, and has nothing of ours to give."""
    bed = Bed()
    assert bed.ownership.look_once(), "nothing was ever listed: perhaps kubelet tells nothing"
    bed.books.offers, bed.books.neighbours = {OURS: (A,)}, ("toy.sock",)  # taken over
    assert bed.ownership.look_once()
    bed.books.offers, bed.books.neighbours = {}, ()
    assert not bed.ownership.look_once(), "it may be a moment; to be looked at again soon"
    assert bed.renewed == []
    bed.ownership.look_once()
    assert bed.renewed == [{OURS}]
    bed.ownership.look_once()
    bed.ownership.look_once()
    assert len(bed.renewed) == 1, "once, until it is listed again"


OF_OURS = (f"{A}-0", f"{B}-0")


@pytest.mark.parametrize(
    "left",
    [
        pytest.param((A, B), id="NVIDIA's ids"),
        pytest.param((f"{A}-0", f"{A}-1", f"{B}-0"), id="ids of our form, as HAMi's plugin has"),
    ],
)
@pytest.mark.parametrize(
    ("before", "meanwhile", "after"),
    [
        pytest.param((), ("toy.sock",), (), id="of whatever name"),
        pytest.param(("nic.sock",), ("nic.sock", "toy.sock"), ("nic.sock",), id="beside others"),
        pytest.param(("nvidia-gpu.sock",), ("nvidia-gpu.sock",), (), id="known by another name"),
        pytest.param(
            ("vgpu-agent-7-1-abc.sock",),
            ("vgpu-agent-7-1-abc.sock", "toy.sock"),
            ("vgpu-agent-7-1-abc.sock",),
            id="beside a second agent",
        ),
    ],
)
def test_what_a_plugin_had_that_is_gone_is_replaced(
    before: tuple[str, ...],
    meanwhile: tuple[str, ...],
    after: tuple[str, ...],
    left: tuple[str, ...],
) -> None:
    """Kubelets from 1.37 on list it until we send a list, and ask us for it (seen with 1.37.2)."""
    bed = Bed()
    bed.books.offers, bed.books.neighbours = {OURS: OF_OURS}, before
    assert bed.ownership.look_once()
    bed.books.offers, bed.books.neighbours = {OURS: left}, meanwhile
    for _ in range(3):
        assert bed.ownership.look_once()
    assert bed.renewed == [], "it is there, and the name is left to it"
    bed.books.neighbours = after
    assert not bed.ownership.look_once(), "it may be a moment; to be looked at again soon"
    assert bed.renewed == []
    bed.ownership.look_once()
    assert bed.renewed == [{OURS}]
    for _ in range(3):
        assert bed.ownership.look_once()
    assert len(bed.renewed) == 1, "once, until it is listed as we tell it"
    bed.books.offers = {OURS: OF_OURS}
    bed.ownership.look_once()
    bed.books.offers = {OURS: left}
    bed.ownership.look_once()
    bed.ownership.look_once()
    assert len(bed.renewed) == 2


def test_a_list_of_which_only_a_part_is_read_is_as_we_told_it() -> None:
    many = [f"{A}-{number}" for number in range(MAX_IDS)]
    assert as_told(many, 2 * MAX_IDS, GPUS)
    assert not as_told(many, MAX_IDS - 1, GPUS)
    assert not as_told(many[:-1], 2 * MAX_IDS, GPUS)


def test_what_comes_back_by_itself_is_left_alone() -> None:
    bed = Bed()
    bed.books.offers = {OURS: OF_OURS}
    bed.ownership.look_once()
    for _ in range(3):
        bed.books.offers = {OURS: (A,)}
        bed.ownership.look_once()
        bed.books.offers = {OURS: OF_OURS}
        bed.ownership.look_once()
        bed.books.offers = {}
        bed.ownership.look_once()
        bed.books.offers = {OURS: OF_OURS}
        bed.ownership.look_once()
    assert bed.renewed == []
