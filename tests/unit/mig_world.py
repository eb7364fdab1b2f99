"""A GPU that is divided, as a value that outlives the agent; its faults on demand."""

from dataclasses import dataclass, field, replace

from agent.domain.gpu import Gpu, GpuInventory, MigPlacement, MigProfile, Sharing
from agent.domain.grant_plan import GrantPolicy
from agent.domain.mig import DividedGpu, Geometries, MigInstance
from agent.domain.mig_allocations import MIG_ALLOCATIONS, MigAllocation, encode_allocations
from agent.domain.mig_books import Book
from agent.domain.ownership import HeldDevice
from agent.domain.pods import Container, Pod
from agent.errors import KubeletUnavailable, MigInUse, MigNoRoom, NodeNotReady, NvmlError
from agent.ports import ClusterEvent
from agent.services.allocator import Allocator
from agent.services.mig_grants import MigGrants
from agent.services.mig_keeper import MigKeeper
from agent.services.supply import Supply
from tests.unit.fakes import GPU_A, Faults, Process, container, disk_full, pod
from tests.unit.scene import Scene

SHARING = Sharing(mode="mig")


def profile(name: str, number: int, slices: int, size: int, memory_mib: int) -> MigProfile:
    starts = {1: range(7), 2: (0, 2, 4), 4: (0, 4), 8: (0,)}[size]
    return MigProfile(
        name=name,
        profile_id=number,
        memory_mib=memory_mib,
        slice_count=slices,
        multiprocessors=14 * slices,
        instance_count=len(list(starts)),
        placements=tuple(MigPlacement(start, size) for start in starts),
    )


SMALL = profile("1g.5gb", 19, 1, 1, 4864)
MEDIUM = profile("2g.10gb", 14, 2, 2, 9856)
LARGE = profile("3g.20gb", 9, 3, 4, 19968)
WHOLE = profile("7g.40gb", 0, 7, 8, 40192)
MEDIA = replace(SMALL, name="1g.5gb+me", profile_id=20, instance_count=1)
A100 = Gpu(
    uuid=GPU_A, index=0, name="NVIDIA A100-SXM4-40GB", memory_mib=40960, minor=0,
    mig_enabled=True, mig_profiles=(SMALL, MEDIUM, LARGE, WHOLE, MEDIA),
)  # fmt: skip


GEOMETRIES = (Geometries(("A100",), ((("1g.5gb", 7),), (("2g.10gb", 3), ("1g.5gb", 1)))),)


@dataclass
class FakeMaker:
    """Implements `MigMaker`: one GPU, whose instances survive the process."""

    faults: Faults
    enabled: bool = True
    instances: dict[int, MigInstance] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)  # GPU instances; -1: the GPU as a whole
    generation: str = ""  # at the end of the names that new devices get
    leaves_halves: bool = False  # what could not be completed stays

    def look(self, gpu_uuid: str) -> DividedGpu:
        with self.faults.at("look", lambda: NvmlError("the driver does not answer")):
            return DividedGpu(
                uuid=gpu_uuid,
                enabled=self.enabled,
                instances=tuple(
                    replace(one, busy=number in self.busy) for number, one in self.instances.items()
                ),
                busy=bool(self.busy),
            )

    def enable(self, gpu_uuid: str) -> None:
        with self.faults.at("enable", lambda: NvmlError("no permission")):
            assert not self.busy, gpu_uuid
            self.enabled = True

    def create(self, gpu_uuid: str, profile_id: int, placement: MigPlacement) -> MigInstance:
        if any(one.placement.overlaps(placement) for one in self.instances.values()):
            raise MigNoRoom("another instance lies there")
        number = 8 // placement.size - 1 + placement.start // placement.size
        bare = MigInstance(
            gpu_uuid=gpu_uuid, gpu_instance=number, profile_id=profile_id, placement=placement
        )
        with self.faults.at("create", lambda: NvmlError("the driver refuses")):
            self.instances[number] = bare
        try:
            return self.complete(bare)
        except NvmlError:
            if not self.leaves_halves:
                del self.instances[number]
            raise

    def complete(self, instance: MigInstance) -> MigInstance:
        with self.faults.at("complete", lambda: NvmlError("the driver refuses")):
            made = replace(
                instance, devices=((0, f"MIG-{instance.gpu_instance}{self.generation}"),)
            )
            self.instances[instance.gpu_instance] = made
        return made

    def destroy(self, instance: MigInstance) -> None:
        if instance.gpu_instance in self.busy:
            raise MigInUse("a process is still on it")
        with self.faults.at("destroy", lambda: NvmlError("the driver refuses")):
            self.instances.pop(instance.gpu_instance, None)


