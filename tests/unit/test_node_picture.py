"""What people are told is wrong with a node, a GPU or a container."""

from dataclasses import replace

import pytest
import use_pictures
from use_pictures import GIB, GPUS, NOW_S

from agent.domain.accounting import (
    ContainerUse,
    DeviceUse,
    GpuProcess,
    NodeUse,
    SelfReported,
    Tier,
)
from agent.domain.bypass import Allowed, Bypass, Kind, Node, Whereabouts, judge
from agent.domain.enforcement import ContainerState, Reason, State
from agent.domain.gpu import Gpu, GpuInventory
from agent.domain.node_picture import (
    NodePicture,
    never_launched,
    of_container,
    of_gpu,
    of_node,
    over_limit_bytes,
)
from agent.domain.plain_figures import share_text, size_text, span_text
from agent.domain.region import Refusal

INVENTORY = GpuInventory.of(
    (
        Gpu(uuid=GPUS[0], index=0, name="NVIDIA A40", memory_mib=46068),
        Gpu(uuid=GPUS[1], index=1, name="NVIDIA A40", memory_mib=46068, unhealthy_reason="XID 79"),
    )
)
STRANGER = Bypass(
    kind=Kind.NO_GRANT, gpu=GPUS[0], namespace="team", pod="sneaky", container="shell",
    explained="container shell uses the GPU, but it has no vGPU of this node",
)  # fmt: skip


def picture(*containers: ContainerUse, age_s: float = 1.0, **changes: object) -> NodePicture:
    use = replace(use_pictures.EVERYTHING, taken_at_s=NOW_S - age_s, containers=containers)
    told = NodePicture.of(use, INVENTORY, answered_at_s=NOW_S, node="n", agent_version="1")
    return replace(told, **changes)  # type: ignore[arg-type] # fields by name


def device(used_gib: float = 1, limit_gib: int = 8, **changes: object) -> DeviceUse:
    reported = SelfReported(
        used_bytes=int(used_gib * GIB), context_bytes=0, module_bytes=0, buffer_bytes=0,
        limit_bytes=limit_gib * GIB,
    )  # fmt: skip
    made = DeviceUse(
        place=0, uuid=GPUS[0], memory_limit_bytes=limit_gib * GIB, core_permille=0, reported=reported
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type] # fields by name


def container(
    *devices: DeviceUse, state: State = State.ENFORCED, reason: Reason = Reason.NONE, **more: object
) -> ContainerUse:
    made = ContainerUse(
        pod_uid="u", namespace="team", pod="infer", container="main", tier=Tier.HOOK,
        hook_version="", priority=1, devices=devices or (device(),),
        state=ContainerState(
            namespace="team", pod="infer", container="main", state=state, reason=reason
        ),
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type] # fields by name


