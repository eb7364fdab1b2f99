"""A container by a real runtime, made of nothing but what Allocate returned.

The agent is the real process, the container is runc's with namespaces of its own, and the library
gets in through `/etc/ld.so.preload`. Simulated is the driver alone.
"""

import itertools
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tenant_rootfs
from built_hook import ROOT, built, sim_libraries
from pod_cgroups import every_hierarchy_is_ours, remove_from_every_hierarchy
from tenant_rootfs import DRIVER, TENANT, libc_directory

from agent.sim.container import Container
from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask, SimNode
from tests.peers.container_tools import ContainerTools, PeersUnavailable, container_tools
from tests.peers.runc import BindMount, Bundle, Runc, place, unusable
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("runc")]  # packages are fetched

MIB = 1000
LIMITS, PRELOAD = "/etc/vgpu.limits", "/etc/ld.so.preload"
LIBRARY = "/usr/local/vgpu/libvgpu.so"
NUMBERS = itertools.count()
UNHARMED = """
long write(int file, const void *bytes, unsigned long count);
int main(void)
{
    return write(1, "unharmed\\n", 9) != 9;
}
"""


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A short path: unix sockets live in it."""
    path = Path(tempfile.mkdtemp(prefix="vgpu-runc-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def tools(scratch: Path) -> ContainerTools:
    try:
        found = container_tools()
    except PeersUnavailable as error:
        pytest.skip(f"no runc: {error}")
    if why := unusable(found, scratch):
        pytest.skip(f"runc cannot run containers here: {why}")
    return found


@dataclass(frozen=True)
class Pod:
    """A container that kubelet admitted: its bundle, and how to run it."""

    runc: Runc
    bundle: Bundle
    limits: Path  # on the host
    library: Path  # on the host
    config: str  # of the simulated driver, in the container as on the host
    node: SimNode
    region: Path  # on the host

    def ask(self, name: str, *words: str, stdin: str, user: str = "0:0") -> list[dict[str, Any]]:
        """Run a tenant beside the container's main process; give its answers."""
        done = self.runc.execute(name, *words, stdin=stdin, user=user)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def pod(tools: ContainerTools, scratch: Path) -> Iterator[Pod]:
    """A pod with one container of 1000 MiB on one of two GPUs."""
    built()
    (scratch / "node").mkdir()
    with SimNode(scratch / "node", [sys.executable, str(ROOT / "agent.py")]) as node:
        for number in range(2):
            node.driver.add_gpu(number, SimGpu(uuid=made_up_uuid(number)))
        node.start_agent("--process-interval", "0.2s")
        node.wait("registration", lambda: node.allocatable() > 0)
        node.wait("readiness", node.ready)
        ran = node.run_pod("pod", [Ask(memory_mib=MIB, core_percent=50)])
        admitted = ran.admitted
        assert admitted.ok, admitted.message
        grant = admitted.containers["main"]
        mounts = [
            BindMount(destination=m.container_path, source=m.host_path, read_only=m.read_only)
            for m in (*grant.mounts, *grant.devices)
        ]
        config = node.driver.config_path
        driver = [  # the part of NVIDIA's toolkit
            BindMount(destination=str(libc_directory() / name), source=str(sim_libraries() / name))
            for name in DRIVER
        ]
        state = BindMount(
            destination=str(config.parent), source=str(config.parent), read_only=False
        )
        cgroup = f"/vgpu-test-{os.getpid()}/pod{ran.uid}/{'ab' * 32}"
        bundle = Bundle(
            scratch / "bundle",
            args=(TENANT,),
            env={"PATH": "/usr/bin:/bin", "VGPU_SIM_DRIVER": str(config), **grant.env},
            mounts=(*mounts, *driver, state),
            cgroup=cgroup if every_hierarchy_is_ours() else "",
        )
        make_rootfs(bundle.directory / "rootfs", tools)
        (limits,) = (Path(m.source) for m in mounts if m.destination == LIMITS)
        (library,) = (Path(m.source) for m in mounts if m.destination == LIBRARY)
        (own,) = (Path(m.source) for m in mounts if m.destination == "/usr/local/vgpu")
        region = own / Path(grant.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).name
        yield Pod(
            Runc(tools, scratch / "state"), bundle, limits, library, str(config), node, region
        )
        remove_from_every_hierarchy(Path(cgroup))