@dataclass
class FakeBook:
    """Implements `MigBook`: survives the process."""

    faults: Faults
    book: Book = ()

    def load(self) -> Book:
        return self.book

    def save(self, book: Book) -> None:
        with self.faults.at("book", disk_full):
            self.book = book


@dataclass
class FakeLock:
    """Implements `ApplyLock`."""

    by: str = ""
    times: int = 0

    def holder(self) -> str:
        return self.by

    def held(self) -> "FakeLock":
        self.times += 1
        return self

    def __enter__(self) -> None:
        if self.by:
            raise NodeNotReady(self.by)

    def __exit__(self, *_: object) -> None:
        """Nobody else looks."""


@dataclass
class FakeBooks:
    """Implements `DeviceBooks`: what other plugins' containers have."""

    faults: Faults
    holds: tuple[HeldDevice, ...] = ()
    old: bool = False

    def offered(self) -> dict[str, tuple[str, ...]] | None:
        with self.faults.at("kubelet", lambda: KubeletUnavailable("kubelet does not answer")):
            return None if self.old else {}

    def held(self) -> tuple[HeldDevice, ...]:
        assert not self.old, "asked, it forgets the devices of a pod"
        return self.holds


class World(Scene):
    """One node with a divided GPU, and what lives longer than the agent."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = FakeMaker(self.faults)
        self.book = FakeBook(self.faults)
        self.apply_lock = FakeLock()
        self.books = FakeBooks(self.faults)
        self.counted: list[str] = []
        self.posted: list[ClusterEvent] = []

    def life(self, gpu: Gpu = A100, sharing: Sharing = SHARING) -> tuple[Process, MigKeeper]:
        """The agent's Allocate side and the keeper, wired as the daemon wires them."""
        process = self.start(sharing=sharing, inventory=GpuInventory.of([gpu]))
        keeper = MigKeeper(
            self.maker, self.book, self.apply_lock, process.view, process.inventory, sharing,
            books=self.books, own_resource="nvidia.com/gpu",
            count=self.counted.append, post=self.posted.append, clock=self.clock,
        )  # fmt: skip
        grants = MigGrants(
            keeper, self.grant_log, GrantPolicy(), process.inventory, sharing,
            geometries=GEOMETRIES,
            now_s=self.clock,
        )  # fmt: skip
        process.allocator = Allocator(
            process.view, process.turns, process.finisher, grants,
            Supply(inventory=process.inventory, sharing=sharing, node_name=process.view.node_name, memory_unit_mib=lambda: 1),
            further=grants.further, clock=self.clock,
        )  # fmt: skip
        return process, keeper

    def places(self) -> dict[int, int]:
        """Start and size of each instance that exists."""
        return {one.placement.start: one.placement.size for one in self.maker.instances.values()}


def allocation(
    start: int, kind: MigProfile = SMALL, *, container: int = 0, device: int = 0, gpu: str = GPU_A
) -> MigAllocation:
    size = kind.placements[0].size
    return MigAllocation(
        container_index=container,
        device_index=device,
        gpu_uuid=gpu,
        profile=kind.name,
        placement=MigPlacement(start, size),
    )


def mig_pod(name: str, *allocations: MigAllocation, containers: tuple[Container, ...] = ()) -> Pod:
    """A pod for which the scheduler of HAMi 2.10 decided this."""
    count = max(one.container_index for one in allocations) + 1
    slots = ["" for _ in range(count)]
    for one in allocations:
        slots[one.container_index] += f"{one.gpu_uuid},NVIDIA,4864,14:"
    made = containers or tuple(
        container(f"c{place}", slot.count(":")) for place, slot in enumerate(slots)
    )
    return pod(
        name,
        "".join(f"{slot};" for slot in slots),
        *made,
        annotations={MIG_ALLOCATIONS: encode_allocations(allocations)},
    )
