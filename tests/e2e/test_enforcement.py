"""The agent as a process looks at real processes of a pod: real cgroups, real pid namespaces."""

import os
import platform
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fake_proc import FakeProc
from pod_cgroups import CgroupsUnavailable, PodCgroup, host_pid_of, pod_cgroup

from agent.sim.container import Container, SimMount, _runtime_command, namespaces_allowed
from agent.sim.node import Ask, RanPod, SimNode
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import finished
from tests.waiting import eventually

SLOT_AT, SLOT_BYTES = 1856, 1960
OPENS_A_GPU = """
#include <fcntl.h>
#include <unistd.h>
int main(int count, char **words) {
    return count < 2 || open(words[1], O_RDWR) < 0 || write(1, "open\\n", 5) < 0 || read(0, &count, 1) < 0;
}
"""


# The same by another thread: the first one has ended, so that /proc has the process as a zombie.
OPENS_A_GPU_LATER = """
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void *work(void *device) {
    char text[256] = "";
    while (!strstr(text, ") Z ")) {
        int file = open("/proc/self/stat", O_RDONLY);
        read(file, text, sizeof text - 1);
        close(file);
        usleep(1000);
    }
    if (open(device, O_RDWR) >= 0 && write(1, "open\\n", 5) == 5) read(0, text, 1);
    _exit(0);
}
int main(int count, char **words) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, words[count - 1]);
    pthread_exit(NULL);
}
"""


# The same of no libc at all: a static one would be compiled first, for minutes.
STATIC = """
#if defined(__x86_64__)
enum { OPENAT = 257, READ = 0, WRITE = 1, EXIT = 60 };
__asm__(".globl _start\\n_start: mov %rsp, %rdi\\n and $-16, %rsp\\n call begin");
static long call(long number, long first, long second, long third) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
    return result;
}
#else
enum { OPENAT = 56, READ = 63, WRITE = 64, EXIT = 93 };
__asm__(".globl _start\\n_start: mov x0, sp\\n bl begin");
static long call(long number, long first, long second, long third) {
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = first;
    register long x1 __asm__("x1") = second, x2 __asm__("x2") = third;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
#endif
void begin(long *stack) {
    char byte;
    long failed = stack[0] < 2 || call(OPENAT, -100, stack[2], 2) < 0 ||
                  call(WRITE, 1, (long)"open\\n", 5) < 0 || call(READ, 0, (long)&byte, 1) < 0;
    call(EXIT, failed, 0, 0);
}
"""


def compiled(out: Path, text: str, target: str, *flags: str) -> Path:
    source = out.with_suffix(".c")
    source.write_text(text)
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{platform.machine()}-{target}"]
    subprocess.run([*zig, "-O1", str(source), "-o", str(out), *flags], check=True, timeout=250)
    return out


class Pod:
    """A pod with one granted container, and a cgroup for it."""

    def __init__(
        self,
        node: SimNode,
        stack: ExitStack,
        ask: Ask = Ask(memory_mib=1000),  # noqa: B008 - frozen
    ) -> None:
        self.node = node
        self.ran: RanPod = node.run_pod("pod", [ask])
        assert self.ran.admitted.ok, self.ran.admitted.message
        eventually(lambda: finished(node, self.ran))
        self.grant = self.ran.admitted.containers["main"]
        self.cgroup: PodCgroup = stack.enter_context(pod_cgroup(self.ran.uid))
        self.stack = stack

    @property
    def region(self) -> Path:
        name = Path(self.grant.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).name
        return self.node.root / "host" / "vgpu" / "containers" / f"{self.ran.uid}_main" / name

    def slot(self, index: int = 0) -> tuple[int, int]:
        """Pid and host pid."""
        with self.region.open("rb") as file:
            file.seek(SLOT_AT + SLOT_BYTES * index)
            pid, host_pid = struct.unpack("<ii", file.read(8))
            return pid, host_pid

    def tell(self, host_pid: int) -> None:
        """Write into the first slot, as any process of the container can."""
        with self.region.open("r+b") as file:
            file.seek(SLOT_AT + 4)
            file.write(struct.pack("<i", host_pid))

    def tenant(self) -> Container:
        """A workload with root file system, mounts, cgroup and pids of its own."""
        driver = self.node.driver
        mounts = [SimMount(m.container_path, m.host_path, m.read_only) for m in self.grant.mounts]
        own = [
            SimMount(str(driver.libraries), str(driver.libraries)),
            SimMount(*(str(driver.config_path.parent),) * 2, read_only=False),
        ]
        words = _runtime_command(
            driver.libraries / "sim-container",
            {"PATH": "/usr/bin:/bin", **driver.environment(), **self.grant.env},
            [*own, *mounts],
            [str(driver.libraries / "sim-tenant")],
        )
        process = self.started(*words, own_pids=True)
        tenant = Container("tenant", process, isolated=True)
        assert tenant._read_answer("starting").ok
        return tenant

    def started(self, *words: str | Path, own_pids: bool = False) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            self.cgroup.command(*words, own_pids=own_pids),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.stack.callback(end, process)
        return process

    def metric(self) -> str:
        """Reason and value."""
        for line in self.node.fetch("/metrics")[1].splitlines():
            if line.startswith("vgpu_container_enforced{"):
                labels, _, value = line.partition("} ")
                assert 'container="main",namespace="team",pod="pod"' in labels
                return labels.rpartition('reason="')[2].rstrip('"') + f" {value}"
        return ""

    def events(self) -> list[dict[str, Any]]:
        return [e for e in self.node.events() if e["reason"] == "VgpuLimitsNotEnforced"]


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait(10)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@pytest.fixture
def pod(make_node: NodeMaker) -> Iterator[Pod]:
    node = make_node("--process-interval", "0.2s", "--allocate-budget", "10s", gpus=1)
    with ExitStack() as stack:
        try:
            yield Pod(node, stack)
        except CgroupsUnavailable as error:
            pytest.skip(str(error))


