"""What slices beside a scheduler leave alone: its decisions, and nothing that only looks like one."""

from dataclasses import replace

import pytest

from agent.domain.dialect import DECIDED
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.pods import Pod
from agent.domain.slices import Amount
from agent.services.published import PodTable
from agent.services.unannotated import promised
from tests.unit.fakes import GPU_A, GPU_B, container, pod

SLICE = "slices-0123456789abcdef"


def claim(memory_mib: int, uuid: str = GPU_A, percent: int = 10) -> str:
    return f"{uuid},NVIDIA,{memory_mib},{percent}:"


def decided(text: str, vgpus: int = 1) -> Pod:
    return pod("p", text, container("main", vgpus), annotations={DECIDED: text})


def granted(memory_mib: int, *, uid: str = "uid-p", owner_uid: str = "") -> GrantRecord:
    return GrantRecord(
        pod_uid=uid, namespace="team", pod_name="p", container="main", device_ids=(),
        claims=(Claim(GPU_A, "NVIDIA", memory_mib, 10),), grant=Grant(), granted_at_s=0.0,
        owner_uid=owner_uid,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("made", "records", "expected"),
    [
        pytest.param(decided(f"{claim(700)};"), [], {GPU_A: Amount(700, 10)}, id="it waits"),
        pytest.param(
            decided(f"{claim(700)}{claim(300)};", 2), [], {GPU_A: Amount(1000, 20)}, id="two of one"
        ),
        pytest.param(
            decided(f"{claim(700)};"), [granted(700)], {GPU_A: Amount(700, 10)}, id="granted: once"
        ),
        pytest.param(replace(decided(f"{claim(700)};"), phase="Failed"), [granted(700)], {},
                     id="it has ended"),
        pytest.param(decided(f"{claim(40000)};", 0), [], {}, id="it asks for no vGPU"),
        pytest.param(decided(f"{claim(700)}{claim(700, GPU_B)};"), [], {}, id="more than it asks"),
        pytest.param(decided(f"{claim(-700)};"), [], {}, id="a negative amount"),
        pytest.param(decided(f"{claim(700, percent=-7)};"), [], {}, id="a negative share"),
        pytest.param(decided("x,y:;"), [], {}, id="unreadable"),
        pytest.param(
            decided(f"{claim(1)};"), [granted(700)], {GPU_A: Amount(700, 10)}, id="less since"
        ),
        pytest.param(
            decided(f"{claim(40000)};"), [granted(700)], {GPU_A: Amount(700, 10)}, id="more since"
        ),
        pytest.param(
            decided(f"{claim(700)};{claim(300, GPU_B)};", 2), [granted(700)],
            {GPU_A: Amount(700, 10), GPU_B: Amount(300, 10)}, id="one of its two is granted",
        ),
        pytest.param(decided(""), [granted(700)], {GPU_A: Amount(700, 10)}, id="emptied since"),
        pytest.param(
            decided(f"{claim(-9000)};"), [granted(700)], {GPU_A: Amount(700, 10)}, id="negative since"
        ),
        pytest.param(
            decided(f"{claim(40000)};"), [granted(700, uid=SLICE, owner_uid="uid-p")], {},
            id="it has a slice, without a decision",
        ),
    ],
)  # fmt: skip
def test_what_the_scheduler_has_promised(
    made: Pod, records: list[GrantRecord], expected: dict[str, Amount]
) -> None:
    assert promised(PodTable({made.uid: made}, synced=True), records) == expected
