"""What a container can do to what is not its own, beside getting past its limit."""

import shutil

import pytest

from agent.sim.container import Container
from agent.sim.node import Ask
from tests.hook.test_runc import MIB, TENANT, Pod, Start, pod, scratch, start, tools
from tests.waiting import eventually

__all__ = ["pod", "scratch", "start", "tools"]
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("runc")]


def test_signals_and_full_shared_memory_reach_nobody_else(pod: Pod, start: Start) -> None:
    name, tenant = start()
    assert tenant.ask(f"alloc {MIB - 100}").ok
    second = Container(name, pod.runc.start_another(name, TENANT), isolated=True)
    assert second._read_answer("starting").ok
    assert second.ask("alloc 60").ok
    fill = (
        "dd if=/dev/zero of=/dev/shm/full bs=65536; echo more > /dev/shm/more || echo it is full; "
        "kill -STOP -1; kill -9 -1; echo signalled"
    )
    done = pod.runc.execute(name, "/bin/busybox", "sh", "-c", fill)
    assert done.stdout == "it is full\nsignalled\n", done.stderr
    eventually(lambda: not second.running, what="the signals reached a process beside")
    second.stop()
    assert pod.node.agent is not None
    assert pod.node.agent.poll() is None
    assert pod.node.fetch("/healthz")[0] == 200
    assert tenant.running, "the first process of a pid namespace is not killed from inside"
    eventually(lambda: tenant.ask("info").devices[0].free_mib == 100, what="the dead hold nothing")
    _, much, first, more = pod.ask(name, TENANT, stdin="alloc 101\nalloc 100\nalloc 1\n")
    results = much["result"], first["result"], more["result"]
    assert results == (2, 0, 2), "limits hold with a full /dev/shm"
    still = pod.runc.execute(name, "/bin/busybox", "sh", "-c", "echo more > /dev/shm/more")
    assert still.returncode != 0, "it was full until here"


def test_its_own_directory_is_the_nodes_disk(pod: Pod, start: Start) -> None:
    """Not prevented: HAMi's monitor wants the directory writable. The agent looks at one file."""
    name, _ = start()
    filled = pod.region.with_name("full")
    done = pod.runc.execute(
        name, "/bin/busybox", "dd", "if=/dev/zero", "of=/usr/local/vgpu/full", "bs=1M", "count=64"
    )
    try:
        assert done.returncode == 0, done.stderr
        assert filled.stat().st_size == 64 << 20
        eventually(lambda: pod.node.fetch("/healthz")[0] == 200)
        _, info = pod.ask(name, TENANT, stdin="info\n")
        assert info["devices"][0]["total_mib"] == MIB
    finally:
        filled.unlink(missing_ok=True)


def test_the_lock_directory_of_all_containers_is_nothing_to_others(pod: Pod, start: Start) -> None:
    """It is emptied, and filled with links, pipes and bytes: neither agent nor library minds."""
    name, tenant = start()
    spoil = (
        "cd /tmp/vgpulock && rm -rf ./* && mkfifo lock && ln -s / link && ln -s /etc/passwd vgpu"
        " && mkdir -p deep/er && dd if=/dev/zero of=full bs=1M count=8"
    )
    shared = pod.node.root / "vgpulock"
    try:
        done = pod.runc.execute(name, "/bin/busybox", "sh", "-c", spoil)
        assert done.returncode == 0, done.stderr
        assert (shared / "link").is_symlink()
        beside = pod.node.run_pod("beside", [Ask(memory_mib=100)])
        assert beside.admitted.ok, beside.admitted.message
        pod.node.delete_pod(beside)
        eventually(lambda: pod.node.fetch("/healthz")[0] == 200)
        assert tenant.ask(f"alloc {MIB - 100}").ok
        _, first, second = pod.ask(name, TENANT, stdin="alloc 100\nalloc 1\n")
        assert (first["result"], second["result"]) == (0, 2)
    finally:
        for path in shared.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
