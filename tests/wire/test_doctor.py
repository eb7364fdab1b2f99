"""Doctor on a node in which exactly one thing is broken: it names that, and only that."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from doctor_node import DoctorNode

from agent.doctor.checks import CHECKS
from agent.doctor.finding import Verdict


@pytest.fixture
def node(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DoctorNode]:
    with ExitStack() as stack:
        yield DoctorNode(tmp_path_factory.mktemp("d"), stack, monkeypatch)


def test_nothing_is_wrong_with_a_healthy_node(node: DoctorNode) -> None:
    found = node.look()
    assert {name: str(f) for name, f in found.items() if f.verdict is not Verdict.OK} == {}
    assert list(found) == [check.name for check in CHECKS]
