"""Agents come and go, with their hooks; who runs in a container does not notice."""

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from built_hook import ROOT, built
from hooked_programs import Node
from limits_bed import LimitsBed
from tenants import Tenant, tenants

from agent.adapters.grant_log import FileGrantLog
from agent.adapters.hook_files import FIRST_PID_NAMESPACE, HostHookFiles, install_hook
from agent.domain.grants import Grant, GrantRecord, Mount
from agent.domain.hook_files import is_hook_name, is_unfinished_name
from agent.domain.limits_file import DeviceLimit
from agent.sim.container import Container, SimMount, namespaces_allowed
from agent.sim.driver import made_up_uuid

pytestmark = pytest.mark.timeout(600)

LIVE, CHANGES, VARIANTS, NEW_EVERY = 50, 100, 6, 10
PLAIN = 10  # of the live ones, by HAMi's name
KILLED = 0.15  # of the changes
EACH_MIB, LIMIT_MIB = 10, 1000
OUT_OF_MEMORY = 2
HERE = Path(__file__).resolve().parent


class Agent:
    """The installing process; a new one takes the place of one that was killed."""

    def __init__(self, host: Path, proc: Path, state: Path) -> None:
        self._words = [sys.executable, str(HERE / "installing_agent.py"), host, proc, state]
        self._process = self._start()
        self.killed = 0

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def install(self, library: Path, version: str, die_at: int = 0) -> Path | None:
        """The file that containers are given from now on; None: it was killed on the way."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{library} {version} {die_at}\n")
        self._process.stdin.flush()
        if line := self._process.stdout.readline():
            return Path(line.strip())
        self._process.communicate()
        assert self._process.returncode == -signal.SIGKILL
        self.killed += 1
        self._process = self._start()
        return None

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def agent(host: Path, proc: Path, state: Path) -> Iterator[Agent]:
    started = Agent(host, proc, state)
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    made = tmp_path / "vgpu"
    made.mkdir(mode=0o755)
    return made


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """The host's /proc as an agent of the host has it, without whom we may not look at."""
    made = tmp_path / "proc"
    (made / "1" / "ns").mkdir(parents=True)
    (made / "1" / "ns" / "pid").symlink_to(FIRST_PID_NAMESPACE)
    (made / "1" / "maps").touch()
    return made


@pytest.fixture
def bed(node: Node, host: Path) -> LimitsBed:
    """One container; its limits file lies beside whichever library it was given."""
    made = LimitsBed(node, host / "libvgpu.so")
    made.write(
        DeviceLimit(uuid=made_up_uuid(0), memory_limit_bytes=LIMIT_MIB << 20), makes_region=True
    )
    return made


def variants(tmp_path: Path) -> list[Path]:
    """Libraries that differ, as those of different agents do."""
    content = (built() / "libvgpu.so").read_bytes()
    paths = [tmp_path / f"variant-{number}.so" for number in range(VARIANTS)]
    for number, path in enumerate(paths):
        path.write_bytes(content + b"%d" % number)
    return paths


def show(proc: Path, running: list[Tenant]) -> None:
    for tenant in running:
        link = proc / str(tenant.pid)
        if not link.is_symlink():
            link.symlink_to(f"/proc/{tenant.pid}")


def mapped_library(tenant: Tenant) -> str:
    """The file that it runs with, by its name at the time."""
    maps = Path(f"/proc/{tenant.pid}/maps").read_text()
    (path,) = set(re.findall(r"\S*/libvgpu\.so\S*(?: \(deleted\))?", maps))
    return path


def remembered(name: str, state: Path, host: Path) -> None:
    """A container that was given this file, has ended, and is started again some day."""
    grant = Grant(mounts=(Mount("/usr/local/vgpu/libvgpu.so", str(host / name)),))
    FileGrantLog(state).record(
        GrantRecord(
            pod_uid="waiting", namespace="team", pod_name="waiting", container="main",
            device_ids=(), claims=(), grant=grant, granted_at_s=0.0,
        )
    )  # fmt: skip


def try_to_exceed(tenant: Tenant, more_than_mib: int) -> None:
    assert tenant.ask(f"alloc {more_than_mib + 1}")["result"] == OUT_OF_MEMORY


