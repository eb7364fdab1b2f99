"""GPUs fall ill and recover: the pure rules, and the loop over a fake driver."""

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent import app
from agent.adapters import own_devices
from agent.app import JOIN_WITHIN_S, Agent
from agent.config import Config
from agent.domain.gpu import GpuEvent, GpuInventory, MigDevice
from agent.domain.health import GpuHealth, fell_ill, probed, probes_needed, verdict
from agent.domain.nvidia_config import Replicas, Replication
from agent.domain.topology import GpuPair
from agent.errors import NvmlAbsent, NvmlError, NvmlStale
from agent.ports import ClusterEvent
from agent.services.health import HANG_AFTER_S, LOOK_AGAIN_S, WAIT_S, Health, Patience
from agent.services.published import Published
from agent.supervisor import Lifeline
from tests.unit.fake_nvml import A, B, FakeNvml

IGNORED = frozenset({13, 31, 43, 45, 68, 109})


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        pytest.param(GpuEvent(uuid="GPU-a", kind="xid", xid=13), "", id="illegal address of an application"),
        pytest.param(GpuEvent(uuid="GPU-a", kind="xid", xid=31), "", id="page fault of an application"),
        pytest.param(
            GpuEvent(uuid="GPU-a", kind="xid", xid=79), "XID 79 (GPU has fallen off the bus)", id="off the bus"
        ),
        pytest.param(GpuEvent(uuid="GPU-a", kind="xid", xid=777), "XID 777", id="an XID nobody has named"),
        pytest.param(GpuEvent(uuid="GPU-a", kind="ecc_single"), "", id="corrected ECC"),
        pytest.param(GpuEvent(uuid="GPU-a", kind="ecc_double"), "uncorrectable ECC error", id="uncorrectable ECC"),
        pytest.param(GpuEvent(uuid="GPU-a", kind="other"), "", id="an event of no concern"),
    ],
)  # fmt: skip
def test_which_events_count(event: GpuEvent, reason: str) -> None:
    assert verdict(event, IGNORED) == reason


def test_a_relapse_doubles_the_probes_needed_and_an_hour_forgives() -> None:
    health = GpuHealth()
    needed = []
    for now_s in (0.0, 100.0, 200.0, 200.0 + 3601.0):
        health = fell_ill(health, "XID 79", now_s=now_s)
        needed.append(probes_needed(health, 3))
        for _ in range(needed[-1]):
            assert not health.healthy
            health = probed(health, "", recovery_probes=3, now_s=now_s)
        assert health.healthy
    assert needed == [3, 6, 12, 3]


def test_a_failed_probe_starts_the_count_anew() -> None:
    health = fell_ill(GpuHealth(), "XID 79", now_s=0.0)
    health = probed(health, "", recovery_probes=2, now_s=1.0)
    health = probed(health, "no answer", recovery_probes=2, now_s=2.0)
    health = probed(health, "", recovery_probes=2, now_s=3.0)
    assert health.reason == "XID 79"
    assert probed(health, "", recovery_probes=2, now_s=4.0).healthy


class Bench:
    """The loop over a fake driver and a clock that the test turns."""

    def __init__(self, nvml: FakeNvml, **settings: object) -> None:
        self.nvml = nvml
        self.now_s = 1000.0
        self.inventory = Published(GpuInventory())
        self.posted: list[ClusterEvent] = []
        self.left: list[str] = []
        self.refused: list[str] = []
        self.counted: list[tuple[str, str]] = []
        self.health = Health(
            nvml,
            self.inventory,
            ignored_xids=IGNORED,
            post=self.posted.append,
            leave=self.left.append,
            refuse=self.refused.append,
            count=lambda uuid, to: self.counted.append((uuid, to)),
            clock=lambda: self.now_s,
            **settings,  # type: ignore[arg-type]
        )

    def turn(self, *, after_s: float = 0.0) -> bool:
        self.now_s += after_s
        return self.health.step_once()

    @property
    def reasons(self) -> dict[str, str]:
        return {gpu.uuid: gpu.unhealthy_reason for gpu in self.inventory.now().gpus}