def make_rootfs(rootfs: Path, tools: ContainerTools) -> None:
    """What a workload needs; and programs that have nothing to do with glibc."""
    tenant_rootfs.make_rootfs(rootfs, tools)
    place(rootfs, tools.musl, f"/lib/{tools.musl_loader_name}")
    compile_for_musl(rootfs, tools)


def compile_for_musl(rootfs: Path, tools: ContainerTools) -> None:
    """One program twice. The dynamic one is linked against a stand-in, as musl has no soname."""
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{platform.machine()}-linux-musl"]
    zig += ["-nostdlib", "-fno-builtin", "-w"]
    source, stub, libc = (rootfs / name for name in ("unharmed.c", "stub.c", "libc.so"))
    source.write_text(UNHARMED)
    stub.write_text("void write(void) {}\nvoid __libc_start_main(void) {}\n")
    loader = f"-Wl,-dynamic-linker,/lib/{tools.musl_loader_name}"
    programs = rootfs / "usr" / "bin"
    for command in (
        [*zig, "-shared", "-Wl,-soname,libc.so", stub, "-o", libc],
        [*zig, source, loader, *tools.musl_objects(), libc, "-o", programs / "dynamic-musl"],
        [*zig, source, *tools.musl_objects("libc.a"), "-o", programs / "static-musl"],
    ):
        subprocess.run([str(word) for word in command], check=True)


Start = Callable[[], tuple[str, Container]]


@pytest.fixture
def start(pod: Pod) -> Iterator[Start]:
    """Start the pod's container, as kubelet does anew after each end; its name, and its tenant."""
    started: list[tuple[str, Container]] = []

    def start_one() -> tuple[str, Container]:
        name = f"vgpu-{os.getpid()}-{next(NUMBERS)}"
        tenant = Container(name, pod.runc.start(pod.bundle, name), isolated=True)
        started.append((name, tenant))
        assert tenant._read_answer("starting").ok
        return name, tenant

    yield start_one
    for name, tenant in started:
        pod.runc.delete(name)
        tenant.stop()


def test_the_share_is_what_was_granted_and_no_more(start: Start) -> None:
    _, tenant = start()
    (gpu,) = tenant.ask("info").devices
    assert (gpu.total_mib, gpu.total_mem_mib, gpu.free_mib) == (MIB, MIB, MIB)
    assert tenant.ask("alloc 750").ok
    assert tenant.ask("alloc 251").result == 2, "CUDA_ERROR_OUT_OF_MEMORY"
    assert tenant.ask("alloc 250").ok


def test_a_process_whose_environment_was_cleared_is_limited_all_the_same(
    pod: Pod, start: Start
) -> None:
    name, tenant = start()
    assert tenant.ask("alloc 600").ok
    cleared = ["/bin/busybox", "env", "-i", f"VGPU_SIM_DRIVER={pod.config}", TENANT]
    _, info, too_much, rest = pod.ask(name, *cleared, stdin="info\nalloc 401\nalloc 400\n")
    assert [(gpu["total_mib"], gpu["free_mib"]) for gpu in info["devices"]][:1] == [(MIB, 400)]
    assert (too_much["result"], rest["result"]) == (2, 0)


def test_a_second_process_shares_the_budget_and_leaves_it_when_it_is_killed(
    pod: Pod, start: Start
) -> None:
    name, tenant = start()
    assert tenant.ask("alloc 300").ok
    second = Container(name, pod.runc.start_another(name, TENANT), isolated=True)
    inside = json.loads(second._read_line("starting", time.monotonic() + 10))["pid"]
    assert second.ask("alloc 700").ok
    assert tenant.ask("alloc 1").result == 2
    killed = pod.runc.execute(name, "/bin/busybox", "kill", "-9", str(inside))
    assert killed.returncode == 0, killed.stderr
    second.stop()
    assert eventually(lambda: tenant.ask("alloc 700").ok, what="the memory of the dead is free")


