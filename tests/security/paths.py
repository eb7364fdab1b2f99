"""Every path that the agent writes: how it is written, and where a link could be put in its way."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from made_regions import OURS, MadeSlot, made

from agent.adapters.caches import HostCaches
from agent.adapters.cdi_files import HostCdiFiles
from agent.adapters.factor_file import FactorFile
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.hook_files import HostHookFiles, install_hook, offer_plain_name
from agent.adapters.instance_lock import InstanceLock, LockUnavailable
from agent.adapters.limit_records import LimitRecords
from agent.adapters.listeners import EndpointUnavailable
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.local_sockets import RuntimeDirectory, control_listener
from agent.adapters.mig_files import HamiApplyLock, MigBookFile
from agent.adapters.region_switches import HostRegionSwitches
from agent.adapters.regions import HostRegions
from agent.adapters.totals_file import TotalsFile
from agent.domain.cdi import CdiSpec, Edits
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.limit_record import LimitRecord, SetLimit
from agent.domain.limits_file import DeviceLimit, LimitsFile, encode
from agent.domain.new_region import new_region
from agent.domain.region_slots import HostPid, Slot
from agent.domain.totals import EMPTY

UID, CONTAINER = "0b0e0f10-0000-4000-8000-000000000001", "main"
SLOT = Slot(index=0, pid=7, host_pid=0, pid_namespace=0, start_time=0)
NAME = f"{UID}_{CONTAINER}"
GPU = "GPU-a1000000-0000-4000-8000-0000000000b2"
LIMITS = LimitsFile(devices=(DeviceLimit(uuid=GPU, memory_limit_bytes=1 << 30, core_permille=300),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Paths of one kind, what writes them, and what a bait has to be to be believed."""

    paths: Sequence[Path]
    act: Callable[[], None]
    like: bytes = b"untouched"
    end: Callable[[], None] = lambda: None


def a_host(root: Path) -> tuple[Path, HostCaches]:
    host = root / "vgpu"
    host.mkdir(mode=0o755)
    (host / "libvgpu.so").write_bytes(b"hook")
    return host, HostCaches(host, lock_dir=host / "vgpulock")


def of_containers(root: Path) -> Written:
    host, ours = a_host(root)

    def act() -> None:
        ours.prepare()
        ours.create(UID, CONTAINER)
        ours.write_limits(UID, CONTAINER, os.urandom(32))
        ours.make_region(UID, CONTAINER, "a.cache", new_region(LIMITS, region_id=7, now_s=1))
        ours.seen_region(UID, CONTAINER, "a.cache")
        ours.listed()

    act()
    own = host / "containers" / NAME
    return Written(
        paths=[host / "containers", own, own / "a.cache", host / "limits", host / "limits" / NAME,
               host / "vgpulock", host / "ld.so.preload"],
        act=act,
    )  # fmt: skip


def of_deletion(root: Path) -> Written:
    host, ours = a_host(root)

    def act() -> None:
        ours.create(UID, CONTAINER)
        ours.write_limits(UID, CONTAINER, b"x" * 64)
        ours.discard(NAME)

    ours.create(UID, CONTAINER)
    (inside := host / "containers" / NAME / "a" / "b").mkdir(parents=True)
    return Written(paths=[host / "containers", inside.parents[1], inside.parent], act=act)


def of_the_library(root: Path) -> Written:
    host, source = root / "vgpu", root / "source.so"
    source.write_bytes(b"the library")
    library = install_hook(source, host, "1.0")
    files = HostHookFiles(host, Path("/proc"))

    def act() -> None:
        source.write_bytes(os.urandom(20))
        install_hook(source, host, "1.0")
        offer_plain_name(install_hook(source, host, "1.0"), replace=True)
        for file in files.listed().files:
            files.delete(file)
        source.write_bytes(b"the library")
        install_hook(source, host, "1.0")

    offer_plain_name(library, replace=True)
    return Written(paths=[library, host / "libvgpu.so"], act=act)


def a_record(number: float = 1.0) -> GrantRecord:
    return GrantRecord(
        pod_uid=UID, namespace="n", pod_name="p", container=CONTAINER, device_ids=("a-0",),
        claims=(Claim(GPU, "NVIDIA", 1000, 30),), grant=Grant(), granted_at_s=number,
    )  # fmt: skip


def of_grants(root: Path) -> Written:
    state = root / "state"
    log = FileGrantLog(state)

    def act() -> None:
        log.record(a_record())
        log.answered(a_record())
        FileGrantLog(state).sweep()
        log.drop(a_record())
        log.record(a_record())

    act()
    journal = state / "grants" / f"{UID}.jsonl"
    return Written(paths=[journal, state / "grants"], act=act, like=journal.read_bytes() + b'{"cut')