def test_a_device_xid_takes_one_gpu_out_and_clean_probes_bring_it_back() -> None:
    bench = Bench(FakeNvml(A, B))
    bench.turn()
    assert bench.reasons == {"GPU-a": "", "GPU-b": ""}
    bench.nvml.xid("GPU-a", 79)
    bench.turn()
    assert bench.reasons == {"GPU-a": "XID 79 (GPU has fallen off the bus)", "GPU-b": ""}
    bench.turn(after_s=10.0)
    bench.turn(after_s=10.0)
    assert bench.reasons["GPU-a"], "two clean probes are not enough"
    bench.turn(after_s=10.0)
    assert bench.reasons["GPU-a"] == ""
    assert [event.reason for event in bench.posted] == ["GpuUnhealthy", "GpuRecovered"]


def test_an_application_xid_changes_nothing() -> None:
    bench = Bench(FakeNvml(A))
    bench.turn()
    bench.nvml.xid("GPU-a", 31)
    bench.turn()
    assert bench.reasons == {"GPU-a": ""}
    assert bench.posted == []


def test_an_event_that_names_no_gpu_counts_for_all() -> None:
    bench = Bench(FakeNvml(A, B))
    bench.turn()
    bench.nvml.xid("", 79)
    bench.turn()
    assert all(bench.reasons.values())


def test_a_gpu_that_vanishes_stays_unhealthy_and_returns() -> None:
    bench = Bench(FakeNvml(A, B))
    bench.turn()
    del bench.nvml.present["GPU-b"]
    bench.turn(after_s=10.0)
    assert "no longer lists" in bench.reasons["GPU-b"]
    bench.nvml.present["GPU-b"] = B
    for _ in range(3):
        bench.turn(after_s=10.0)
    assert bench.reasons["GPU-b"] == ""


def test_a_new_gpu_and_a_renumbered_one_are_noticed() -> None:
    bench = Bench(FakeNvml(A))
    bench.turn()
    bench.nvml.present["GPU-b"] = B
    bench.nvml.renumber("GPU-a", 5)
    bench.turn(after_s=10.0)
    assert [(gpu.uuid, gpu.index) for gpu in bench.inventory.now().gpus] == [
        ("GPU-b", 1),
        ("GPU-a", 5),
    ]


def test_without_a_driver_nothing_is_known_and_it_waits() -> None:
    bench = Bench(FakeNvml(A))
    bench.nvml.failure = NvmlAbsent("no libnvidia-ml.so.1 on this host")
    assert bench.turn() is False
    assert bench.inventory.now().known is False
    assert "libnvidia-ml" in bench.inventory.now().driver_error
    assert bench.left == []
    bench.nvml.failure = None
    assert bench.turn() is True
    assert bench.reasons == {"GPU-a": ""}


def test_without_a_driver_it_leaves_when_told_so() -> None:
    bench = Bench(FakeNvml(), leave_when_absent=True)
    bench.nvml.failure = NvmlAbsent("no libnvidia-ml.so.1 on this host")
    bench.turn()
    assert bench.left == ["no libnvidia-ml.so.1 on this host"]


def test_a_driver_that_was_upgraded_under_us_ends_the_process() -> None:
    bench = Bench(FakeNvml(A))
    bench.turn()
    bench.nvml.failure = NvmlStale("library and kernel module do not match", code=18)
    bench.turn()
    assert bench.left == ["library and kernel module do not match"]


COPIES = Replication(resources=(Replicas(name="nvidia.com/gpu", replicas=4),))
UNKNOWN = NvmlError("NVML does not start: Unknown Error", code=999)


