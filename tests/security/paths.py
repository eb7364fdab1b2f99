"""Every path that the agent writes: how it is written, and where a link could be put in its way."""

import os
import time
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
from agent.adapters.local_sockets import RuntimeDirectory, control_listener, read_listener
from agent.adapters.mig_files import HamiApplyLock, MigBookFile
from agent.adapters.mps import PROGRAM, HostMps
from agent.adapters.region_switches import HostRegionSwitches
from agent.adapters.regions import HostRegions
from agent.adapters.safe_files import opened_directory, remove_unfinished
from agent.adapters.totals_file import TotalsFile
from agent.domain.cdi import CdiSpec, Edits
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.limit_record import LimitRecord, SetLimit
from agent.domain.limits_file import DeviceLimit, LimitsFile, encode
from agent.domain.mps import MpsPlan
from agent.domain.new_region import new_region
from agent.domain.region_slots import HostPid, Slot
from agent.domain.retention import ASIDE_S
from agent.domain.totals import EMPTY

UID, CONTAINER = "0b0e0f10-0000-4000-8000-000000000001", "main"
OURS_OF_BEFORE = b"vgpu-agent\n"
UNFINISHED = ".totals.json.1.0123abcd"
BROKEN, CUT_SHORT, LONG_GONE = (UID[:-1] + digit for digit in "234")
SLOT = Slot(index=0, pid=7, host_pid=0, pid_namespace=0, start_time=0)
NAME = f"{UID}_{CONTAINER}"
GPU = "GPU-a1000000-0000-4000-8000-0000000000b2"
LIMITS = LimitsFile(devices=(DeviceLimit(uuid=GPU, memory_limit_bytes=1 << 30, core_permille=300),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Paths of one kind, what writes them, and what a bait has to be to be believed.

    `followed`: directories that may be their administrator's links, and so are not tried.
    """

    paths: Sequence[Path]
    act: Callable[[], None]
    like: bytes = b"untouched"
    followed: Sequence[Path] = ()
    end: Callable[[], None] = lambda: None


def left(folder: Path, name: str, content: bytes) -> None:
    """Leave a file there, as a crash or somebody else does; the test follows no link itself."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with suppress(OSError), opened_directory(folder) as directory:
        fd = os.open(name, flags, 0o600, dir_fd=directory)
        os.write(fd, content)
        os.close(fd)


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
        left(host / "limits", f".{NAME}.1.0123abcd", b"")
        remove_unfinished(host / "limits")

    act()
    own = host / "containers" / NAME
    return Written(
        paths=[host / "containers", own, own / "a.cache", host / "limits", host / "limits" / NAME,
               host / "exchanged", host / "vgpulock", host / "ld.so.preload"],
        act=act,
    )  # fmt: skip


def of_deletion(root: Path) -> Written:
    host, ours = a_host(root)

    own = host / "containers" / NAME

    def act() -> None:
        ours.create(UID, CONTAINER)
        for content in (b"x" * 64, b"y" * 64):
            ours.write_limits(UID, CONTAINER, content)
        with suppress(OSError):  # as its tenant leaves it; and no link is followed by the test
            (root / "a" / "b").mkdir(parents=True, exist_ok=True)
            with (
                opened_directory(own.parent) as parent,
                opened_directory(NAME, dir_fd=parent) as fd,
            ):
                os.rename(root / "a", "a", dst_dir_fd=fd)
        ours.discard(NAME)

    ours.create(UID, CONTAINER)
    for content in (b"x" * 64, b"y" * 64):
        ours.write_limits(UID, CONTAINER, content)
    (own / "a" / "b").mkdir(parents=True)
    return Written(
        paths=[own.parent, own, own / "a", own / "a" / "b", host / "limits",
               host / "limits" / NAME, host / "exchanged"],
        act=act,
    )  # fmt: skip


def of_the_library(root: Path) -> Written:
    host, source = root / "vgpu", root / "source.so"
    source.write_bytes(b"the library")
    library = install_hook(source, host, "1.0")
    files = HostHookFiles(host, Path("/proc"))

    def act() -> None:
        source.write_bytes(b"another library")
        install_hook(source, host, "1.0")
        offer_plain_name(install_hook(source, host, "1.0"), replace=True)
        for file in files.listed().files:
            files.delete(file)
        source.write_bytes(b"the library")
        install_hook(source, host, "1.0")

    offer_plain_name(library, replace=True)
    source.write_bytes(b"another library")
    another = install_hook(source, host, "1.0")
    return Written(paths=[host, library, another, host / "libvgpu.so"], act=act)


def a_record(number: float = 1.0) -> GrantRecord:
    return GrantRecord(
        pod_uid=UID, namespace="n", pod_name="p", container=CONTAINER, device_ids=("a-0",),
        claims=(Claim(GPU, "NVIDIA", 1000, 30),), grant=Grant(), granted_at_s=number,
    )  # fmt: skip


def of_grants(root: Path) -> Written:
    state, folder = root / "state", root / "state" / "grants"
    log = FileGrantLog(state)

    def act() -> None:
        left(folder, f"{BROKEN}.jsonl", b"no journal\n")
        left(folder, f"{CUT_SHORT}.jsonl", b'{"cut')
        left(folder, f"{UID}.jsonl.corrupt", b"no journal\n")
        left(folder, f"{LONG_GONE}.jsonl.corrupt", b"no journal\n")
        log.record(a_record())
        log.answered(a_record())
        log.record(replace(a_record(), pod_uid=CUT_SHORT))
        FileGrantLog(state).sweep()
        log.forget(frozenset({CUT_SHORT}))
        log.tidy({UID, BROKEN}, now_s=time.time() + 2 * ASIDE_S)
        log.drop(a_record())
        log.record(a_record())

    act()
    journal, *others = (folder / f"{uid}.jsonl" for uid in (UID, BROKEN, CUT_SHORT))
    aside = [folder / f"{uid}.jsonl.corrupt" for uid in (UID, BROKEN, CUT_SHORT, LONG_GONE)]
    for path in (*others, *aside):
        path.touch()
    return Written(
        paths=[journal, folder, *others, *aside],
        followed=(state,),
        act=act,
        like=journal.read_bytes() + b'{"cut',
    )


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
    return Written(paths=[file, records.folder], act=act, followed=(records.folder.parent,))


def of_small_files(root: Path) -> Written:
    state = root / "state"
    totals, factor, book = TotalsFile(state), FactorFile(state), MigBookFile(state)

    def act() -> None:
        left(state, UNFINISHED, b"{")
        totals.save(EMPTY)
        factor.save(7)
        book.save(())
        totals.load()

    act()
    names = ("totals.json", "gpu-memory-factor", "mig.json", UNFINISHED)
    (state / UNFINISHED).touch()
    return Written(paths=[state, *(state / name for name in names)], act=act)


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
        left(path.parent, path.name, OURS_OF_BEFORE)
        lock.tidy()
        left(path.parent, path.name, OURS_OF_BEFORE)
        with lock.held():
            lock.holder()

    act()
    path.write_bytes(OURS_OF_BEFORE)
    return Written(paths=[path.parent, path], act=act, like=OURS_OF_BEFORE)


def of_the_instance(root: Path) -> Written:
    lock = InstanceLock(root / "state")

    def act() -> None:
        with suppress(LockUnavailable):
            lock.try_acquire()
        lock.release()

    act()
    return Written(paths=[lock.path], act=act, followed=(lock.path.parent,))


def of_sockets(root: Path) -> Written:
    run = RuntimeDirectory(root / "run")
    listeners = (control_listener(run), read_listener(run, str(os.getegid())))

    def act() -> None:
        for listener in listeners:
            with suppress(EndpointUnavailable):
                listener.open().close()
        for listener in listeners:
            listener.closed()

    for listener in listeners:
        listener.open().close()
    names = ("control.sock", "read.sock", "agent.lock")
    return Written(
        paths=[run.path, *(run.path / name for name in names)], act=act, followed=(root,)
    )


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
    beside = host / "exchanged"

    def act() -> None:
        for permille in (200, 300):
            line = replace(LIMITS.devices[0], core_permille=permille)
            live.change(UID, CONTAINER, lambda now, line=line: replace(now, devices=(line,)))
            live.lease(UID, CONTAINER, {0: (1, 2, 3)})
        with suppress(OSError):  # as an agent leaves it that is killed
            beside.mkdir(exist_ok=True)
            (beside / f"{NAME}.{file.lstat().st_ino}").hardlink_to(file)
        live.mend()

    act()
    folder = root / "state" / "limits"
    return Written(
        paths=[host / "limits", file, folder, folder / f"{NAME}.json"],
        followed=(folder.parent,),
        act=act,
        like=good,
        end=live._drop_all,
    )


def of_mps(root: Path) -> Written:
    """Without GPUs, and with a program that only lives and dies in the place of NVIDIA's."""
    (root / "bin").mkdir()
    program = root / "bin" / PROGRAM
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    place = root / "mps"
    mps = HostMps(place, path=str(root / "bin"), shared_memory=place / "shm")
    plan = MpsPlan(resource="nvidia.com/gpu", uuids=())

    def act() -> None:
        mps.obstacle()
        mps.start(plan)
        for known in (*mps.started(), plan):
            mps.retire(known)
        mps.start(plan)

    act()
    own = place / plan.resource
    return Written(
        paths=[
            place,
            place / "shm",
            own.parent,
            own,
            own / "pipe",
            own / "log",
            own / "gpus",
            own / "numbered",
        ],
        act=act,
    )


# By kind of path: what makes it. That none is left out: test_paths.py.
WRITTEN: Mapping[str, Callable[[Path], Written]] = {
    "containers": of_containers,
    "deletion": of_deletion,
    "the library": of_the_library,
    "grants": of_grants,
    "limit records": of_limit_records,
    "small files": of_small_files,
    "CDI files": of_cdi,
    "HAMi's lock": of_hamis_lock,
    "the instance's lock": of_the_instance,
    "local sockets": of_sockets,
    "regions": of_regions,
    "MPS": of_mps,
    "live limits": of_live_limits,
}
# Functions that write, and that none of these calls.
ELSEWHERE = {
    "adapters/kubelet.py:sweep": "test_kubelets_directory_leads_nowhere",
    "adapters/kubelet.py:close": "test_kubelets_directory_leads_nowhere",
    "adapters/listeners.py:_bound": "a TCP port is no path",
    "cli.py:_drop_output": "opens /dev/null",
    "adapters/embedded_files.py:_file_with": "a file in memory has no path",
    "doctor/hook.py:_folder": "in a directory of its own, whose name nobody can guess",
    "adapters/own_devices.py:devices_taken": "opens the driver's device as NVML does, writes nothing",
    "shipped.py:unpack": "test_files_are_unpacked_to_no_other_place",
}
