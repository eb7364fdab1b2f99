"""The usage region: the C side and the Python side name the same bytes."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from built_hook import ROOT
from hooked_programs import LIMIT, Node

from agent.domain import region as reader
from agent.sim.driver import made_up_uuid

STRUCTURES = {
    "slot": "region_slot",
    "usage": "region_usage",
    "utilisation": "region_utilisation",
    "device": "region_device",
    "refusal": "region_refusal",
}
USAGE = {"context_bytes": 0, "module_bytes": 8, "data_bytes": 16, "offset": 24, "total_bytes": 32}


def wanted(layout: Mapping[str, int], of: str) -> dict[str, int]:
    """C expression -> its value by the reader."""
    found = {}
    for name, at in layout.items():
        whole, _, field = name.partition(".")
        if field:
            found[f"offsetof(struct {STRUCTURES[whole]}, {field})"] = at
        elif name in STRUCTURES:
            found[f"sizeof(struct {STRUCTURES[name]})"] = at
        else:
            found[f"offsetof(struct {of}, {name})"] = at
    return found


EXPRESSIONS = {
    **wanted(reader.V1, "region"),
    **wanted(reader.TAIL, "region_tail"),
    **{f"offsetof(struct region_usage, {name})": at for name, at in USAGE.items()},
    "sizeof(struct region)": reader.V1_BYTES,
    "(long)REGION_MAGIC": reader.MAGIC,
    "(long)TAIL_OFFSET": reader.TAIL_OFFSET,
    "(long)TAIL_BYTES": reader.TAIL_BYTES,
    "(long)TAIL_MAGIC": reader.TAIL_MAGIC,
    "(long)TAIL_VERSION": reader.TAIL_VERSION,
    "(long)MAX_DEVICES": reader.MAX_DEVICES,
    "(long)REGION_SLOTS": reader.MAX_PROCESSES,
    "(long)REFUSALS": reader.MAX_REFUSALS,
    "(long)UUID_BYTES": reader.UUID_BYTES,
    "(long)LEDGER_MOST_BYTES": reader.LEDGER_BYTES_MASK,
}


@pytest.fixture(scope="module")
def by_c(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The same expressions, as the compiler sees them."""
    lines = "".join(f'    printf("%ld\\n", (long)({text}));\n' for text in EXPRESSIONS)
    source = f'#include "region_layout.h"\n#include <stdio.h>\nint main(void)\n{{\n{lines}}}\n'
    program = tmp_path_factory.mktemp("layout") / "printer"
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-O1", "-I", str(ROOT / "hook"),
         "-x", "c", "-", "-o", str(program)],
        input=source.encode(), check=True, timeout=250,
    )  # fmt: skip
    said = subprocess.run([program], capture_output=True, check=True, timeout=60)
    return dict(zip(EXPRESSIONS, map(int, said.stdout.split()), strict=True))


def test_both_sides_name_the_same_bytes(by_c: dict[str, int]) -> None:
    assert by_c == EXPRESSIONS


@pytest.mark.parametrize("layout", [pytest.param(reader.V1, id="1.2"), pytest.param(reader.TAIL, id="ours")])  # fmt: skip
def test_the_page_has_every_offset_and_size(layout: Mapping[str, int]) -> None:
    page = (ROOT / "docs" / "usage-region.md").read_text()
    lines = page.splitlines()
    rows = [{cell.strip(" `") for cell in line.split("|")} for line in lines if line[:1] == "|"]
    for name, at in layout.items():
        if name in STRUCTURES:
            assert f"`{name}`, {at} bytes" in page
        else:
            field = name.rpartition(".")[2]
            assert any({field, str(at)} <= row for row in rows), f"{name} at {at}"


def test_what_a_process_counted_is_read_back(node: Node) -> None:
    """From the file of a real container: a process that holds memory, and was refused more."""
    tenant = node.start(
        "import os\nstart()\nalloc(300)\nalloc(800)\nprint(os.getpid(), flush=True)\ninput()",
        env={LIMIT: "1000m", "CUDA_DEVICE_SM_LIMIT": "30"},
    )
    assert tenant.stdout is not None
    pid = int(tenant.stdout.readline())
    region = reader.decode(Path(node.cache).read_bytes())
    tenant.communicate("\n", timeout=60)
    (device,) = region.devices
    assert (device.uuid, device.limit_bytes) == (made_up_uuid(0), 1000 << 20)
    assert device.core_percent == 30
    (process,) = region.processes
    assert (process.pid, process.used[0].data_bytes) == (pid, 300 << 20)
    assert [(one.peak_bytes, one.refusals) for one in process.counters] == [(300 << 20, 1)]
    assert device.counters is not None
    assert (device.counters.used_bytes, device.counters.peak_bytes) == (300 << 20, 300 << 20)
    assert (device.counters.refusals, device.counters.underflows) == (1, 0)
    (refusal,) = region.refusals
    assert (refusal.pid, refusal.place, refusal.asked_bytes) == (pid, 0, 800 << 20)
    assert (refusal.used_bytes, refusal.limit_bytes) == (300 << 20, 1000 << 20)
    assert (refusal.largest_bytes, refusal.largest_pid) == (300 << 20, pid)
    assert refusal.function == "cuMemAlloc_v2"
    assert (region.major, region.minor, region.refusal_count) == (1, 2, 1)