def new_process(node: Node, proc: Path, current: Path) -> None:
    """It gets the library of now, and the rest of the container's limit."""
    with tenants(node, 1, LD_PRELOAD=str(current)) as (new,):
        show(proc, [new])
        assert mapped_library(new) == str(current)
        try_to_exceed(new, LIMIT_MIB - LIVE * EACH_MIB)
        assert new.ask(f"alloc {LIMIT_MIB - LIVE * EACH_MIB}")["ok"]


def changed(installing: Agent, library: Path, version: str, die_at: int) -> Path:
    """The library that is given from now on, by an agent that may die over it."""
    current = installing.install(library, version, die_at) or installing.install(library, version)
    assert current is not None
    assert current.read_bytes() == library.read_bytes()
    return current


def test_a_hundred_upgrades_and_downgrades_under_fifty_processes(
    bed: LimitsBed, host: Path, proc: Path, tmp_path: Path
) -> None:
    state, chance = tmp_path / "state", random.Random(4)  # noqa: S311
    libraries = variants(tmp_path)
    with agent(host, proc, state) as installing:
        first = changed(installing, libraries[0], "1.0", 0)
        given = changed(installing, libraries[1], "1.1", 0)
        assert not first.exists(), "nobody had it"
        remembered(given.name, state, host)
    with agent(host, proc, state) as installing:
        oldest = changed(installing, libraries[0], "1.0", 0)
        plain_name = str(host / "libvgpu.so")
        with (
            tenants(bed.node, PLAIN, LD_PRELOAD=plain_name) as plain,
            tenants(bed.node, LIVE - PLAIN, LD_PRELOAD=str(oldest)) as others,
        ):
            running = plain + others
            show(proc, running)
            assert all(tenant.ask(f"alloc {EACH_MIB}")["ok"] for tenant in running)
            for change in range(CHANGES):
                number = chance.randrange(2, VARIANTS)
                die_at = chance.randrange(1, 25) if chance.random() < KILLED else 0
                current = changed(installing, libraries[number], f"1.{number}", die_at)
                try_to_exceed(chance.choice(running), LIMIT_MIB - LIVE * EACH_MIB)
                if change % NEW_EVERY == 0:
                    new_process(bed.node, proc, current)
            assert installing.killed >= CHANGES * KILLED / 3, "or little was tried"
            for tenant in running:
                try_to_exceed(tenant, LIMIT_MIB - LIVE * EACH_MIB)
            assert {mapped_library(tenant) for tenant in others} == {str(oldest)}
            assert {mapped_library(tenant) for tenant in plain} == {plain_name + " (deleted)"}
            changed(installing, libraries[number], f"1.{number}", 0)
            names = {path.name for path in host.iterdir()}
            hooks = {name for name in names if is_hook_name(name)}
            assert hooks == {oldest.name, given.name, current.name}
            assert not {name for name in names if is_unfinished_name(name)}
            assert (host / "libvgpu.so").read_bytes() == current.read_bytes()
        changed(installing, libraries[number], f"1.{number}", 0)
        assert not oldest.exists(), "now nobody has it"
        assert given.exists()


def test_what_a_container_has_mapped_is_known_by_the_file_behind_its_mount(
    node: Node, host: Path, proc: Path, tmp_path: Path
) -> None:
    """In a mount namespace of its own, where the file has another name."""
    if not namespaces_allowed(built() / "sim" / "sim-container"):
        pytest.skip("this user may not make namespaces here")
    ours, other = (install_hook(library, host, "1.0") for library in variants(tmp_path)[:2])
    preload, inside = tmp_path / "ld.so.preload", "/usr/local/vgpu/libvgpu.so"
    preload.write_text(f"{inside}\n")
    mounts = [SimMount(inside, str(ours)), SimMount("/etc/ld.so.preload", str(preload))]
    env = {
        "CUDA_DEVICE_MEMORY_LIMIT": "1000m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "x.cache"),
    }
    container = Container.start("main", driver=node.sim, env=env, mounts=mounts, isolated=True)
    try:
        (proc / str(container.pid)).symlink_to(f"/proc/{container.pid}")
        assert f"{inside}\n" in Path(f"/proc/{container.pid}/maps").read_text()
        hooks = HostHookFiles(host, proc)
        files = hooks.listed().files
        assert {file.name for file in files} == {ours.name, other.name}
        assert hooks.mapped(files) == frozenset({ours.name})
        ours.unlink()  # by an administrator
        assert container.ask("alloc 600").ok
        assert container.ask("alloc 401").result == OUT_OF_MEMORY
    finally:
        container.stop()
    assert hooks.mapped(files) == frozenset()