def of_limit_records(root: Path) -> Written:
    records = LimitRecords(root / "state")
    limit = SetLimit(uuid=GPU, memory_limit_bytes=5, core_permille=5)

    def act() -> None:
        records.write(UID, CONTAINER, LimitRecord(limits=(limit,)))
        records.read(UID, CONTAINER)
        records.forget(UID, CONTAINER)
        records.write(UID, CONTAINER, LimitRecord())

    act()
    (file,) = records.folder.iterdir()
    return Written(paths=[file, records.folder], act=act)


def of_small_files(root: Path) -> Written:
    state = root / "state"
    totals, factor, book = TotalsFile(state), FactorFile(state), MigBookFile(state)

    def act() -> None:
        totals.save(EMPTY)
        factor.save(7)
        book.save(())
        totals.load()

    act()
    return Written(
        paths=[state, *(state / name for name in ("totals.json", "gpu-memory-factor", "mig.json"))],
        act=act,
    )


def of_cdi(root: Path) -> Written:
    files = HostCdiFiles(root / "cdi")
    specs = [
        CdiSpec(class_name="gpu", devices={"a": Edits(envs={"A": str(number)})})
        for number in range(2)
    ]

    def act() -> None:
        for spec in specs:
            files.write(spec)
        for name in files.ours():
            files.remove(name)
        files.write(specs[0])

    act()
    return Written(paths=[root / "cdi", root / "cdi" / specs[0].file_name], act=act)


def of_hamis_lock(root: Path) -> Written:
    path = root / "hami" / "lock"
    lock = HamiApplyLock(path)

    def act() -> None:
        with lock.held():
            lock.holder()

    act()
    return Written(paths=[path.parent], act=act, like=b"vgpu-agent\n")


def of_the_instance(root: Path) -> Written:
    lock = InstanceLock(root / "state")

    def act() -> None:
        with suppress(LockUnavailable):
            lock.try_acquire()
        lock.release()

    act()
    return Written(paths=[lock.path], act=act)


def of_sockets(root: Path) -> Written:
    listener = control_listener(RuntimeDirectory(root / "run"))

    def act() -> None:
        with suppress(EndpointUnavailable):
            listener.open().close()
            listener.closed()

    listener.open().close()
    return Written(paths=[root / "run" / "control.sock", root / "run"], act=act)


def of_regions(root: Path) -> Written:
    host, ours = a_host(root)
    file = ours.create(UID, CONTAINER) / "a.cache"
    good = bytes(made(OURS, [MadeSlot(pid=7)]))
    file.write_bytes(good)
    regions, switches = HostRegions(host), HostRegionSwitches(host)

    def act() -> None:
        for slot in regions.look(UID, CONTAINER, "a.cache").slots or (SLOT,):
            regions.tell(UID, CONTAINER, "a.cache", [HostPid(slot, 4711)])
        switches.refresh()
        switches.put((UID, CONTAINER), recent_kernel=-1, switch=0)

    return Written(paths=[file.parent, file], act=act, like=good, end=switches.close)


def of_live_limits(root: Path) -> Written:
    host, ours = a_host(root)
    good = encode(LIMITS)
    file = ours.write_limits(UID, CONTAINER, good)
    live = HostLiveLimits(host, root / "state")

    def act() -> None:
        for permille in (200, 300):
            line = replace(LIMITS.devices[0], core_permille=permille)
            live.change(UID, CONTAINER, lambda now, line=line: replace(now, devices=(line,)))
            live.lease(UID, CONTAINER, {0: (1, 2, 3)})

    return Written(paths=[host / "limits", file], act=act, like=good, end=live._drop_all)


# By kind of path, with the adapters of which it runs everything that writes.
WRITTEN: Mapping[str, tuple[Callable[[Path], Written], tuple[str, ...]]] = {
    "containers": (of_containers, ("caches.py", "safe_files.py")),
    "deletion": (of_deletion, ("caches.py", "safe_files.py")),
    "the library": (of_the_library, ("hook_files.py",)),
    "grants": (of_grants, ("grant_log.py",)),
    "limit records": (of_limit_records, ("limit_records.py",)),
    "small files": (of_small_files, ("totals_file.py", "factor_file.py", "mig_files.py")),
    "CDI files": (of_cdi, ("cdi_files.py",)),
    "HAMi's lock": (of_hamis_lock, ("mig_files.py",)),
    "the instance's lock": (of_the_instance, ("instance_lock.py",)),
    "local sockets": (of_sockets, ("local_sockets.py",)),
    "regions": (of_regions, ("regions.py", "region_switches.py")),
    "live limits": (of_live_limits, ("live_limits.py", "mapped_limits.py")),
}
ELSEWHERE = {
    "kubelet.py": "test_kubelets_directory_leads_nowhere",
    "block_guardian.py": "writes to descriptors that region_switches.py has opened",
    "mps.py": "makes NVIDIA's own directories before it starts NVIDIA's own daemon",
}
