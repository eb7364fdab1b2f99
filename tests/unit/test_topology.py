"""Pair scores: what a scheduler that packs GPUs close together compares."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.topology import POINTS, GpuPair, asymmetric_pairs, pair_scores, score


def pair(level: str = "system", links: int = 0, links_back: int | None = None) -> GpuPair:
    back = links if links_back is None else links_back
    return GpuPair(first="GPU-a", second="GPU-b", level=level, links=links, links_back=back)


@pytest.mark.parametrize(
    ("given_pair", "points"),
    [
        pytest.param(pair("system"), 10, id="different CPUs"),
        pytest.param(pair("node"), 20, id="same CPU"),
        pytest.param(pair("hostbridge"), 30, id="host bridge"),
        pytest.param(pair("multiple"), 40, id="several switches"),
        pytest.param(pair("single"), 50, id="one switch"),
        pytest.param(pair("internal"), 60, id="same board"),
        pytest.param(pair(""), 0, id="the driver does not know"),
        pytest.param(pair("martian"), 0, id="a level from the future"),
        pytest.param(pair("system", 1), 110, id="one NVLink"),
        pytest.param(pair("node", 4), 420, id="four NVLinks"),
        pytest.param(pair("system", 18), 1810, id="all NVLinks"),
        pytest.param(pair("system", 40), 1810, id="more than there can be"),
        pytest.param(pair("system", 4, 3), 0, id="ends disagree"),
        pytest.param(pair("system", 0, 3), 0, id="one end sees none"),
    ],
)
def test_a_pair_scores_by_distance_and_links(given_pair: GpuPair, points: int) -> None:
    assert score(given_pair) == points


def test_scores_are_listed_for_both_ends_in_the_order_of_the_gpus() -> None:
    pairs = [
        GpuPair(first="GPU-b", second="GPU-c", level="node"),
        GpuPair(first="GPU-c", second="GPU-a", level="single"),
        GpuPair(first="GPU-a", second="GPU-b", level="system", links=1, links_back=1),
    ]
    scores = pair_scores(["GPU-a", "GPU-b", "GPU-c"], pairs)
    assert scores == (
        ("GPU-a", {"GPU-b": 110, "GPU-c": 50}),
        ("GPU-b", {"GPU-a": 110, "GPU-c": 20}),
        ("GPU-c", {"GPU-a": 50, "GPU-b": 20}),
    )
    assert [list(row) for _, row in scores] == [
        ["GPU-b", "GPU-c"], ["GPU-a", "GPU-c"], ["GPU-a", "GPU-b"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "stray",
    [
        pytest.param(GpuPair(first="GPU-a", second="GPU-z", level="node"), id="unknown GPU"),
        pytest.param(GpuPair(first="GPU-a", second="GPU-a", level="node"), id="a GPU with itself"),
    ],
)
def test_pairs_of_gpus_that_are_not_shared_are_left_out(stray: GpuPair) -> None:
    assert pair_scores(["GPU-a", "GPU-b"], [stray]) == (("GPU-a", {}), ("GPU-b", {}))


def test_asymmetric_pairs_are_found() -> None:
    broken = pair("node", 4, 3)
    assert asymmetric_pairs([pair("node", 4), broken]) == (broken,)


numbers = st.integers(min_value=0, max_value=18)
uuids = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]


@given(
    st.lists(
        st.builds(
            GpuPair,
            first=st.sampled_from(uuids),
            second=st.sampled_from(uuids),
            level=st.sampled_from([*POINTS, ""]),
            links=numbers,
            links_back=numbers,
        )
    )
)
def test_scores_are_symmetric_and_bounded(pairs: list[GpuPair]) -> None:
    scores = dict(pair_scores(uuids, pairs))
    for uuid, row in scores.items():
        assert uuid not in row
        for other, points in row.items():
            assert scores[other][uuid] == points
            assert 0 <= points <= 1860