def test_who_is_shut_out_by_a_driver_that_he_had_ends_once() -> None:
    """As when a reload of systemd takes the devices from our container: a new one has them."""
    bench = Bench(FakeNvml(A), devices_taken=lambda: True)
    bench.turn()
    bench.nvml.failure = UNKNOWN
    for _ in range(3):
        bench.turn(after_s=50.0)
    assert bench.left == []
    bench.nvml.failure = None
    bench.turn()
    bench.nvml.failure = UNKNOWN
    bench.turn(after_s=50.0)  # what was open fails, and is closed
    bench.turn()
    for _ in range(2):
        assert bench.left == [], "it may pass"
        bench.turn(after_s=60.0)
    assert len(bench.left) == 1
    assert "Unknown Error" in bench.left[0]


@pytest.mark.parametrize(
    ("had", "taken", "failure"),
    [
        pytest.param(False, True, UNKNOWN, id="who never had it waits"),
        pytest.param(True, True, NvmlAbsent("not loaded", code=9), id="it is unloaded"),
        pytest.param(True, False, UNKNOWN, id="it fails everybody"),
    ],
)
def test_who_would_find_it_no_better_stays(*, had: bool, taken: bool, failure: NvmlError) -> None:
    bench = Bench(FakeNvml(A), devices_taken=lambda: taken)
    if had:
        bench.turn()
    bench.nvml.failure = failure
    for _ in range(10):
        bench.turn(after_s=60.0)
    assert bench.left == []


@pytest.mark.parametrize(
    ("answer", "taken"),
    [
        pytest.param(errno.EPERM, True, id="the cgroup refuses it"),
        pytest.param(errno.EACCES, False, id="it is another user's"),
        pytest.param(errno.EIO, False, id="the driver fails"),
        pytest.param(errno.ENOENT, False, id="it is not there"),
        pytest.param(0, False, id="it opens"),
    ],
)
def test_a_device_is_taken_from_us_where_the_cgroup_refuses_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, answer: int, taken: bool
) -> None:
    device, opens = tmp_path / "nvidiactl", os.open
    device.touch()

    def refusing(path: str, flags: int) -> int:
        if answer:
            raise OSError(answer, os.strerror(answer))
        return opens(path, flags)

    monkeypatch.setattr(own_devices.os, "open", refusing)
    assert own_devices.devices_taken(str(device)) is taken


