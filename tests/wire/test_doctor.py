"""Doctor on a node in which exactly one thing is broken: it names that, and only that."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from doctor_breaks import BREAKS
from doctor_node import DoctorNode
from doctor_ways import Break, settings

from agent.doctor.checks import CHECKS
from agent.doctor.finding import Verdict

BY_NAME = {check.name: check for check in CHECKS}


@pytest.fixture
def node(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DoctorNode]:
    with ExitStack() as stack:
        yield DoctorNode(tmp_path_factory.mktemp("d"), stack, monkeypatch)


def needing(name: str) -> set[str]:
    """The checks that need this one, by whatever way; what is needed comes before."""
    found = {name}
    for check in CHECKS:
        if found & set(check.needs):
            found.add(check.name)
    return found - {name}


def test_nothing_is_wrong_with_a_healthy_node(node: DoctorNode) -> None:
    found = node.look()
    assert {name: str(f) for name, f in found.items() if f.verdict is not Verdict.OK} == {}
    assert list(found) == [check.name for check in CHECKS]


def test_every_check_has_something_that_it_alone_names() -> None:
    assert {one.check for one in BREAKS} == set(BY_NAME)


def test_a_reload_that_would_take_gpus_away_is_named(node: DoctorNode) -> None:
    """Without links in /dev/char systemd forgets devices; who passes them to kubelet is not told."""
    (broken,) = [one for one in BREAKS if one.check == "device-links"]
    broken.do(node)
    found = node.look()["device-links"]
    assert found.verdict is Verdict.WARNING
    assert "systemctl daemon-reload" in found.evidence
    assert found.fix.startswith("nvidia-ctk system create-dev-char-symlinks")
    settings(pass_device_specs=True)(node)
    assert node.look()["device-links"].verdict is Verdict.OK


@pytest.mark.parametrize(
    "broken", [pytest.param(one, id=f"{one.check}: {one.id}") for one in BREAKS]
)
def test_it_is_named_and_nothing_else(node: DoctorNode, broken: Break) -> None:
    if not broken.agent:
        node.lock.release()
    broken.do(node)
    found = node.look()
    mine = found.pop(broken.check)
    assert mine.verdict is broken.verdict, mine
    assert broken.says in mine.evidence
    assert mine.fix
    skipped = set() if mine.verdict is Verdict.WARNING else needing(broken.check)
    if not broken.agent:
        assert found.pop("agent").verdict is Verdict.SKIPPED
        for name in needing("agent"):
            assert found.pop(name).evidence == "needs `agent`, which is skipped"
    others = {name: (f.verdict, f.evidence) for name, f in found.items() if f.verdict != "ok"}
    assert {name: verdict for name, (verdict, _) in others.items()} == dict.fromkeys(
        skipped, Verdict.SKIPPED
    ), others
    assert all(f"`{broken.check}`" in evidence for _, evidence in others.values())
