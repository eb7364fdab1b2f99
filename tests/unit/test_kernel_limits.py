"""The kernel keeps memory limits where it can, in the container's own cgroup and in no other."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.container_cgroups import cgroup_paths
from agent.domain.enforcement import Seen
from agent.domain.grants import Claim, Grant, GrantRecord, Mount
from agent.domain.limits_file import DeviceLimit, LimitsFile
from agent.domain.pods import Pod
from agent.domain.proc_text import Place
from agent.errors import NvmlError
from agent.services.kernel_limits import NOT_OFFERED_AGAIN_S, UNLIMITED, KernelLimitsLoop
from agent.services.published import PodTable, Published
from tests.unit.fakes import GPU_A, GPU_B, FakeClock, FakeGrantLog, pod

UID = "0e4a5f3c-8f0e-4a55-9d0c-2f0f1a2b3c4d"
ONE, TWO, THREE = "a" * 64, "b" * 64, "d" * 64
GIB = 1 << 30
BURSTABLE = "kubepods-burstable"
PRELOAD = Mount("/etc/ld.so.preload", "/host/preload")


@dataclass
class FakeKernel:
    """Implements `KernelLimits`."""

    there: dict[tuple[str, str], int] = field(default_factory=dict)  # pod uid, id -> inode
    told: list[tuple[str, str, int]] = field(default_factory=list)  # GPU, cgroup, bytes
    offered: bool = True
    unoffered: frozenset[str] = frozenset()  # GPUs
    asked: int = 0
    failure: NvmlError | None = None

    def cgroup_of(self, pod_uid: str, container_id: str) -> tuple[Path, int] | None:
        inode = self.there.get((pod_uid, container_id))
        return None if inode is None else (Path(f"/{pod_uid}/{container_id[0]}"), inode)

    def limit(self, gpu_uuid: str, cgroup: Path, hard_bytes: int) -> bool:
        self.asked += 1
        if self.failure:
            raise self.failure
        offered = self.offered and gpu_uuid not in self.unoffered
        if offered:
            self.told.append((gpu_uuid, str(cgroup), hard_bytes))
        return offered


@dataclass
class FakeLimits:
    """The part of `LiveLimits` that is read."""

    files: dict[tuple[str, str], LimitsFile] = field(default_factory=dict)

    def read(self, pod_uid: str, container: str) -> LimitsFile | None:
        return self.files.get((pod_uid, container))


def grant(container: str = "main", *claims: Claim, **changes: object) -> GrantRecord:
    made = GrantRecord(
        pod_uid=UID, namespace="team", pod_name="p", container=container, device_ids=(),
        claims=claims or (Claim(GPU_A, "NVIDIA", 1024, 10),), grant=Grant(mounts=(PRELOAD,)),
        granted_at_s=0.0,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


class Bench:
    def __init__(self, *records: GrantRecord) -> None:
        self.kernel, self.limits, self.log = FakeKernel(), FakeLimits(), FakeGrantLog()
        for record in records:
            self.log.record(record)
        self.pods: Published[PodTable] = Published(PodTable())
        self.runs({ONE: "main"})
        self.kernel.there = {(UID, ONE): 7, (UID, TWO): 8, (UID, THREE): 9}
        self.seen: Published[Seen] = Published(Seen(seeing=True, processes={}))
        self.clock = FakeClock()
        self.loop = KernelLimitsLoop(
            self.kernel, self.log, self.pods, self.limits,  # type: ignore[arg-type]
            seen=self.seen.now, clock=self.clock,
        )  # fmt: skip

    def runs(self, ids: dict[str, str], **changes: object) -> None:
        running: Pod = replace(pod("p", ""), uid=UID, container_ids=ids, **changes)  # type: ignore[arg-type]
        self.pods.publish(PodTable({UID: running}, synced=True))

    def kept(self) -> list[str]:
        self.loop.step_once()
        return sorted(container for _, container in self.loop.kept.now())


def test_a_container_is_limited_once() -> None:
    bench = Bench(grant())
    assert bench.kept() == ["main"]
    assert bench.kept() == ["main"]
    assert bench.kernel.told == [(GPU_A, f"/{UID}/a", GIB)]


def test_each_gpu_of_each_container() -> None:
    bench = Bench(
        grant("main", Claim(GPU_A, "NVIDIA", 1024, 1), Claim(GPU_B, "NVIDIA", 2048, 1),
              Claim(GPU_A, "NVIDIA", 1024, 1)),
        grant("side", Claim(GPU_A, "NVIDIA", 512, 1)),
    )  # fmt: skip
    bench.runs({ONE: "main", TWO: "side"})
    assert bench.kept() == ["main", "side"]
    assert bench.kernel.told == [
        (GPU_A, f"/{UID}/a", 2 * GIB), (GPU_B, f"/{UID}/a", 2 * GIB), (GPU_A, f"/{UID}/b", GIB // 2),
    ]  # fmt: skip


def test_one_gpu_without_a_limit_is_kept_by_nobody() -> None:
    bench = Bench(grant("main", Claim(GPU_A, "NVIDIA", 1024, 1), Claim(GPU_B, "NVIDIA", 0, 1)))
    assert bench.kept() == []
    assert bench.kernel.told == [(GPU_A, f"/{UID}/a", GIB)]


def test_a_limit_that_is_changed_is_told() -> None:
    bench = Bench(grant())
    bench.kept()
    for limit_bytes in (3 * GIB, 0):
        line = DeviceLimit(uuid=GPU_A, memory_limit_bytes=limit_bytes)
        bench.limits.files[UID, "main"] = LimitsFile(devices=(line,))
        bench.kept()
    assert [told[2] for told in bench.kernel.told] == [GIB, 3 * GIB, UNLIMITED]
    assert bench.kept() == []


def test_a_container_that_is_started_anew_is_limited_anew() -> None:
    bench = Bench(grant())
    bench.kept()
    bench.runs({TWO: "main"})
    assert bench.kept() == ["main"]
    bench.kernel.there[UID, TWO] = 9  # of the same name, but another one
    assert bench.kept() == ["main"]
    assert [told[1] for told in bench.kernel.told] == [f"/{UID}/a", f"/{UID}/b", f"/{UID}/b"]


@pytest.mark.parametrize(
    ("record", "ids", "changes"),
    [
        pytest.param(grant(), {}, {}, id="not started yet"),
        pytest.param(grant(), {ONE: "other"}, {}, id="another container"),
        pytest.param(grant(), {ONE: "main", TWO: "main"}, {}, id="two of one name"),
        pytest.param(grant(), {"c" * 64: "main"}, {}, id="no such cgroup"),
        pytest.param(grant(), {ONE: "main"}, {"phase": "Failed"}, id="a pod that has ended"),
        pytest.param(grant("main", Claim(GPU_A, "NVIDIA", 0, 1)), {ONE: "main"}, {}, id="no limit"),
        pytest.param(grant(grant=Grant()), {ONE: "main"}, {}, id="switched off by its author"),
        pytest.param(
            grant(grant=Grant(envs={"NVIDIA_VISIBLE_DEVICES": "MIG-a"}, mounts=(PRELOAD,))),
            {ONE: "main"}, {}, id="a MIG device",
        ),
    ],
)  # fmt: skip
def test_who_is_not_touched(
    record: GrantRecord, ids: dict[str, str], changes: dict[str, object]
) -> None:
    bench = Bench(record)
    bench.runs(ids, **changes)
    assert bench.kept() == []
    assert bench.kernel.told == []


def test_without_the_call_the_library_keeps_the_limits() -> None:
    bench = Bench(grant())
    bench.kernel.offered = False
    assert bench.kept() == []
    assert bench.kept() == []
    assert bench.kernel.asked == 1, "not every two seconds"
    bench.kernel.offered = True
    bench.clock.now_s += NOT_OFFERED_AGAIN_S + 1
    assert bench.kept() == ["main"]


@pytest.mark.parametrize("first", [GPU_A, GPU_B], ids=["asked first", "asked last"])
def test_a_gpu_without_it_keeps_no_other_from_it(first: str) -> None:
    """One in MIG mode beside one that is whole, for example."""
    second = GPU_B if first == GPU_A else GPU_A
    bench = Bench(
        grant("main", Claim(first, "NVIDIA", 1024, 1)),
        grant("side", Claim(second, "NVIDIA", 1024, 1)),
        grant("both", Claim(GPU_A, "NVIDIA", 1024, 1), Claim(GPU_B, "NVIDIA", 1024, 1)),
    )
    bench.runs({ONE: "main", TWO: "side", THREE: "both"})
    bench.kernel.unoffered = frozenset({GPU_A})
    for _ in range(2):
        assert bench.kept() == ["side" if first == GPU_A else "main"]
    assert {told[0] for told in bench.kernel.told} == {GPU_B}
    assert len(bench.kernel.told) == 2, "what is offered of a container's GPUs is used"


@pytest.mark.parametrize(
    ("place", "kept"),
    [
        pytest.param((UID, ONE), ["main"], id="its own"),
        pytest.param((UID.replace("0", "1"), ONE), [], id="a process in another pod"),
        pytest.param((UID, ""), [], id="in no container"),
        pytest.param(None, [], id="none seen"),
    ],
)
def test_without_an_api_server_its_processes_tell_the_container(
    place: tuple[str, str] | None, kept: list[str]
) -> None:
    """Mode slices: kubelet's books have no id of the runtime's; `uid` is the grant's name."""
    name = "slices-0123456789abcdef"
    bench = Bench(grant(pod_uid=name, owner_uid=UID))
    table = PodTable(
        {name: replace(pod("p", ""), uid=name, kubelet_uid=UID, phase="Running")}, synced=True
    )
    bench.pods.publish(table)
    places = frozenset({Place(*place)}) if place else frozenset()
    bench.seen.publish(Seen(seeing=True, processes={}, places={(name, "main"): places}))
    assert bench.kept() == kept
    assert [told[1] for told in bench.kernel.told] == [f"/{UID}/a" for _ in kept]