def refusal(ago_s: float) -> Refusal:
    return Refusal(
        number=1, time_ns=int((NOW_S - 1.0 - ago_s) * 1e9), pid=1, place=0, asked_bytes=4 * GIB,
        used_bytes=5 * GIB, limit_bytes=8 * GIB, largest_bytes=0, largest_pid=0, function="f",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("one", "told"),
    [
        pytest.param(container(), [], id="all is well"),
        pytest.param(container(state=None), [], id="not judged yet"),
        pytest.param(container(state=State.IDLE, reason=Reason.IDLE), [], id="idle"),
        pytest.param(container(state=State.NOT_ENFORCEABLE, reason=Reason.MUSL), ["limits do not hold: a process uses a GPU that musl"], id="musl"),
        pytest.param(container(state=State.OFF, reason=Reason.OFF, hook_version="0.3.0-1a2b3c4d"), ["limits are switched off"], id="off"),
        pytest.param(container(state=State.OFF, reason=Reason.OFF), [], id="nothing was to be limited: mode nvidia, MIG"),
        pytest.param(container(state=State.UNLIMITED, reason=Reason.WHOLE_GPU, hook_version="0.3.0-1a2b3c4d"), [], id="it has all of the GPU"),
        pytest.param(container(state=State.UNKNOWN, reason=Reason.UNSEEN), ["give it the host's /proc"], id="not seen"),
        pytest.param(container(state=State.UNKNOWN, reason=Reason.UNREADABLE), ["with the capability SYS_PTRACE"], id="not readable"),
        pytest.param(container(region_problem="too short"), ["what it uses is not known: too short"], id="no figures"),
        pytest.param(container(device(9.5)), ["over its limit on GPU 0 by 1.5 GiB; it gets no more memory until it has freed that"], id="over its limit"),
        pytest.param(container(device(9.5, 0)), [], id="no limit to be over"),
        pytest.param(container(device(8)), [], id="just at its limit"),
        pytest.param(container(device(disagrees=True, reported=None, driver_bytes=3 << 30)), ["its figures for GPU 0 are not true: it counts nothing, the driver 3 GiB"], id="it counts nothing"),
        pytest.param(container(device(blocked=True)), ["waits on GPU 0 for a container of higher priority"], id="blocked"),
        pytest.param(container(device(disagrees=True, driver_bytes=3 * GIB)), ["it counts 1 GiB, the driver 3 GiB"], id="disagrees"),
        pytest.param(container(device(uuid="GPU-gone")), ["GPU GPU-gone is not on this node any more"], id="a GPU that is gone"),
        pytest.param(container(refusals=(refusal(12),)), ["was refused 4096 MiB on GPU 0 12 s ago: 5120 of 8192 MiB in use"], id="refused lately"),
        pytest.param(container(refusals=(refusal(12),)), [" MiB in use, 1 GiB over"], id="by how much it was too much"),
        pytest.param(container(refusals=(replace(refusal(12), asked_bytes=8193 * (1 << 20), used_bytes=8192 * (1 << 20), limit_bytes=16384 * (1 << 20)),)), ["was refused 8193 MiB on GPU 0 12 s ago: 8192 of 16384 MiB in use, 1 MiB over"], id="1 MiB over, which GiB would round away"),
        pytest.param(container(refusals=(replace(refusal(12), used_bytes=8 * GIB),)), ["8192 of 8192 MiB in use"], id="refused when all was in use"),
        pytest.param(container(refusals=(refusal(3000),)), [], id="refused long ago"),
        pytest.param(container(refusals=(refusal(-3000),)), [], id="refused in the future, by its own word"),
        pytest.param(container(device(9), state=State.NOT_ENFORCEABLE, reason=Reason.STATIC), ["limits do not hold: a process uses a GPU that is linked statically", "over its limit on GPU 0 by 1 GiB"], id="two things, the worse first"),
    ],
)  # fmt: skip
def test_containers(one: ContainerUse, told: list[str]) -> None:
    said = of_container(picture(one), one)
    assert len(said) == len(told)
    assert all(part in sentence for part, sentence in zip(told, said, strict=True)), said


def test_whom_no_limit_holds_is_not_said_to_get_no_more() -> None:
    one = container(device(9), state=State.NOT_ENFORCEABLE, reason=Reason.FOREIGN_LIMITS)
    assert of_container(picture(one), one)[1] == "over its limit on GPU 0 by 1 GiB"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        pytest.param(Kind.ABOVE_GRANT, ["it holds too much"], id="above its grant"),
        pytest.param(Kind.NOT_ENFORCED, [], id="what its state says already"),
    ],
)
def test_a_bypass_of_a_container_is_told_with_it(kind: Kind, told: list[str]) -> None:
    bypass = replace(STRANGER, kind=kind, pod="infer", container="main", explained="it holds too much")  # fmt: skip
    shown = picture(container(), bypasses=(bypass,))
    assert list(of_container(shown, shown.use.containers[0])) == told
    assert of_gpu(shown, shown.use.gpus[0]) == of_node(shown) == ()


def test_a_bypass_of_a_stranger_is_told_with_the_gpu() -> None:
    shown = picture(container(), bypasses=(STRANGER,))
    [said] = of_gpu(shown, shown.use.gpus[0])
    assert said.startswith("pod team/sneaky: container shell uses")
    assert of_container(shown, shown.use.containers[0]) == of_node(shown) == ()


