"""The checkers of the matrix find what they are for: each is the only one to find what was broken by hand."""

import ast
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask, RanPod, SimNode
from agent.sim.scheduler import LOCK
from tests.e2e.conftest import COMMAND, QUICK
from tests.e2e.whole import finished, up
from tests.faults.breaking import ROOT
from tests.faults.invariants import Counters, journals, limits_files, unreleased, violations
from tests.waiting import eventually

SPOILT_PLACES = ("host", "state", "run", "dp")
TEMPORARY = ".x.1.0123abcd"


@dataclass
class Bed:
    """A node whose agent has ended after a pod of two containers was bound, as it was left then."""

    node: SimNode
    pod: RanPod

    @property
    def root(self) -> Path:
        return self.node.root

    @property
    def limits(self) -> list[Path]:
        return [self.root / "host/vgpu/limits" / name for name, _ in limits_files(self.node)]

    @property
    def region(self) -> Path:
        return next(iter(sorted((self.root / "host/vgpu/containers").glob("*/*.cache"))))

    def put(self, path: Path, at: int, content: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(content)

    def granted(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the first grant of the journal."""
        (path,) = journals(self.node)
        first, *others = path.read_text().splitlines()
        entry = json.loads(first)
        change(entry["granted"])
        path.write_text("\n".join([json.dumps(entry), *others, ""]))

    def found(self) -> list[str]:
        return [*violations(self.node, [self.pod]), *unreleased(self.node)]


@pytest.fixture(scope="module")
def left_alone() -> Iterator[Bed]:
    root = Path(tempfile.mkdtemp(prefix="vgpu-inv-"))  # short: unix sockets live in it
    with SimNode(root, COMMAND, flags=(*QUICK, "--allocate-budget", "10s")) as node:
        for number in range(2):
            gpu = SimGpu(uuid=made_up_uuid(number), name="NVIDIA A40", memory_mib=46068)
            node.driver.add_gpu(number, gpu)
        node.start_agent()
        up(node, 20)
        pod = node.run_pod("pod", [Ask(name="a", memory_mib=700), Ask(name="b", memory_mib=300)])
        assert pod.admitted.ok, pod.admitted.message
        eventually(lambda: finished(node, pod), within_s=60)
        eventually(lambda: not unreleased(node) and not violations(node, [pod]), within_s=60)
        node.stop_agent(signal.SIGKILL)
        yield Bed(node, pod)
    shutil.rmtree(root)


@pytest.fixture
def bed(left_alone: Bed, tmp_path: Path) -> Iterator[Bed]:
    """With everything put back afterwards."""
    root = left_alone.root
    for place in SPOILT_PLACES:
        shutil.copytree(root / place, tmp_path / place, symlinks=True, ignore=_sockets)
    assert left_alone.found() == []
    yield replace(left_alone)
    left_alone.node.client.annotate("nodes", left_alone.node.name, {LOCK: None})
    for place in SPOILT_PLACES:
        for path in [path for path in (root / place).iterdir() if not path.is_socket()]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(tmp_path / place, root / place, symlinks=True, dirs_exist_ok=True)


def _sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]


# --- half written ---------------------------------------------------------------------------------


def put_a_journal_aside(bed: Bed) -> None:
    (path,) = journals(bed.node)
    path.with_name(path.name + ".corrupt").touch()


def cut_the_journal(bed: Bed) -> None:
    (path,) = journals(bed.node)
    path.write_bytes(path.read_bytes()[:-1])


def spoil_the_journal(bed: Bed) -> None:
    (path,) = journals(bed.node)
    path.write_text(path.read_text() + "{\n")


def spoil_a_record(bed: Bed) -> None:
    (bed.root / "state/totals.json").write_text("{")


def cut_the_limits(bed: Bed) -> None:
    os.truncate(bed.limits[0], 100)


def clear_the_limits_magic(bed: Bed) -> None:
    bed.put(bed.limits[0], 0, bytes(4))


def name_no_devices(bed: Bed) -> None:
    bed.put(bed.limits[0], 8, bytes(4))


def name_too_many_devices(bed: Bed) -> None:
    bed.put(bed.limits[0], 8, bytes([17]))


def begin_a_line(bed: Bed) -> None:
    bed.put(bed.limits[0], 64, bytes([bed.limits[0].read_bytes()[64] | 1]))


def cut_a_region(bed: Bed) -> None:
    os.truncate(bed.region, 1000)


def clear_the_regions_magic(bed: Bed) -> None:
    bed.put(bed.region, 0, bytes(4))


def clear_the_regions_end(bed: Bed) -> None:
    bed.put(bed.region, 2031616, bytes(4))


# --- more than there is ---------------------------------------------------------------------------


def grant_too_much_memory(bed: Bed) -> None:
    bed.granted(lambda one: one["claims"][0].update(memory_mib=46068))


def grant_too_many_cores(bed: Bed) -> None:
    bed.granted(lambda one: one["claims"][0].update(core_percent=100))


def raise_a_limit(bed: Bed) -> None:
    bed.put(bed.limits[0], 88, (1 << 40).to_bytes(8, "little"))


# --- two owners -----------------------------------------------------------------------------------


def name_a_path_twice(bed: Bed) -> None:
    """That of a directory which is gone, so that only its name says so."""
    (path,) = journals(bed.node)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    grants = [entry["granted"] for entry in entries if "granted" in entry]
    for grant in grants:
        for mount in grant["grant"]["mounts"]:
            if mount["container_path"] == "/usr/local/vgpu":
                mount["host_path"] = str(bed.root / "gone")
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def lead_to_one_directory(bed: Bed) -> None:
    first, second = sorted((bed.root / "host/vgpu/containers").iterdir())
    shutil.rmtree(second)
    second.symlink_to(first)


def give_the_same_region_id(bed: Bed) -> None:
    bed.put(bed.limits[1], 24, bed.limits[0].read_bytes()[24:40])


def lend_a_vgpu(bed: Bed) -> None:
    path = bed.node.kubelet.directory / "kubelet_internal_checkpoint"
    books = json.loads(path.read_text())
    entries = books["Data"]["PodDeviceEntries"]
    entries.append(entries[0] | {"PodUID": "another"})
    path.write_text(json.dumps(books))


# --- not what was decided -------------------------------------------------------------------------


def refuse_without_a_word(bed: Bed) -> None:
    bed.pod = replace(bed.pod, admitted=replace(bed.pod.admitted, ok=False, message=""))


def tell(bed: Bed, name: str, value: str) -> None:
    containers = dict(bed.pod.admitted.containers)
    env = tuple({**containers["b"].env, name: value}.items())
    containers["b"] = replace(containers["b"], cri_env=env)
    bed.pod = replace(bed.pod, admitted=replace(bed.pod.admitted, containers=containers))


def tell_another_limit(bed: Bed) -> None:
    tell(bed, "CUDA_DEVICE_MEMORY_LIMIT_0", "301m")


def show_another_gpu(bed: Bed) -> None:
    tell(bed, "NVIDIA_VISIBLE_DEVICES", "GPU-other")


# --- not released ---------------------------------------------------------------------------------


def lock_the_node(bed: Bed) -> None:
    bed.node.client.annotate("nodes", bed.node.name, {LOCK: "x"})


def keep_a_directory(bed: Bed) -> None:
    (bed.root / "host/vgpu/containers/gone_a").mkdir()


def keep_limits(bed: Bed) -> None:
    shutil.copy(bed.limits[0], bed.limits[0].with_name("gone_a"))


def keep_a_journal(bed: Bed) -> None:
    (bed.root / "state/grants/gone.jsonl").touch()


def keep_a_record(bed: Bed) -> None:
    (bed.root / "state/limits").mkdir(exist_ok=True)
    (bed.root / "state/limits/gone_a.json").write_text("{}")


def leave_a_file_of_the_host(bed: Bed) -> None:
    (bed.root / "host/vgpu" / TEMPORARY).touch()


def leave_a_file_of_the_state(bed: Bed) -> None:
    (bed.root / "state/grants" / TEMPORARY).touch()


def leave_a_file_of_the_run(bed: Bed) -> None:
    (bed.root / "run" / TEMPORARY).touch()


BROKEN: dict[Callable[[Bed], None], str] = {
    put_a_journal_aside: r".*\.jsonl\.corrupt was put aside",
    cut_the_journal: r".*\.jsonl: the last line is cut short",
    spoil_the_journal: r".*\.jsonl: no JSON: .*",
    spoil_a_record: r"totals\.json: no JSON: .*",
    cut_the_limits: r"limits of .*_a: 100 bytes",
    clear_the_limits_magic: r"limits of .*_a: no limits file: 0x0 1 1",
    name_no_devices: r"limits of .*_a: no limits file: 0x6d696c76 1 0",
    name_too_many_devices: r"limits of .*_a: no limits file: 0x6d696c76 1 17",
    begin_a_line: r"limits of .*_a: a line is half written",
    cut_a_region: r"region .*_a: 1000 bytes",
    clear_the_regions_magic: r"region .*_a: it has no magic",
    clear_the_regions_end: r"region .*_a: it has no end",
    grant_too_much_memory: r"GPU-.*: \d+ MiB granted",
    grant_too_many_cores: r"GPU-.*: \d+ % granted",
    raise_a_limit: r"[0-9a-f]{32}: \d+ bytes in limits files",
    name_a_path_twice: r"/.*/gone belongs to pod/a and pod/b",
    lead_to_one_directory: r"\('/usr/local/vgpu', \d+\) belongs to pod/a and pod/b",
    give_the_same_region_id: r"\(\d+, \d+\) belongs to pod/a and pod/b",
    lend_a_vgpu: r"vGPU .* is of 2 pods",
    refuse_without_a_word: r"pod was refused without a word",
    tell_another_limit: r"pod/b has \['301m'\]",
    show_another_gpu: r"pod/b has GPU-other",
    lock_the_node: r"the node is locked",
    keep_a_directory: r"host/vgpu/containers/gone_a",
    keep_limits: r"host/vgpu/limits/gone_a",
    keep_a_journal: r"state/grants/gone\.jsonl",
    keep_a_record: r"state/limits/gone_a\.json",
    leave_a_file_of_the_host: r"host/vgpu/\.x\..*",
    leave_a_file_of_the_state: r"state/grants/\.x\..*",
    leave_a_file_of_the_run: r"run/\.x\..*",
}


@pytest.mark.parametrize("spoil", BROKEN, ids=lambda spoil: spoil.__name__)
def test_it_is_found_and_nothing_else_is(bed: Bed, spoil: Callable[[Bed], None]) -> None:
    spoil(bed)
    found = bed.found()
    assert found
    assert [one for one in found if not re.fullmatch(BROKEN[spoil], one)] == []


def sentences() -> Iterator[str]:
    """What the checkers can say: every text with a space in it that is no description."""
    tree = ast.parse((ROOT / "tests/faults/invariants.py").read_text())
    described = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for node in texts:
        text = node.value.strip() if isinstance(node.value, str) else ""
        if " " in text and node not in described:
            yield text


def test_whatever_can_be_said_is_said_of_something_broken() -> None:
    wanted = set(sentences())
    assert len(wanted) > 10
    assert {one for one in wanted if not any(one in row for row in BROKEN.values())} == set()


class _Pages:
    """A node whose /metrics says this, one after the other."""

    def __init__(self, *pages: str) -> None:
        self._pages = iter(pages)

    def fetch(self, _where: str) -> tuple[int, str]:
        return 200, next(self._pages)


def test_a_counter_that_goes_back_is_found() -> None:
    series = 'vgpu_container_gpu_seconds_total{pod="p"}'
    counters = Counters(_Pages(f"{series} 5.0", f"{series} 5.0", f"{series} 4.0"))  # type: ignore[arg-type]
    assert counters.violations() == []
    assert counters.violations() == []
    assert counters.violations() == [f"{series}: 4.0 after 5.0"]
