"""What `vgpu-agent top` draws: of two looks at a node, in any width, whatever is in the names."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import use_pictures
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from use_pictures import GIB, GPUS, NOW_S

from agent.domain.accounting import ContainerUse, DeviceUse, NodeUse, SelfReported, Tier, Totals
from agent.domain.bypass import Bypass, Kind
from agent.domain.enforcement import ContainerState, Reason, State
from agent.domain.gpu import Gpu, GpuInventory
from agent.domain.node_picture import NodePicture
from agent.domain.region import Refusal
from agent.domain.use_json import encode
from agent.domain.use_reading import decode
from agent.top.drawing import LEAST_COLUMNS, drawn, lines, spelt
from agent.top.rates import Looks, Shares, rates
from agent.top.screen import Shown, page
from agent.top.view import ORDERS, view

PICTURES = Path(__file__).parent / "top_pictures"
INVENTORY = GpuInventory.of(
    (
        Gpu(uuid=GPUS[0], index=0, name="NVIDIA A40", memory_mib=46068),
        Gpu(uuid=GPUS[1], index=1, name="NVIDIA A40", memory_mib=46068, unhealthy_reason="XID 79"),
    )
)
STRANGER = Bypass(
    kind=Kind.NO_GRANT, gpu=GPUS[0], namespace="team", pod="sneaky", container="shell", pid=4711,
    program="python3", explained="container shell (process 4711, python3) uses the GPU, but it has "
    "no vGPU of this node; ask for one in its resources",
)  # fmt: skip
REFUSAL = Refusal(
    number=3, time_ns=int((NOW_S - 14) * 1e9), pid=17, place=0, asked_bytes=4 << 30,
    used_bytes=5 << 30, limit_bytes=8 << 30, largest_bytes=4 << 30, largest_pid=1,
    function="cuMemAlloc_v2",
)  # fmt: skip


def looks(use: NodeUse = use_pictures.EVERYTHING, later_s: float = 2.0) -> Looks:
    """Two looks, between which the first container was on the GPU for 0.58 s."""

    def picture(taken_at_s: float, gpu_ns: int) -> NodePicture:
        first = use.containers[0]
        counted = replace(first.devices[0], totals=Totals(gpu_ns=gpu_ns, throttled_ns=gpu_ns // 10))
        first = replace(first, devices=(counted, *first.devices[1:]), refusals=(REFUSAL,))
        return NodePicture.of(
            replace(use, taken_at_s=taken_at_s, containers=(first, *use.containers[1:])),
            INVENTORY,
            answered_at_s=taken_at_s + 1.5,
            node="gpu-node-1",
            agent_version="0.4.0",
            bypasses=(STRANGER,),
        )

    taken_at_s = NOW_S - 1.5
    return Looks(picture(taken_at_s - later_s, 10**9)).then(picture(taken_at_s, 158 * 10**7))


def console(width: int, *, encoding: str = "utf-8", colours: bool = False) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    return Console(
        file=file, width=width, highlight=False, markup=False, force_terminal=colours,
        color_system="standard" if colours else None, no_color=not colours, _environ={},
    )  # fmt: skip


def printed(where: Console, shown: Looks, order: str = "m") -> str:
    for line in lines(where, shown, order):
        where.print(line, no_wrap=True, overflow="ignore", crop=False)
    file = where.file
    assert isinstance(file, io.TextIOWrapper)
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue().decode(file.encoding)


# --- pictures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [120, 80, 40])
def test_as_in_the_picture(width: int) -> None:
    """A changed picture is looked at, and then kept: see tests/unit/top_pictures."""
    assert printed(console(width), looks()) == (PICTURES / f"{width}.txt").read_text()


def test_what_is_wrong_is_shown_beside_what_is_not() -> None:
    """Of a node with one container that does well, and one that does not."""
    second = replace(
        use_pictures.EVERYTHING.gpus[1], name="NVIDIA A40", memory_used_bytes=0,
        memory_total_bytes=45 * GIB, utilisation_percent=0, temperature_celsius=27,
        power_watts=21.4,
    )  # fmt: skip
    one, other = use_pictures.EVERYTHING.containers
    alone = replace(one, devices=one.devices[:1])
    use = replace(
        use_pictures.EVERYTHING,
        gpus=(use_pictures.EVERYTHING.gpus[0], second),
        containers=(alone, replace(other, pod="train-0")),
    )
    assert printed(console(110), looks(use)) == (PICTURES / "110.txt").read_text()


def test_the_same_comes_through_the_socket() -> None:
    there = looks()
    here = replace(there, now=decode(json.loads(json.dumps(encode(there.now)))))
    assert printed(console(120), here) == printed(console(120), there)


@settings(max_examples=80, deadline=None)
@given(width=st.integers(LEAST_COLUMNS, 300))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    shown = looks()
    assert all(line.cell_len <= width for line in drawn(view(shown.now, shown.growing), width))


@settings(max_examples=60, deadline=None)
@given(name=st.text(max_size=80), sentence=st.text(max_size=200), width=st.integers(20, 160))
def test_hostile_names_reach_no_terminal(name: str, sentence: str, width: int) -> None:
    first = replace(use_pictures.EVERYTHING.containers[0], pod=name, region_problem=sentence)
    gpu = replace(use_pictures.EVERYTHING.gpus[0], name=sentence)
    use = replace(use_pictures.EVERYTHING, containers=(first,), gpus=(gpu,))
    picture = NodePicture(
        answered_at_s=NOW_S, node=name, agent_version=name, use=use,
        bypasses=(replace(STRANGER, explained=sentence, pod=name),), missing=(sentence,),
    )  # fmt: skip
    for line in drawn(view(picture), width):
        assert line.plain.isprintable()
        assert cell_len(line.plain) <= width


@settings(max_examples=60, deadline=None)
@given(
    name=st.text(max_size=80),
    width=st.integers(20, 160),
    encoding=st.sampled_from(("ascii", "iso-8859-1", "cp1252", "utf-8")),
)
def test_any_name_can_be_shown_on_any_terminal(name: str, width: int, encoding: str) -> None:
    first = replace(use_pictures.EVERYTHING.containers[0], pod=name, region_problem=name)
    use = replace(use_pictures.EVERYTHING, containers=(first,))
    where = console(width, encoding=encoding)
    text = printed(where, replace(looks(use), error=name))
    assert all(cell_len(line) <= width for line in text.split("\n"))


@pytest.mark.parametrize(
    ("there", "shown"),
    [
        pytest.param("team/pød", "team/p?d", id="a letter"),
        pytest.param("infer…", "infer~", id="what was cut"),
        pytest.param("模型-0", "????-0", id="two cells wide"),
        pytest.param("e\u0301a", "ea", id="no cell wide"),
    ],
)
def test_what_a_terminal_does_not_know_is_replaced_as_wide(there: str, shown: str) -> None:
    line = Text("  ").append(there, "red").append(" 5 GiB")
    got = spelt(line, "ascii")
    assert got.plain == f"  {shown} 5 GiB"
    [span] = got.spans
    assert (got.plain[span.start : span.end], span.style) == (shown, "red")
    assert got.cell_len == line.cell_len
    assert spelt(line, "utf-8") is line


def test_terminal_commands_in_names_are_shown_as_text() -> None:
    shown = replace(looks().now, node="a\x1b]0;owned\x07b\x9b2J[red]")
    text = printed(console(120, colours=True), Looks(shown))
    assert "a?]0;owned?b?2J[red]" in text


def test_colours_only_where_they_are_wanted() -> None:
    assert "\x1b[31m" in printed(console(120, colours=True), looks())
    assert "\x1b" not in printed(console(120), looks())


def test_a_terminal_without_unicode_gets_other_bars() -> None:
    text = printed(console(120, encoding="iso-8859-1"), looks())
    assert "######----" in text
    assert "█" not in text


@pytest.mark.parametrize(
    ("use", "told"),
    [
        pytest.param(NodeUse(), "! the agent has not looked at its GPUs yet", id="nothing yet"),
        pytest.param(NodeUse(taken_at_s=NOW_S), "no GPUs on this node", id="no GPUs"),
        pytest.param(NodeUse(taken_at_s=NOW_S, gpus_problem="no driver"), "! no driver", id="no driver"),
    ],
)  # fmt: skip
def test_nodes_with_little_to_show(use: NodeUse, told: str) -> None:
    picture = NodePicture(answered_at_s=NOW_S + 1, node="n", agent_version="1", use=use)
    assert told in printed(console(100), Looks(picture))


def test_who_has_not_looked_yet_has_not_seen_anything_at_any_time() -> None:
    picture = NodePicture(answered_at_s=NOW_S, node="n", agent_version="1", use=NodeUse())
    assert printed(console(100), Looks(picture)).startswith(
        "n  0 GPUs, 0 containers  vgpu-agent 1\n"
    )


def test_a_gpu_that_is_gone_is_shown_with_its_containers() -> None:
    use = replace(use_pictures.EVERYTHING, gpus=())
    text = printed(console(120), Looks(NodePicture(answered_at_s=NOW_S, node="n", agent_version="1", use=use)))  # fmt: skip
    assert GPUS[0] in text
    assert "team/infer-0/main" in text


def test_an_agent_that_does_not_answer_any_more_is_told_above_the_last_figures() -> None:
    text = printed(console(120), replace(looks(), error="nobody listens there"))
    assert text.startswith("! nobody listens there\n")
    assert "team/infer-0/main" in text


# --- what the figures are ------------------------------------------------------------------------


def test_rates() -> None:
    first = ("uid-1", "main", 0)
    assert looks().growing[first] == Shares(gpu=pytest.approx(0.29), throttled=pytest.approx(0.029))


@pytest.mark.parametrize(
    ("later_s", "known"),
    [
        pytest.param(2.0, True, id="later"),
        pytest.param(0.0, False, id="the same look"),
        pytest.param(-5.0, False, id="the clock was set back"),
    ],
)
def test_rates_need_time_between(later_s: float, known: bool) -> None:
    assert bool(looks(later_s=later_s).growing) is known


def test_the_same_look_again_keeps_the_rates() -> None:
    before = looks()
    again = replace(before.now, answered_at_s=before.now.answered_at_s + 1)
    assert before.then(again).growing == before.growing
    assert before.then(again).now is again


def test_what_hami_core_does_not_count_is_not_shown_as_nothing() -> None:
    found = rates(use_pictures.EVERYTHING, replace(use_pictures.EVERYTHING, taken_at_s=NOW_S + 9))
    assert ("uid-2", "main", 0) not in found


def test_without_a_core_limit_the_driver_says_how_busy_a_container_was() -> None:
    one = use_pictures.EVERYTHING.containers[0]
    assert one.devices[0].reported is not None
    reported = replace(one.devices[0].reported, gpu_ns=None, sm_percent=None)
    free = replace(one.devices[0], reported=reported, core_permille=0, driver_sm_percent=41)
    shown = looks(replace(use_pictures.EVERYTHING, containers=(replace(one, devices=(free,)),)))
    assert shown.growing["uid-1", "main", 0] == Shares(throttled=pytest.approx(0.029))
    assert " 41 % " in printed(console(120), shown)


@pytest.mark.parametrize("width", [120, 40])
def test_who_never_launched(width: int) -> None:
    one = use_pictures.EVERYTHING.containers[0]
    assert one.devices[0].reported is not None
    idle = replace(one.devices[0], reported=replace(one.devices[0].reported, launches=0))
    use = replace(use_pictures.EVERYTHING, containers=(replace(one, devices=(idle,)),))
    assert "never" in printed(console(width), looks(use))
    assert "never" not in printed(console(width), looks())


@pytest.mark.parametrize(
    ("state", "hook_version", "told"),
    [
        pytest.param(State.IDLE, "0.3.0", "nobody yet", id="nothing runs there"),
        pytest.param(None, "0.3.0", "nobody yet", id="it was just granted"),
        pytest.param(State.OFF, "0.3.0", "nobody", id="switched off"),
        pytest.param(State.OFF, "", "-", id="nothing was to be limited: mode nvidia, MIG"),
    ],
)
def test_who_keeps_no_limits(state: State | None, hook_version: str, told: str) -> None:
    granted = use_pictures.EVERYTHING.containers[0]
    one = replace(granted, tier=Tier.NONE, state=None, hook_version=hook_version)
    if state is not None:
        judged = ContainerState(
            namespace="team", pod="infer-0", container="main", state=state, reason=Reason.NONE
        )
        one = replace(one, state=judged)
    use = replace(use_pictures.EVERYTHING, containers=(one,))
    rows = [line for line in printed(console(120), looks(use)).splitlines() if "infer-0" in line]
    assert all(row.endswith(f"  {told}") for row in rows)
    assert len(rows) == len(one.devices)


def test_counters_that_go_back_are_no_rate() -> None:
    now = use_pictures.EVERYTHING
    less = replace(now.containers[0].devices[0], totals=Totals())
    later = replace(now, taken_at_s=NOW_S + 9, containers=(replace(now.containers[0], devices=(less,)),))  # fmt: skip
    assert rates(now, later)["uid-1", "main", 0] == Shares(gpu=0.0, throttled=0.0)


def container(pod: str, used_gib: float, priority: int) -> ContainerUse:
    reported = SelfReported(
        used_bytes=int(used_gib * GIB), context_bytes=0, module_bytes=0, buffer_bytes=0,
        limit_bytes=0, sm_percent=int(100 - used_gib * 10),
    )  # fmt: skip
    return ContainerUse(
        pod_uid=pod, namespace="team", pod=pod, container="main", tier=Tier.NONE, hook_version="",
        priority=priority, state=ContainerState(
            namespace="team", pod=pod, container="main", state=State.OFF, reason=Reason.OFF
        ),
        devices=(
            DeviceUse(
                place=0, uuid=GPUS[0], memory_limit_bytes=0, core_permille=0, reported=reported
            ),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("order", "pods"),
    [
        pytest.param("m", ["b", "a", "c"], id="memory"),
        pytest.param("g", ["c", "a", "b"], id="GPU share"),
        pytest.param("t", ["a", "b", "c"], id="throttled, which nobody counts here"),
        pytest.param("p", ["c", "b", "a"], id="priority"),
        pytest.param("n", ["a", "b", "c"], id="name"),
    ],
)
def test_orders(order: str, pods: list[str]) -> None:
    use = replace(
        use_pictures.EVERYTHING,
        containers=(container("a", 2, 3), container("b", 5, 2), container("c", 1, 0)),
    )
    shown = view(NodePicture.of(use, INVENTORY, answered_at_s=NOW_S, node="", agent_version=""), order=order)  # fmt: skip
    assert [row.name.split("/")[1] for row in shown.cards[0].rows] == pods
    assert not any(row.holds for row in shown.cards[0].rows)


def test_every_order_has_a_key_that_does_nothing_else() -> None:
    assert not {"q", "j", "k", "b", " "} & set(ORDERS)


# --- the screen ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        pytest.param([], 0, id="at the top"),
        pytest.param(["down", "j"], 2, id="down"),
        pytest.param(["page down"], 8, id="a page"),
        pytest.param([" ", "up", "k"], 6, id="back"),
        pytest.param(["up", "page up", "b"], 0, id="not above the top"),
        pytest.param(["x", "\x00"], 0, id="keys without a meaning"),
    ],
)
def test_scrolling(keys: list[str], first: int) -> None:
    shown = Shown()
    for key in keys:
        shown = shown.after(key, height=10)
    assert shown.line == first


def test_a_page_fills_the_screen_and_names_the_keys() -> None:
    there = looks()
    drawing = list(drawn(view(there.now), 80))
    part = page(drawing, Shown(), height=8, width=80)
    assert len(part) == 8
    assert [line.plain for line in part[:-1]] == [line.plain for line in drawing[:7]]
    assert part[-1].plain.startswith(
        f"{len(drawing) - 7} more lines: arrows  q quit  sort by:  m memory  g GPU"
    )
    assert part[-1].cell_len <= 80
    assert len(page(drawing, Shown(), height=200, width=80)) == 200