@pytest.fixture
def own_pids(pod: Pod) -> Pod:
    """A pod whose workloads have a root file system and pids of their own."""
    if not namespaces_allowed(pod.node.driver.libraries / "sim-container"):
        pytest.skip("this user may not make namespaces here")
    return pod


def test_a_process_learns_its_pid_on_the_node(own_pids: Pod) -> None:
    pod = own_pids
    eventually(lambda: pod.metric() == "idle 1.0")
    tenant = pod.tenant()
    assert tenant.ask("alloc 100").ok
    eventually(lambda: pod.slot()[1] != 0, what="the slot has a host pid")
    inside, outside = pod.slot()
    assert outside == host_pid_of(inside, pod.cgroup.pids()) != inside
    eventually(lambda: pod.metric() == " 1.0")
    enforced = "limits_enforced in=enforcement container=team/pod/main"
    eventually(lambda: enforced in pod.node.log_text(), what="the log says so as well")
    pod.tell(1)
    eventually(lambda: pod.slot() == (inside, outside), what="what somebody else wrote is mended")
    tenant.kill()
    eventually(lambda: pod.metric() == "idle 1.0")
    assert pod.slot() == (inside, outside), "the slot of the dead is left alone"
    assert not pod.events()


def test_a_slot_that_is_taken_over_gets_the_new_pid(own_pids: Pod) -> None:
    """Each process has the same pid inside, in another namespace; the third gets the first's slot."""
    pod, taken = own_pids, []
    for _ in range(3):
        tenant = pod.tenant()
        assert tenant.ask("alloc 900").ok, "so the dead was swept"
        wanted = (1, host_pid_of(1, pod.cgroup.pids()))
        taken += eventually(lambda: [n for n in range(2) if pod.slot(n) == wanted])  # noqa: B023
        tenant.kill()
        eventually(lambda: not pod.cgroup.pids())
    assert len(set(taken)) < len(taken), "one was taken over"


@pytest.mark.parametrize("way", ["pipe", "link", "hard link", "holes"])
def test_a_region_that_is_exchanged_harms_nobody_else(own_pids: Pod, way: str) -> None:
    pod = own_pids
    tenant = pod.tenant()
    assert tenant.ask("alloc 100").ok
    eventually(lambda: pod.metric() == " 1.0")
    away = pod.region.with_name("away")
    pod.region.rename(away)
    if way == "pipe":
        os.mkfifo(pod.region)
    elif way == "link":
        pod.region.symlink_to(away)
    elif way == "hard link":
        pod.region.hardlink_to(away)
    else:
        pod.region.touch()
        os.truncate(pod.region, 4 << 30)
    eventually(lambda: pod.metric() == "foreign region 0.0")
    assert pod.node.fetch("/healthz")[0] == 200
    pod.region.unlink()
    away.rename(pod.region)
    eventually(lambda: pod.metric() == " 1.0")
    assert len(pod.events()) == 1


