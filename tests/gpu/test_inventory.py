"""What the agent reads from NVML, against what others say of the same GPUs."""

from pathlib import Path

import pytest
from gpu.machine import Facts, Machine


def test_the_gpus_are_those_that_others_list(machine: Machine) -> None:
    seen = tuple(
        Facts(
            index=gpu["index"],
            uuid=gpu["uuid"],
            name=gpu["name"],
            memory_mib=gpu["memory_mib"],
            bus_id=gpu["pci_bus_id"].lower(),
            mig=gpu["mig_enabled"],
        )
        for gpu in machine.driver_answers()["gpus"]
    )
    assert seen == machine.facts


def test_a_gpu_that_works_passes_its_probe_and_reports_nothing(machine: Machine) -> None:
    answers = machine.driver_answers()  # probes each; a failure would be told as an error
    assert all(not gpu["unhealthy_reason"] for gpu in answers["gpus"])
    assert answers["events"] == []
    assert answers["again"] == [facts.uuid for facts in machine.facts]


def test_every_gpu_is_watched_for_events(machine: Machine) -> None:
    answers = machine.driver_answers()
    if answers["unwatchable"]:
        pytest.skip(f"this driver offers no events for {answers['unwatchable']}")
    assert answers["watched"] == sorted(facts.uuid for facts in machine.facts)


def test_every_pair_of_gpus_has_its_topology(machine: Machine) -> None:
    pairs = [(pair["first"], pair["second"]) for pair in machine.driver_answers()["pairs"]]
    uuids = [facts.uuid for facts in machine.facts]
    wanted = {frozenset((a, b)) for a in uuids for b in uuids if a != b}
    assert {frozenset(pair) for pair in pairs} == wanted


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_minor_numbers_name_device_nodes(real: Machine) -> None:
    minors = [gpu["minor"] for gpu in real.driver_answers()["gpus"]]
    assert len(set(minors)) == len(minors)
    assert [minor for minor in minors if not Path(f"/dev/nvidia{minor}").is_char_device()] == []