def test_two_places_of_one_container_are_no_answer() -> None:
    name = "slices-0123456789abcdef"
    bench = Bench(grant(pod_uid=name, owner_uid=UID))
    bench.pods.publish(
        PodTable({name: replace(pod("p", ""), uid=name, kubelet_uid=UID)}, synced=True)
    )
    both = frozenset({Place(UID, ONE), Place(UID, TWO)})
    bench.seen.publish(Seen(seeing=True, processes={}, places={(name, "main"): both}))
    assert bench.kept() == []


def test_what_the_driver_refuses_is_not_claimed_and_tried_again() -> None:
    bench = Bench(grant())
    bench.kernel.failure = NvmlError("no permission")
    assert bench.kept() == []
    bench.kernel.failure = None
    assert bench.kept() == ["main"]


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{ONE}.scope",
        f"kubepods.slice/{BURSTABLE}.slice/{BURSTABLE}-pod{UID.replace('-', '_')}.slice/crio-{ONE}.scope",
        f"kubepods/besteffort/pod{UID}/{ONE}",
        f"kubepods/pod{UID}/{ONE}",
        f"kubepods/besteffort/pod{UID}/crio-{ONE}",
    ],
    ids=[
        "systemd, guaranteed",
        "systemd, burstable",
        "cgroupfs, best effort",
        "cgroupfs",
        "cgroupfs, cri-o",
    ],
)
def test_where_kubelet_and_runtimes_put_containers(path: str) -> None:
    assert path in cgroup_paths(UID, ONE)


@pytest.mark.parametrize(
    ("uid", "identity"),
    [
        pytest.param("../..", ONE, id="a way up"),
        pytest.param(UID, "../" + "a" * 61, id="a way up as an id"),
        pytest.param(UID, "a" * 12, id="a short id"),
        pytest.param("", ONE, id="no uid"),
        pytest.param(UID.upper(), ONE, id="upper case"),
    ],
)
def test_odd_names_lead_nowhere(uid: str, identity: str) -> None:
    assert cgroup_paths(uid, identity) == ()


@given(st.text(), st.text())
def test_no_path_leaves_its_pod(uid: str, identity: str) -> None:
    for path in cgroup_paths(uid, identity):
        assert ".." not in path
        assert not path.startswith("/")