def test_an_agent_that_sees_no_pods_says_so_once(make_node: NodeMaker, tmp_path: Path) -> None:
    """As in a pod without hostPID: its /proc shows nobody else's processes."""
    proc = FakeProc(tmp_path)
    node = make_node("--process-interval", "0.2s", "--host-proc", str(proc.root), gpus=1)
    pod = node.run_pod("pod", [Ask()])
    eventually(lambda: "run the agent with hostPID: true" in node.log_text())
    labels = 'container="main",namespace="team",pod="pod",reason="processes not seen"'
    eventually(lambda: f"vgpu_container_enforced{{{labels}}} 0.0" in node.fetch("/metrics")[1])
    uid = pod.uid
    proc.add(70, f"0::/kubepods/pod{uid}/{'ab' * 32}\n")
    eventually(lambda: 'failure="processes not seen"' in node.log_text())
    assert node.log_text().count("processes_not_seen") == 1


def opens_a_gpu(
    pod: Pod, tmp_path: Path, code: str, target: str, *flags: str
) -> "subprocess.Popen[bytes]":
    """Start such a program in the container, without the library."""
    program = compiled(tmp_path / "program", code, target, *flags)
    device = tmp_path / "dev" / "nvidia0"
    device.parent.mkdir()
    device.touch()
    # A first process whose mounts tell whose the cgroup is, as a container's has.
    hook_dir = pod.node.root / "host" / "vgpu" / "containers" / f"{pod.ran.uid}_main"
    (mounted := tmp_path / "vgpu").mkdir()
    script = f"mount --bind {hook_dir} {mounted} && exec {program} {device}"
    process = pod.started("unshare", "--mount", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n", process.communicate()
    return process


@pytest.mark.parametrize(
    ("reason", "code", "target", "flags"),
    [
        pytest.param("musl", OPENS_A_GPU, "linux-musl", ("-dynamic",), id="musl"),
        pytest.param("static", STATIC, "linux-musl", ("-static", "-nostdlib"), id="static"),
        pytest.param(
            "library not loaded", OPENS_A_GPU, "linux-gnu.2.17", (), id="glibc without the library"
        ),
        pytest.param(
            "library not loaded", OPENS_A_GPU_LATER, "linux-gnu.2.17", ("-lpthread",),
            id="whose first thread has ended",
        ),
    ],
)  # fmt: skip
def test_a_process_that_no_limit_holds_for_is_reported(
    pod: Pod, tmp_path: Path, reason: str, code: str, target: str, flags: tuple[str, ...]
) -> None:
    if reason == "musl" and not Path(f"/lib/ld-musl-{platform.machine()}.so.1").exists():
        pytest.skip("musl is not installed (apt-get install musl)")
    process = opens_a_gpu(pod, tmp_path, code, target, *flags)
    eventually(lambda: pod.metric() == f"{reason} 0.0", what=reason)
    (event,) = eventually(pod.events)
    assert event["involvedObject"]["name"] == "pod"
    assert event["message"].startswith("container main: a process uses a GPU")
    assert "limits_not_enforced in=enforcement" in pod.node.log_text()
    end(process)
    eventually(lambda: pod.metric() == "idle 1.0")
    eventually(lambda: 'failure="limits not enforced"' in pod.node.log_text())
    assert pod.node.log_text().count("limits_not_enforced") == len(pod.events()) == 1


def test_who_has_the_whole_gpu_is_accused_only_once_its_limit_is_lowered(
    make_node: NodeMaker, tmp_path: Path
) -> None:
    node = make_node("--process-interval", "0.2s", "--allocate-budget", "10s", gpus=1)
    with ExitStack() as stack:
        try:
            pod = Pod(node, stack, Ask(memory_mib=46068, core_percent=0))
        except CgroupsUnavailable as error:
            pytest.skip(str(error))
        opens_a_gpu(pod, tmp_path, OPENS_A_GPU, "linux-gnu.2.17")
        eventually(lambda: pod.metric() == "whole GPU 1.0")
        assert not pod.events()
        assert "limits_not_enforced" not in node.log_text()
        lowered = node.run_plain(
            *("limit", "pod", "--memory", "8Gi", "--runtime-dir", str(node.root / "run"))
        )
        assert lowered.returncode == 0, lowered.stderr
        eventually(lambda: pod.metric() == "library not loaded 0.0")
        eventually(pod.events)
