"""Hooks of earlier agents in containers of this one: their limits hold, and the agent reads them.

`earlier/` has the libraries. A container keeps the hook it was given, but the agent beside it is
exchanged: it asks again, reads its usage region, and gives a new container of the same pod its own.
"""

import lzma
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from built_hook import ROOT, built
from hooked_programs import LIMIT, Node
from tenants import tenants

from agent.adapters.caches import HostCaches
from agent.adapters.regions import HostRegions
from agent.domain.grant_plan import GrantPolicy
from agent.domain.grants import Claim
from agent.services.container_limits import ContainerLimits, cache_name
from agent.sim.driver import made_up_uuid

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the earlier libraries are of x86_64"
)

EARLIER = ROOT / "tests" / "hook" / "earlier"
UID, MAIN, GPU = "11111111-2222-3333-4444-555555555555", "main", made_up_uuid(0)
LIMIT_MIB = 1000
CLAIMS = [Claim(GPU, "NVIDIA", LIMIT_MIB, 50)]
OUT_OF_MEMORY = 2

HOOKS = [
    pytest.param("environment", id="knows the environment alone"),
    pytest.param("limits-file", id="knows the limits file"),
    pytest.param("own-region", id="makes the region itself"),
    pytest.param("", id="of today"),
]


@dataclass(frozen=True)
class Bed:
    """A container by this agent's Allocate, on whose library a hook of any age lies."""

    node: Node
    host: Path

    @property
    def region_name(self) -> str:
        return cache_name(UID, MAIN)

    def environment(self) -> dict[str, str]:
        """What Allocate gives beside the mounts."""
        return {
            "LD_PRELOAD": str(self.host / "hook" / "libvgpu.so"),
            f"{LIMIT}_0": f"{LIMIT_MIB}m",
            "CUDA_DEVICE_SM_LIMIT": "50",
            "NVIDIA_VISIBLE_DEVICES": GPU,
        }

    def allocate_again(self) -> None:
        """Kubelet asks for the same container once more, and starts it once more."""
        caches = HostCaches(self.host, lock_dir=self.host.with_name("lock"))
        policy = GrantPolicy(hook_dir=str(self.node.cache.parent))
        written = ContainerLimits(caches, policy).write(UID, MAIN, CLAIMS)
        assert written is not None
        shutil.copy(written, self.host / "hook" / "vgpu.limits")

    def slots(self) -> set[int]:
        """Pids that the agent reads in the region, as their processes know themselves."""
        look = HostRegions(self.host).look(UID, MAIN, self.region_name)
        assert not look.problem
        return {slot.pid for slot in look.slots}


def allocated(
    node: Node, tmp_path: Path, hook: str, *, limits: bool = True, region: bool = True
) -> Bed:
    """Allocate as now, less what an agent did not do yet."""
    host = tmp_path / "vgpu"
    host.mkdir(mode=0o755)
    caches = HostCaches(host, lock_dir=tmp_path / "lock")
    directory = caches.create(UID, MAIN)
    policy = GrantPolicy(hook_dir=str(directory))  # as if the container saw it there
    (host / "hook").mkdir()
    library = host / "hook" / "libvgpu.so"
    if hook:
        library.write_bytes(lzma.decompress((EARLIER / f"{hook}.so.xz").read_bytes()))
    else:
        shutil.copy(built() / "libvgpu.so", library)
    bed = Bed(Node(node.sim, directory / cache_name(UID, MAIN)), host)
    written = ContainerLimits(caches, policy).write(UID, MAIN, CLAIMS)
    assert written is not None
    if limits:
        content = bytearray(written.read_bytes())
        if not region:
            content[24:40] = bytes(16)  # inode and id of the region: not written then
            written.write_bytes(content)
        (host / "hook" / "vgpu.limits").write_bytes(content)
    if not region:
        bed.node.cache.unlink()
    return bed


def holds_its_limit(bed: Bed) -> None:
    """Two processes have 1000 MiB together and not one more; the agent sees both."""
    with tenants(bed.node, 2, **bed.environment()) as (first, second):
        assert first.ask("alloc 600")["ok"]
        assert second.ask("alloc 401")["result"] == OUT_OF_MEMORY
        assert second.ask("alloc 300")["ok"]
        assert first.ask("alloc 101")["result"] == OUT_OF_MEMORY
        (gpu,) = first.ask("info")["devices"]
        assert (gpu["total_mib"], gpu["free_mib"] <= LIMIT_MIB - 900) == (LIMIT_MIB, True)
        assert bed.slots() >= {first.pid, second.pid}
        second.end(9)
        assert first.ask("alloc 301")["ok"], "what the dead held is free again"


@pytest.mark.parametrize("hook", HOOKS)
def test_limits_hold_with_everything_that_allocate_gives_now(
    node: Node, tmp_path: Path, hook: str
) -> None:
    holds_its_limit(allocated(node, tmp_path, hook))


@pytest.mark.parametrize("hook", HOOKS)
def test_limits_hold_where_no_region_was_made(node: Node, tmp_path: Path, hook: str) -> None:
    holds_its_limit(allocated(node, tmp_path, hook, region=False))


@pytest.mark.parametrize("hook", HOOKS)
def test_limits_hold_by_the_environment_alone(node: Node, tmp_path: Path, hook: str) -> None:
    holds_its_limit(allocated(node, tmp_path, hook, limits=False, region=False))


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "region",
    [pytest.param(True, id="made by an agent"), pytest.param(False, id="made by the hook")],
)
def test_asked_again_the_agent_leaves_who_runs_in_the_same_account(
    node: Node, tmp_path: Path, hook: str, region: bool
) -> None:
    """After a restart of the container with the old library and what the agent wrote anew."""
    bed = allocated(node, tmp_path, hook, region=region)
    with tenants(bed.node, 1, **bed.environment()) as (first,):
        assert first.ask("alloc 600")["ok"]
        bed.allocate_again()
        with tenants(bed.node, 1, **bed.environment()) as (second,):
            assert second.ask("alloc 401")["result"] == OUT_OF_MEMORY
            assert second.ask("alloc 400")["ok"]


def test_a_hook_that_is_given_no_limit_at_all_is_what_would_be_noticed(
    node: Node, tmp_path: Path
) -> None:
    """The tests above can fail: without limits the same processes get everything."""
    bed = allocated(node, tmp_path, "environment", limits=False, region=False)
    unlimited = {**bed.environment(), f"{LIMIT}_0": "0"}
    with tenants(bed.node, 2, **unlimited) as (first, second):
        assert first.ask("alloc 600")["ok"]
        assert second.ask("alloc 401")["ok"]