def test_a_gpu_that_is_shown_is_called_by_its_number() -> None:
    """As the detector says it, with the uuid, of which Events and logs have need."""
    held = [GpuProcess(pid=70, used_bytes=1)]
    (found,) = judge(
        Node(
            processes={GPUS[0]: held}, traced={70: Whereabouts(5, "miner")},
            gpus={GPUS[0]: INVENTORY.gpus[0]}, grants=(), limits={}, allowances={}, pods={},
            synced=True, changed={}, states=(),
        ),
        Allowed(),
    )  # fmt: skip
    assert GPUS[0] in found.explained
    shown = picture(container(), bypasses=(found,))
    (said,) = of_gpu(shown, shown.use.gpus[0])
    assert said.startswith("the process 70 (miner) of the host uses GPU 0, which pods share")
    assert GPUS[0] not in said


def test_a_bypass_on_a_gpu_that_is_not_known_is_told_all_the_same() -> None:
    shown = picture(bypasses=(replace(STRANGER, gpu="GPU-other"),))
    assert len(of_node(shown)) == 1


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        pytest.param(picture(), [], id="all is well"),
        pytest.param(picture(use=NodeUse()), ["has not looked at its GPUs yet"], id="just started"),
        pytest.param(picture(age_s=90.0), ["1 min old"], id="old figures"),
        pytest.param(picture(age_s=-90.0), [], id="a clock that was set back"),
        pytest.param(picture(missing=("not registered with kubelet: no answer",)), ["not registered"], id="not serving"),
        pytest.param(picture(use=replace(use_pictures.EVERYTHING, gpus_problem="the driver hangs")), ["the driver hangs"], id="no driver"),
    ],
)  # fmt: skip
def test_nodes(shown: NodePicture, told: list[str]) -> None:
    said = of_node(shown)
    assert len(said) == len(told)
    assert all(part in sentence for part, sentence in zip(told, said, strict=True)), said


def test_gpus() -> None:
    shown = picture()
    assert [of_gpu(shown, gpu) for gpu in shown.use.gpus] == [(), ("unhealthy: XID 79",)]


def test_a_gpu_of_which_the_driver_tells_nothing_is_shown() -> None:
    use = replace(use_pictures.EVERYTHING, gpus=use_pictures.EVERYTHING.gpus[:1])
    shown = NodePicture.of(use, INVENTORY, answered_at_s=NOW_S, node="n", agent_version="1")
    assert [(gpu.index, gpu.memory_used_bytes) for gpu in shown.use.gpus] == [
        (0, 9 * GIB),
        (1, None),
    ]
    assert of_gpu(shown, shown.use.gpus[1]) == ("unhealthy: XID 79",)


def counting(*launches: int | None) -> ContainerUse:
    one = device()
    assert one.reported is not None
    return container(
        *(replace(one, reported=replace(one.reported, launches=count)) for count in launches)
    )


@pytest.mark.parametrize(
    ("one", "never"),
    [
        pytest.param(counting(0), True, id="nothing"),
        pytest.param(counting(0, 0), True, id="nothing on two GPUs"),
        pytest.param(counting(0, 3), False, id="on one of two"),
        pytest.param(counting(None), False, id="its library does not count"),
        pytest.param(container(device(reported=None)), False, id="no figures"),
    ],
)
def test_who_never_launched(one: ContainerUse, never: bool) -> None:
    assert never_launched(one) is never


def test_over_its_limit_without_figures() -> None:
    assert over_limit_bytes(device(reported=None)) == 0


# --- figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        pytest.param(0, "0 B", id="nothing"),
        pytest.param(1023, "1023 B", id="bytes"),
        pytest.param(1024, "1 KiB", id="one of the next"),
        pytest.param(1536, "1.5 KiB", id="a half"),
        pytest.param(10 * GIB + GIB // 2, "10 GiB", id="no decimal from ten on"),
        pytest.param(9 * GIB + GIB // 2, "9.5 GiB", id="a decimal below"),
        pytest.param(GIB - 1, "1 GiB", id="rounds up into the next unit"),
        pytest.param(-GIB, "-1 GiB", id="negative"),
        pytest.param(1 << 80, "1048576 EiB", id="more than there are units for"),
    ],
)
def test_sizes(count_bytes: int, text: str) -> None:
    assert size_text(count_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min"), (3600, "1 h"), (86_400 * 3, "3 d")],
)
def test_spans(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.004, "<1 %"), (0.0996, "10 %"), (1.0, "100 %"), (2.5, "250 %")],
)
def test_shares(share: float, text: str) -> None:
    assert share_text(share) == text