@pytest.mark.parametrize(
    ("shared", "leaves"),
    [
        pytest.param({}, True, id="whole GPUs"),
        pytest.param({"time_slicing": COPIES}, True, id="time slices"),
        pytest.param({"mps": COPIES}, False, id="MPS, whose clients would end with its daemon"),
    ],
)
def test_who_leaves_for_devices_that_were_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, shared: dict[str, Replication], leaves: bool
) -> None:
    asked: list[Callable[[], bool]] = []

    def recorded(*of: object, devices_taken: Callable[[], bool], **settings: object) -> Health:
        asked.append(devices_taken)
        return Health(*of, devices_taken=devices_taken, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(app, "Health", recorded)
    monkeypatch.setattr(app, "devices_taken", lambda: True)
    Agent(Config(node_name="n", mode="nvidia", state_dir=tmp_path, **shared))  # type: ignore[arg-type]
    assert [taken() for taken in asked] == [leaves]


def test_a_driver_that_dies_makes_everything_unhealthy_until_clean_probes() -> None:
    bench = Bench(FakeNvml(A, B))
    bench.turn()
    bench.nvml.failure = NvmlError("unknown error", code=999)
    bench.turn(after_s=10.0)
    assert bench.reasons == {"GPU-a": "unknown error", "GPU-b": "unknown error"}
    bench.nvml.failure = None
    bench.turn()
    assert all(bench.reasons.values()), "one clean probe is not enough"
    for _ in range(3):
        bench.turn(after_s=10.0)
    assert bench.reasons == {"GPU-a": "", "GPU-b": ""}


def test_silence_is_not_health() -> None:
    """A call hangs: Patience, on another thread, takes the GPUs out; they have to earn it back."""
    bench = Bench(FakeNvml(A))
    bench.turn()
    patience = Patience(bench.health)
    seen: list[str] = []

    def hang() -> None:
        bench.nvml.before_each_call = lambda: None
        patience.step_once()
        assert bench.reasons["GPU-a"] == "", "not yet"
        bench.now_s += HANG_AFTER_S + 3.0
        patience.step_once()
        seen.append(bench.reasons["GPU-a"])
        assert bench.counted == [("GPU-a", "unhealthy")], "told while it hangs, not afterwards"

    bench.nvml.before_each_call = hang
    bench.turn()
    assert "not answered" in seen[0]
    assert "not answered" in bench.reasons["GPU-a"]
    for _ in range(3):
        bench.turn(after_s=10.0)
    assert bench.reasons["GPU-a"] == ""
    assert [event.reason for event in bench.posted] == [
        "GpuDriverHangs",
        "GpuUnhealthy",
        "GpuRecovered",
    ]


def test_patience_sleeps_as_long_as_no_call_can_be_overdue() -> None:
    bench = Bench(FakeNvml(A))
    patience = Patience(bench.health)
    slept_s: list[float] = []

    def hang() -> None:
        bench.nvml.before_each_call = lambda: None
        while not bench.counted:
            slept_s.append(patience.step_once())
            bench.now_s += slept_s[-1]

    assert patience.step_once() == HANG_AFTER_S
    bench.turn()
    bench.nvml.before_each_call = hang
    bench.turn()
    assert slept_s == [HANG_AFTER_S, WAIT_S, LOOK_AGAIN_S]  # it may wait for an event


def test_a_slow_driver_does_not_hang() -> None:
    """Each call has its own ten seconds, however many there are in a turn."""
    gpus = [replace(A, uuid=f"GPU-{index}", index=index) for index in range(16)]
    bench = Bench(FakeNvml(*gpus), topology=Published[tuple[GpuPair, ...]](()))
    bench.nvml.questions = 5
    patience = Patience(bench.health)

    def slow() -> None:
        bench.now_s += HANG_AFTER_S - 1.0
        patience.step_once()

    bench.nvml.before_each_call = slow
    for _ in range(3):
        bench.turn(after_s=10.0)
    assert set(bench.reasons.values()) == {""}
    assert bench.posted == []


@pytest.mark.parametrize("call", range(1, 10))
def test_each_call_of_a_turn_may_hang(call: int) -> None:
    """It opens, lists with two questions, reads links with two, probes two GPUs, and waits."""
    bench = Bench(FakeNvml(A, B), topology=Published[tuple[GpuPair, ...]](()))
    bench.nvml.questions = 2
    patience = Patience(bench.health)
    begun = 0

    def one_hangs() -> None:
        nonlocal begun
        begun += 1
        bench.now_s += HANG_AFTER_S + WAIT_S if begun == call else 1.0
        patience.step_once()

    bench.nvml.before_each_call = one_hangs
    bench.turn()
    assert begun == 8
    hung = [event for event in bench.posted if event.reason == "GpuDriverHangs"]
    assert len(hung) == (1 if call <= begun else 0)


class BusyNvml(FakeNvml):
    """A driver of a busy node with eight GPUs: calls take their time, and a wait all that it may.

    The agent is stopped during the call of this number.
    """

    CALL_S = 0.5
    CALLS = 12  # of a first turn: it opens, lists, reads links, probes eight times, and waits

    def __init__(self, stopped_in: int) -> None:
        super().__init__(*(replace(A, uuid=f"GPU-{index}", index=index) for index in range(8)))
        self.stop = threading.Event()
        self.bench = Bench(self, topology=Published[tuple[GpuPair, ...]](()))
        self.stopped_in = stopped_in
        self.begun = 0
        self.stopped_s = 0.0

    def _call(self) -> None:
        super()._call()
        self._lasts(self.CALL_S)

    def _lasts(self, seconds: float) -> None:
        self.begun += 1
        if self.begun == self.stopped_in:
            self.stop.set()
            self.stopped_s = self.bench.now_s
        self.bench.now_s += seconds

    def wait_event(self, timeout_s: float, answered: Callable[[], None]) -> GpuEvent | None:  # noqa: ARG002 - the port's
        self._lasts(timeout_s)
        return None


@pytest.mark.parametrize("stopped_in", range(1, BusyNvml.CALLS + 1))
def test_a_stop_waits_for_no_other_call_of_a_slow_driver(stopped_in: int) -> None:
    nvml = BusyNvml(stopped_in)
    nvml.bench.health.run(Lifeline(nvml.stop))
    assert nvml.begun == stopped_in
    assert nvml.bench.now_s - nvml.stopped_s <= max(BusyNvml.CALL_S, WAIT_S) < JOIN_WITHIN_S
    assert nvml.closed == 1


def test_a_sweep_that_is_cut_short_tells_nothing_of_what_it_did_not_ask() -> None:
    nvml = BusyNvml(stopped_in=5)
    nvml.bench.health.run(Lifeline(nvml.stop))
    assert nvml.bench.inventory.now() == GpuInventory()
    assert nvml.bench.posted == []


def test_the_topology_is_read_once_for_each_set_of_gpus() -> None:
    topology = Published[tuple[GpuPair, ...]](())
    bench = Bench(FakeNvml(A), topology=topology)
    bench.turn()
    assert topology.now() == ()
    bench.nvml.present["GPU-b"] = B
    bench.nvml.linked = (
        GpuPair(first="GPU-a", second="GPU-b", level="board", links=2, links_back=1),
    )
    bench.turn(after_s=10.0)
    assert topology.now() == bench.nvml.linked
    bench.turn(after_s=10.0)
    assert [event.reason for event in bench.posted] == ["AsymmetricGPUP2PLink"]


def test_without_a_topology_no_gpu_is_ill_and_it_is_read_again() -> None:
    """Some virtual machines answer "unknown error" to it for ever."""
    topology = Published[tuple[GpuPair, ...]](())
    bench = Bench(FakeNvml(A, B), topology=topology)
    bench.nvml.linked = (GpuPair(first="GPU-a", second="GPU-b", level="node"),)
    bench.nvml.topology_failure = NvmlError("the GPU topology cannot be read", code=999)
    for _ in range(2):
        bench.turn(after_s=10.0)
        assert bench.reasons == {"GPU-a": "", "GPU-b": ""}
        assert topology.now() == ()
    bench.nvml.topology_failure = None
    bench.turn(after_s=10.0)
    assert topology.now() == bench.nvml.linked


def test_links_that_disagree_are_told_once_whatever_comes_and_goes() -> None:
    bench = Bench(FakeNvml(A, B), topology=Published[tuple[GpuPair, ...]](()))
    bench.nvml.linked = (GpuPair(first="GPU-a", second="GPU-b", level="node", links=1),)
    bench.turn()
    del bench.nvml.present["GPU-b"]
    for _ in range(5):
        bench.turn(after_s=10.0)
    bench.nvml.present["GPU-b"] = B
    bench.turn(after_s=10.0)
    reasons = [event.reason for event in bench.posted]
    assert reasons.count("AsymmetricGPUP2PLink") == 1


def test_settings_that_do_not_fit_the_gpus_are_refused_before_anything_is_published() -> None:
    bench = Bench(FakeNvml(A), objection=lambda gpus: f"too many for {len(gpus.gpus)} GPU")
    bench.turn()
    assert bench.refused == ["too many for 1 GPU"]
    assert bench.inventory.now() == GpuInventory()


def test_settings_are_judged_by_the_gpus_that_were_there_first() -> None:
    """A GPU that comes later must not end a node that serves pods."""
    bench = Bench(FakeNvml(A), objection=lambda gpus: "too many" if len(gpus.gpus) > 1 else "")
    bench.turn()
    bench.nvml.present["GPU-b"] = B
    bench.turn(after_s=10.0)
    assert bench.refused == []
    assert set(bench.reasons) == {"GPU-a", "GPU-b"}


def test_a_withheld_gpu_is_not_given_however_well_it_is() -> None:
    bench = Bench(FakeNvml(A, B))
    bench.turn()
    bench.health.withhold({"GPU-a": "somebody else has it", "GPU-gone": "no such GPU"})
    assert bench.reasons == {"GPU-a": "somebody else has it", "GPU-b": ""}
    bench.turn(after_s=10.0)
    assert bench.reasons["GPU-a"] == "somebody else has it", "also after a clean probe"
    bench.nvml.xid("GPU-a", 79)
    bench.turn()
    assert bench.reasons["GPU-a"].startswith("XID 79"), "what is wrong with it comes first"
    bench.health.withhold({})
    assert bench.reasons["GPU-a"].startswith("XID 79")
    for _ in range(6):
        bench.turn(after_s=10.0)
    assert bench.reasons == {"GPU-a": "", "GPU-b": ""}


def test_withholding_does_not_make_a_silent_driver_speak() -> None:
    bench = Bench(FakeNvml(A))
    bench.turn()
    bench.health.driver_hangs()
    hung = bench.inventory.now()
    bench.health.withhold({"GPU-a": "somebody else has it"})
    assert bench.inventory.now() == hung


# --- MIG devices ---------------------------------------------------------------------------------

PARTS = tuple(
    MigDevice(
        uuid=f"MIG-{number}", profile="1g.5gb", memory_mib=4864, gpu_instance=number,
        compute_instance=0,
    )
    for number in (7, 8)
)  # fmt: skip
DIVIDED = replace(A, mig_enabled=True, mig_devices=PARTS)


def parts(bench: Bench) -> dict[str, str]:
    (gpu,) = bench.inventory.now().gpus
    return {one.uuid: one.unhealthy_reason for one in gpu.mig_devices}


def test_an_event_of_a_mig_device_is_that_devices_alone() -> None:
    bench = Bench(FakeNvml(DIVIDED))
    bench.turn()
    bench.nvml.events.append(GpuEvent(uuid="GPU-a", kind="xid", xid=94, instance=(8, 0)))
    bench.turn()
    assert parts(bench) == {"MIG-7": "", "MIG-8": "XID 94 (contained ECC error)"}
    assert bench.reasons == {"GPU-a": ""}
    for _ in range(3):
        bench.turn(after_s=10.0)
    assert parts(bench) == {"MIG-7": "", "MIG-8": ""}


def test_a_mig_device_that_is_made_anew_is_well() -> None:
    bench = Bench(FakeNvml(DIVIDED))
    bench.turn()
    bench.nvml.events.append(GpuEvent(uuid="GPU-a", kind="xid", xid=94, instance=(8, 0)))
    bench.turn()
    bench.nvml.present["GPU-a"] = replace(DIVIDED, mig_devices=PARTS[:1])
    bench.turn(after_s=10.0)
    bench.nvml.present["GPU-a"] = DIVIDED
    bench.turn(after_s=10.0)
    assert parts(bench) == {"MIG-7": "", "MIG-8": ""}


def test_an_event_of_an_unknown_instance_is_the_gpus() -> None:
    bench = Bench(FakeNvml(DIVIDED))
    bench.turn()
    bench.nvml.events.append(GpuEvent(uuid="GPU-a", kind="xid", xid=94, instance=(3, 0)))
    bench.turn()
    assert bench.reasons["GPU-a"].startswith("XID 94")
