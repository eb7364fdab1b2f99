"""MPS daemons and whose GPUs are closed for them: real files and a real program, no driver."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mps_program
import pynvml
import pytest

from agent.adapters.mps import HostMps
from agent.config import Config
from agent.domain.gpu import Gpu, GpuInventory
from agent.domain.mps import MpsPlan
from agent.domain.nvidia_config import Replicas, Replication
from agent.domain.nvidia_devices import MPS, Offer
from agent.errors import NodeNotReady
from agent.hostinstall.mps_removal import retire_mps_daemons
from agent.services.mps import MpsDaemons
from agent.services.published import Inventory, Published

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
CARDS = {
    uuid: Gpu(uuid=uuid, index=place, name="A40", memory_mib=40_000)
    for place, uuid in enumerate((A, B))
}
GPU, OTHER = "nvidia.com/gpu", "nvidia.com/other"
EXCLUSIVE = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


@dataclass
class Bed:
    """A node with two GPUs, and what the driver was told of their compute modes."""

    root: Path
    modes: dict[str, int] = field(default_factory=dict)
    broken: str = ""  # the GPU whose mode cannot be set
    inventory: Inventory = field(default_factory=lambda: Published(GpuInventory.of(CARDS.values())))

    def host(self) -> HostMps:
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        return HostMps(self.root / "mps", path=path, shared_memory=self.root / "mps/shm")

    def set_mode(self, uuid: str, mode: int) -> None:
        if uuid == self.broken:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        self.modes[uuid] = mode

    @property
    def closed(self) -> set[str]:
        return {uuid for uuid, mode in self.modes.items() if mode == EXCLUSIVE}

    def agent(self, *uuids: str, resource: str = GPU, replicas: int = 2) -> MpsDaemons:
        """One with settings that share these GPUs; none: that share by MPS no more."""
        shared = Replicas(name=resource, replicas=replicas, devices=uuids)
        offer = Offer(
            resource_name=resource,
            strategy=MPS if uuids else "",
            replication=Replication(fail_above_one=True, resources=(shared,)),
        )
        return MpsDaemons(self.inventory, offer, self.host())

    def own(self, resource: str = GPU) -> Path:
        return self.root / "mps" / resource

    def told(self) -> list[str]:
        return (self.own() / "log/told").read_text().splitlines()

    def starts(self) -> int:
        return sum(line.startswith("started") for line in self.told())

    def has_clients(self, servers: str, clients: str = "") -> None:
        (self.own() / "servers").write_text(servers)
        (self.own() / "clients").write_text(clients)

    def noted(self, resource: str = GPU) -> list[str]:
        path = self.own(resource) / "gpus"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    with mps_program.short_folder() as folder:
        yield made_bed(folder, monkeypatch)


def made_bed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    made = Bed(folder)
    (folder / "mps/shm").mkdir(parents=True)
    mps_program.write(folder / "bin")
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceSetComputeMode", made.set_mode)
    return made


# --- a start that fails ---------------------------------------------------------------------------


def the_directory_cannot_be_made(bed: Bed) -> None:
    bed.own().parent.write_text("in the way")


def a_mode_cannot_be_set(bed: Bed) -> None:
    bed.broken = B


def the_daemon_does_not_start(bed: Bed) -> None:
    bed.own().mkdir(parents=True)
    (bed.own() / "refuses").touch()


@pytest.mark.parametrize(
    "hindered", [the_directory_cannot_be_made, a_mode_cannot_be_set, the_daemon_does_not_start]
)
def test_what_a_start_that_failed_has_closed_is_opened_later(
    bed: Bed, hindered: Callable[[Bed], None]
) -> None:
    hindered(bed)
    agent = bed.agent(A, B)
    agent.look_once()
    assert agent.problem(GPU)
    assert bed.closed <= set(bed.noted()), "it would stay closed to everybody"
    bed.broken = ""
    bed.agent().look_once()
    assert (bed.closed, bed.noted()) == (set(), [])


def test_uninstall_opens_what_a_start_that_failed_has_closed(bed: Bed) -> None:
    a_mode_cannot_be_set(bed)
    bed.agent(A, B).look_once()
    assert bed.closed == {A}
    bed.broken = ""
    said: list[str] = []
    config = Config(node_name="n", mps_root=bed.root / "mps")
    retire_mps_daemons(config, dry_run=False, say=said.append)
    assert (bed.closed, len(said)) == (set(), 1)


# --- GPUs that come and go ------------------------------------------------------------------------


@pytest.mark.parametrize("same_agent", [False, True])
def test_a_gpu_that_left_the_resource_is_everybodys_again(bed: Bed, same_agent: bool) -> None:
    agent = bed.agent(A, B)
    agent.look_once()
    assert bed.closed == {A, B}
    if same_agent:  # MIG was enabled on it, for instance
        agent._offer = bed.agent(A)._offer
    else:
        agent = bed.agent(A)
    agent.look_once()
    assert (bed.closed, bed.noted(), agent.problem(GPU)) == ({A}, [A], "")
    assert bed.starts() == 1, "its other clients go on"
    bed.agent().look_once()
    assert bed.closed == set()


def test_a_gpu_that_cannot_be_opened_is_tried_again(bed: Bed) -> None:
    bed.agent(A, B).look_once()
    bed.broken = B
    agent = bed.agent(A)
    agent.look_once()
    assert f"the compute mode of {B} cannot be set to DEFAULT" in agent.problem(GPU)
    assert bed.noted() == [A, B]
    bed.broken = ""
    agent.look_once()
    assert (bed.closed, bed.noted(), agent.problem(GPU)) == ({A}, [A], "")


def test_a_gpu_that_is_only_not_seen_stays_the_daemons(bed: Bed) -> None:
    bed.agent(A, B).look_once()
    bed.inventory.publish(GpuInventory.of([CARDS[A]]))
    agent = bed.agent(A)
    agent.look_once()
    assert (bed.closed, bed.noted(), agent.problem(GPU)) == ({A, B}, [A, B], "")


def test_a_resource_that_has_no_gpu_any_more_has_no_daemon(bed: Bed) -> None:
    """The settings still name it; its GPU is offered as something else."""
    bed.agent(A).look_once()
    agent = bed.agent(A)
    agent._offer = Offer(strategy=MPS, resource_name=OTHER, replication=agent._offer.replication)
    agent.look_once()
    assert (bed.closed, bed.noted(), bed.told()[-1]) == (set(), [], "quit")


UNUSED = [
    pytest.param("", "", id="no server"),
    pytest.param("71\n", "", id="a server without clients"),
]
USED = [
    pytest.param("71\n", "500\n", id="a client"),
    pytest.param("no such command\n", "", id="what it says is unclear"),
    pytest.param("²\n", "", id="no number of ours"),
    pytest.param("1\n" * 500, "", id="too many servers"),
]


@pytest.mark.parametrize(("servers", "clients"), UNUSED)
def test_for_a_new_gpu_a_daemon_without_clients_is_started_anew(
    bed: Bed, servers: str, clients: str
) -> None:
    bed.agent(A).look_once()
    bed.has_clients(servers, clients)
    agent = bed.agent(A, B)
    agent.look_once()
    assert (bed.closed, bed.noted(), agent.problem(GPU)) == ({A, B}, [A, B], "")
    told = bed.told()
    again = told.index("quit")
    assert told[again + 1] == f"started {A},{B}"
    assert "set_default_device_pinned_mem_limit 1 20000M" in told[again:]


@pytest.mark.parametrize(("servers", "clients"), USED)
def test_for_a_new_gpu_clients_are_not_ended(bed: Bed, servers: str, clients: str) -> None:
    bed.agent(A).look_once()
    before = bed.told()
    bed.has_clients(servers, clients)
    agent = bed.agent(A, B)
    for _ in range(2):
        agent.look_once()
        assert f"was started without {B}" in agent.problem(GPU)
    assert (bed.closed, bed.noted(), bed.told()) == ({A}, [A], before)
    bed.has_clients("")
    agent.look_once()
    assert (bed.closed, agent.problem(GPU)) == ({A, B}, "")


def test_while_it_is_started_anew_nobody_becomes_its_client(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = bed.agent(A)
    agent.look_once()
    agent._offer = bed.agent(A, B)._offer
    given: list[str] = []
    start = HostMps.start

    def started(mps: HostMps, plan: MpsPlan) -> None:
        given.append(agent.problem(GPU))
        start(mps, plan)

    monkeypatch.setattr(HostMps, "start", started)
    agent.look_once()
    assert ["not ready yet" in why for why in given] == [True]
    assert agent.problem(GPU) == ""


def test_all_gpus_of_a_resource_may_be_others(bed: Bed) -> None:
    bed.agent(A).look_once()
    agent = bed.agent(B)
    agent.look_once()
    assert (bed.closed, bed.noted(), agent.problem(GPU)) == ({B}, [B], "")
    assert bed.starts() == 2


def test_the_daemon_of_somebody_else_is_left_as_it_is(bed: Bed) -> None:
    for name in ("pipe", "log"):
        (bed.own() / name).mkdir(parents=True)
    (bed.own() / "pipe/control").touch()
    agent = bed.agent(B)
    agent.look_once()
    assert (bed.modes, bed.noted(), agent.problem(GPU)) == ({}, [], "")
    assert bed.told()[0] == "set_default_device_pinned_mem_limit 1 20000M", "it sees all GPUs"


def test_a_gpu_that_another_resource_has_by_now_stays_closed(bed: Bed) -> None:
    """The daemon of its new resource begins before that of the old one ends."""
    bed.agent(A).look_once()
    bed.agent(A, resource=OTHER).look_once()
    assert (bed.closed, bed.noted(), bed.noted(OTHER)) == ({A}, [], [A])
    bed.agent().look_once()
    assert bed.closed == set()


@pytest.mark.parametrize("content", [
    pytest.param(b"\xff\xfe", id="no text"),
    pytest.param(b"x" * 200_000, id="too much"),
    pytest.param(b"", id="nothing"),
])  # fmt: skip
def test_a_record_that_cannot_be_read_hinders_no_start(bed: Bed, content: bytes) -> None:
    bed.own().mkdir(parents=True)
    (bed.own() / "gpus").write_bytes(content)
    agent = bed.agent(A)
    agent.look_once()
    assert (bed.closed, bed.noted(), agent.problem(GPU)) == ({A}, [A], "")


def test_a_record_that_cannot_be_read_hinders_no_new_gpu(bed: Bed) -> None:
    bed.agent(A).look_once()
    (bed.own() / "gpus").write_bytes(b"\xff\xfe")
    agent = bed.agent(A, B)
    agent.look_once()
    assert (bed.starts(), bed.noted(), agent.problem(GPU)) == (2, [A, B], "")


def test_a_daemon_that_is_gone_says_so(bed: Bed) -> None:
    plan = MpsPlan(resource=GPU, uuids=(A,))
    host = bed.host()
    host.start(plan)
    (bed.own() / "pipe/control").unlink()
    with pytest.raises(NodeNotReady, match="Cannot find MPS control daemon"):
        host.end_unused(plan)


# --- limits ---------------------------------------------------------------------------------------


def limits(bed: Bed) -> dict[str, str]:
    """What the daemon has kept, by number."""
    files = (bed.own() / "pipe").glob("limit.*")
    return {file.suffix[1:]: file.read_text().strip() for file in files}


@pytest.mark.parametrize(
    ("uuids", "kept"),
    [
        pytest.param((A, B), {"0": "19G", "1": "19G"}, id="all GPUs"),
        pytest.param((B,), {"0": "19G"}, id="only the second: the daemon sees no other"),
    ],
)
def test_the_daemon_keeps_a_memory_limit_for_each_gpu(
    bed: Bed, uuids: tuple[str, ...], kept: dict[str, str]
) -> None:
    agent = bed.agent(*uuids)
    agent.look_once()
    assert (limits(bed), agent.problem(GPU)) == (kept, "")
    assert bed.told()[0] == "started " + ",".join(uuids)


@pytest.mark.parametrize("seen", [(A,), (B,)], ids=["the second is not seen", "nor is the first"])
def test_numbers_stay_while_gpus_are_not_seen(bed: Bed, seen: tuple[str, ...]) -> None:
    bed.agent(A, B).look_once()
    for file in (bed.own() / "pipe").glob("limit.*"):
        file.unlink()
    bed.inventory.publish(GpuInventory.of([CARDS[uuid] for uuid in seen]))
    agent = bed.agent(A, B)
    agent.look_once()
    assert (list(limits(bed)), agent.problem(GPU)) == ([str((A, B).index(seen[0]))], "")


def test_a_daemon_that_does_not_number_a_gpu_is_started_anew(bed: Bed) -> None:
    bed.agent(A, B).look_once()
    (bed.own() / "numbered").write_text(f"{B}\n")
    agent = bed.agent(A, B)
    agent.look_once()
    assert (bed.starts(), limits(bed), agent.problem(GPU)) == (2, {"0": "19G", "1": "19G"}, "")


@pytest.mark.parametrize("shared", [(A, B), (B,)])
def test_a_daemon_of_an_agent_that_noted_no_numbers(bed: Bed, shared: tuple[str, ...]) -> None:
    bed.agent(A, B).look_once()
    (bed.own() / "numbered").unlink()
    agent = bed.agent(*shared, replicas=4)
    agent.look_once()
    told = {"0": "9G" if A in shared else "19G", "1": "9G"}
    assert (bed.starts(), limits(bed), agent.problem(GPU)) == (1, told, "")


@pytest.mark.parametrize(
    ("servers", "told"),
    [
        pytest.param("", [], id="no server runs"),
        pytest.param("no such command\n", [], id="what it says is unclear"),
        pytest.param(
            "71\n",
            ["set_device_pinned_mem_limit 71 0 10000M", "set_active_thread_percentage 71 25"],
            id="one runs: defaults are for the next",
        ),
    ],
)
def test_limits_that_change_go_for_new_clients_of_a_server_that_runs(
    bed: Bed, servers: str, told: list[str]
) -> None:
    bed.agent(A).look_once()
    bed.has_clients(servers, "500\n")
    before = len(bed.told())
    agent = bed.agent(A, replicas=4)
    agent.look_once()
    assert (agent.problem(GPU), bed.starts()) == ("", 1)
    assert bed.told()[before:] == [
        "set_default_device_pinned_mem_limit 0 10000M",
        "set_default_active_thread_percentage 25",
        *told,
    ]


def test_a_daemon_that_somebody_has_started_anew_at_once_is_told_again(bed: Bed) -> None:
    agent = bed.agent(A)
    agent.look_once()
    for kept in ("limit.0", "percent"):
        (bed.own() / "pipe" / kept).unlink()
    before = len(bed.told())
    for _ in range(2):
        agent.look_once()
    assert (bed.starts(), limits(bed)) == (1, {"0": "19G"})
    assert bed.told()[before:] == [
        "set_default_device_pinned_mem_limit 0 20000M",
        "set_default_active_thread_percentage 50",
    ]


def test_a_daemon_that_knows_no_memory_limits_gets_no_clients(bed: Bed) -> None:
    (bed.own()).mkdir(parents=True)
    (bed.own() / "old").write_text("as driver 470 has it")
    agent = bed.agent(A)
    agent.look_once()
    why = agent.problem(GPU)
    assert f"did not take the memory limit of {A}" in why
    assert "Unknown command" in why
    assert "update the driver, or use sharing.timeSlicing" in why


def test_the_daemon_finds_the_drivers_libraries_where_the_agent_does(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    bed.agent(A).look_once()
    lines = (bed.own() / "log/environ").read_text().splitlines()
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in lines
    assert f"CUDA_VISIBLE_DEVICES={A}" in lines
    assert not any(line.startswith("CUDA_DEVICE_ORDER") for line in lines)


def test_a_daemon_that_ends_with_an_error_of_cuda(bed: Bed) -> None:
    bed.own().mkdir(parents=True)
    (bed.own() / "silent").touch()
    agent = bed.agent(A)
    agent.look_once()
    assert "(exit code 100, of newer drivers CUDA's error: it must find" in agent.problem(GPU)


def test_a_path_that_is_too_long_for_its_sockets_is_refused_in_words(bed: Bed) -> None:
    agent = bed.agent(A, resource=f"nvidia.com/{'x' * 63}")
    agent.look_once()
    assert "sockets: set a shorter --mps-root, or rename" in agent.first_problem()