def test_the_agent_finds_it_by_cgroup_and_mounts_and_tells_it_its_pid(
    pod: Pod, start: Start
) -> None:
    if not pod.bundle.cgroup:
        pytest.skip("no cgroups can be made here")
    _, tenant = start()
    assert tenant.ask("alloc 100").ok

    def told() -> bool:
        """Whether some slot of a process 1 has the pid of a tenant that is 1 in its namespace."""
        content = pod.region.read_bytes()
        pids = [struct.unpack_from("<ii", content, 1856 + 1960 * n) for n in range(8)]
        return any(inside == 1 and is_tenant(outside) for inside, outside in pids)

    eventually(told)
    enforced = 'vgpu_container_enforced{container="main",namespace="team",pod="pod",reason=""} 1.0'
    eventually(lambda: enforced in pod.node.fetch("/metrics")[1])


FIRST_USER = 1 << 20


@pytest.fixture(scope="module")
def strangers(pod: Pod, scratch: Path) -> Pod:
    """The same container, whose users are none of the host's: it finds all of ours as nobody's."""
    scratch.chmod(0o755)
    own = shutil.copytree(pod.bundle.directory, scratch / "strangers", symlinks=True)
    for path in (own / "rootfs", *(own / "rootfs").rglob("*")):
        os.lchown(path, FIRST_USER, FIRST_USER)
    state = Path(pod.config).parent
    state.chmod(0o777)  # a real driver is there for every user
    for path in state.iterdir():
        path.chmod(0o666)
    return replace(pod, bundle=replace(pod.bundle, directory=own, users_from=FIRST_USER))


@pytest.mark.parametrize("user", ["0:0", "1000:3000", "65534:65534"])
def test_in_a_user_namespace_the_share_is_the_same(strangers: Pod, user: str) -> None:
    name = f"vgpu-{os.getpid()}-{next(NUMBERS)}"
    tenant = Container(name, strangers.runc.start(strangers.bundle, name), isolated=True)
    try:
        ready = tenant._read_answer("starting")
        assert ready.ok, ready.error
        owned = strangers.runc.execute(name, "/bin/busybox", "stat", "-c", "%u", LIMITS, LIBRARY)
        assert owned.stdout.split() == ["65534", "65534"], owned.stderr
        assert tenant.ask("alloc 600").ok
        *_, too_much, rest = strangers.ask(name, TENANT, stdin="alloc 401\nalloc 400\n", user=user)
        assert (too_much["result"], rest["result"]) == (2, 0)
        if strangers.bundle.cgroup:
            enforced = (
                'vgpu_container_enforced{container="main",namespace="team",pod="pod",reason=""} 1.0'
            )
            eventually(lambda: enforced in strangers.node.fetch("/metrics")[1])
    finally:
        strangers.runc.delete(name)
        tenant.stop()


def is_tenant(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "Name:\tsim-tenant" in status and f"NSpid:\t{pid}\t1\n" in status


@pytest.mark.parametrize("path", [LIMITS, PRELOAD, LIBRARY])
@pytest.mark.parametrize(
    "attempt",
    [
        pytest.param("echo x > {path}", id="write"),
        pytest.param("rm -f {path}", id="delete"),
        pytest.param("mv {path} /tmp/away", id="move"),
        pytest.param("touch /new && mv /new {path}", id="replace"),
        pytest.param("umount {path}", id="unmount"),
        pytest.param("mount -o remount,rw,bind {path}", id="remount"),
    ],
)
def test_nothing_inside_can_change_the_limits(
    pod: Pod, start: Start, attempt: str, path: str
) -> None:
    name, _ = start()
    before = pod.limits.read_bytes(), pod.library.read_bytes()
    command = f"mkdir -p /tmp; {attempt.format(path=path)}"
    shell = pod.runc.execute(name, "/bin/busybox", "sh", "-c", command)
    assert shell.returncode != 0
    assert (pod.limits.read_bytes(), pod.library.read_bytes()) == before
    _, info = pod.ask(name, TENANT, stdin="info\n")
    assert info["devices"][0]["total_mib"] == MIB


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["/bin/busybox", "echo", "unharmed"], id="static glibc"),
        pytest.param(["/usr/bin/static-musl"], id="static musl"),
        pytest.param(["/usr/bin/dynamic-musl"], id="dynamic musl"),
    ],
)
def test_programs_that_no_library_can_be_loaded_into_run_unharmed(
    pod: Pod, start: Start, words: list[str]
) -> None:
    name, _ = start()
    done = pod.runc.execute(name, *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "unharmed\n", "")
