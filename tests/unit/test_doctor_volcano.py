"""What doctor says of the Node in mode volcano."""

from collections.abc import Mapping

import pytest

from agent.config import Config
from agent.doctor.finding import Verdict
from agent.doctor.volcano import protocol, register, units
from agent.domain.gpu import Gpu, GpuInventory

REGISTER, FACTOR = "volcano.sh/node-vgpu-register", "vgpu-agent/gpu-memory-factor"
HANDSHAKE = "volcano.sh/node-vgpu-handshake"
SIX = "GPU-a,10,15356,NVIDIA-NVIDIA A40,true,hami-core:"
WHOLE = {f"volcano.sh/vgpu-{what}": "10" for what in ("number", "memory", "cores")}
OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED


def config(**more: object) -> Config:
    return Config(node_name="n", mode="volcano", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("annotations", "factor", "verdict", "words"),
    [
        pytest.param({REGISTER: SIX + SIX, FACTOR: "3"}, 0, OK, "2 GPUs, in units of 3", id="well"),
        pytest.param({}, 0, FAILED, "no annotation", id="not there"),
        pytest.param({REGISTER: "GPU-a,10,1,NVIDIA-X,true:"}, 0, WARNING, "other than 6",
                     id="five fields"),
        pytest.param({REGISTER: SIX, FACTOR: "3"}, 8, WARNING, "these settings say 8",
                     id="another factor"),
        pytest.param({REGISTER: ""}, 0, OK, "0 GPUs", id="no GPU"),
    ],
)  # fmt: skip
def test_the_register_annotation(
    annotations: Mapping[str, str], factor: int, verdict: Verdict, words: str
) -> None:
    finding = register(config(memory_factor=factor), annotations)
    assert finding.verdict is verdict
    assert words in finding.evidence


@pytest.mark.parametrize(
    ("handshake", "allocatable", "asked_ago_s", "verdict", "words"),
    [
        pytest.param("Reported x", WHOLE, None, OK, "all three", id="well"),
        pytest.param("Requesting_x", WHOLE, 5.0, OK, "all three", id="asked just now"),
        pytest.param("Requesting_x", WHOLE, 90.0, FAILED, "nobody answers", id="unanswered"),
        pytest.param(None, WHOLE, None, WARNING, "up to 1.15 overlooks it", id="not begun"),
        pytest.param("Reported x", WHOLE | {"volcano.sh/vgpu-memory": "0"}, None, FAILED,
                     "volcano.sh/vgpu-memory", id="a resource is missing"),
        pytest.param("Reported x", {}, None, FAILED, "vgpu-number", id="none is there"),
    ],
)  # fmt: skip
def test_what_schedulers_go_by(
    handshake: str | None,
    allocatable: Mapping[str, str],
    asked_ago_s: float | None,
    verdict: Verdict,
    words: str,
) -> None:
    annotations = {HANDSHAKE: handshake} if handshake is not None else {}
    finding = protocol(config(), annotations, allocatable, asked_ago_s=asked_ago_s)
    assert finding.verdict is verdict
    assert words in finding.evidence


@pytest.mark.parametrize(
    ("factor", "verdict", "words"),
    [
        pytest.param(0, OK, "units of 5 MiB", id="chosen"),
        pytest.param(12, OK, "5 would do", id="larger"),
        pytest.param(4, FAILED, "gpu-memory-factor to 5 or more", id="too small"),
    ],
)
def test_the_units_of_memory(factor: int, verdict: Verdict, words: str) -> None:
    gpus = GpuInventory.of(
        Gpu(uuid=f"GPU-{n:08x}-0-0-0-{n:012}", index=n, name="x", memory_mib=81559)
        for n in range(8)
    )
    finding = units(config(memory_factor=factor), gpus)
    assert finding.verdict is verdict
    assert words in finding.evidence
