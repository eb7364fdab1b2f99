"""Limits that the operator or the pod asks for: what holds, what is refused, who hears of it."""

import argparse
import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from limits_node import CARD_MIB, GPUS, MIB, Agent, Node
from waiting import eventually

from agent import limit_command, logs
from agent.domain.gpu import GpuInventory, Sharing
from agent.domain.grants import Grant
from agent.domain.limit_change import AnnotationRule
from agent.domain.limit_record import LimitRecord
from agent.domain.limits_file import decode
from agent.domain.pods import Container
from agent.services.limit_changes import LimitChanges
from agent.supervisor import Lifeline


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# --- the control socket ---------------------------------------------------------------------------


def test_the_operator_sets_limits_and_is_told_what_they_were(node: Node) -> None:
    record = node.grant("p")
    agent = node.agent()
    status, said = agent.post(pod="team/p", container="main", memory="500Mi", cores=20)
    assert status == 200
    assert said == {
        "pod": "team/p",
        "container": "main",
        "gpus": [
            {
                "uuid": GPUS[0], "index": 0,
                "memory_limit_bytes": 500 * MIB, "core_permille": 200,
                "before": {"memory_limit_bytes": 1000 * MIB, "core_permille": 400},
                "used_bytes": None, "over_bytes": 0,
            }
        ],
        "warnings": [],
    }  # fmt: skip
    assert node.held(record) == [(500, 20)]
    assert node.counted == [("socket", "changed")]
    (event,) = node.events
    assert (event.reason, event.warning) == ("VgpuLimitsChanged", False)
    assert event.message == (
        f"container main, by an administrator: GPU 0 ({GPUS[0]}): "
        "memory 1000 MiB -> 500 MiB, cores 40 % -> 20 %"
    )
    assert event.pod is not None
    assert event.pod.name == "p"


def test_what_already_holds_is_no_change(node: Node) -> None:
    node.grant("p")
    assert node.agent().post(target="p", memory="1000Mi")[0] == 200
    assert (node.counted, node.events) == ([("socket", "unchanged")], [])


def test_one_gpu_of_several_by_number_or_uuid(node: Node) -> None:
    record = node.grant("p", "main", (1000, 40), (2000, 50))
    agent = node.agent()
    assert agent.post(target="p", memory="100Mi")[0] == 200
    assert node.held(record) == [(100, 40), (100, 50)]
    assert agent.post(target="p", gpu=1, memory="700Mi", cores="none")[0] == 200
    assert agent.post(target="p", gpu=GPUS[0].lower(), cores=10)[0] == 200
    assert node.held(record) == [(100, 10), (700, 0)]
    assert agent.post(target="p", gpu=0, reset=True)[0] == 200
    assert node.held(record) == [(1000, 40), (700, 0)]
    assert agent.post(target="p", reset=True)[0] == 200
    assert node.held(record) == [(1000, 40), (2000, 50)]


def test_a_gpu_of_somebody_else_is_refused(node: Node) -> None:
    node.grant("p")
    status, said = node.agent().post(target="p", gpu=1, memory="1Gi")
    assert status == 409
    assert "no share of GPU '1'; it has: 0 (GPU-" in said["error"]


def test_below_what_is_used_is_accepted_and_said(node: Node) -> None:
    record = node.grant("p")
    node.uses(record, 800)
    _, said = node.agent().post(target="p", memory="300Mi")
    assert (said["gpus"][0]["used_bytes"], said["gpus"][0]["over_bytes"]) == (
        800 * MIB,
        500 * MIB,
    )
    assert node.events[0].warning
    assert "over by 500 MiB: new allocations are refused" in node.events[0].message


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        pytest.param("team/p/main", 200, "", id="in full"),
        pytest.param("team/p", 409, "may be team/p/main, team/p/side", id="two containers"),
        pytest.param("p", 409, "may be other/p/main, team/p/main, team/p/side", id="two pods"),
        pytest.param("p/side", 200, "", id="pod and container"),
        pytest.param("p/main", 409, "may be other/p/main, team/p/main:", id="in two namespaces"),
        pytest.param("other/p", 200, "", id="the only container"),
        pytest.param("q", 404, "those that have: other/p/main", id="nobody"),
        pytest.param("done", 404, "no container done", id="of a pod that has ended"),
    ],
)
def test_who_is_meant(node: Node, target: str, status: int, said: str) -> None:
    node.grant("p", "main")
    node.grant("p", "side")
    node.grant("p", "main", namespace="other")
    ended = node.grant("done")
    node.pods.update(lambda table: table.without(ended.pod_uid))
    found, body = node.agent().post(target=target, memory="500Mi")
    assert found == status
    assert said in body.get("error", "")
    assert bool(body.get("candidates")) == (status != 200)


SETUP = [Container(name="setup", kind="init", vgpus=1)]


def test_an_init_container_that_has_ended_is_nobody_and_holds_nothing(node: Node) -> None:
    node.grant("p", "setup", (8000, 0))
    record = node.grant("p", "main", (1000, 40))
    agent = node.agent()
    node.annotate(record, None, others=SETUP)
    status, said = agent.post(target="p", memory="5000Mi")
    assert (status, said["candidates"]) == (409, ["team/p/main", "team/p/setup"]), "it may run yet"
    node.annotate(record, None, others=SETUP, ended=["setup"])
    assert agent.post(target="p", memory="5000Mi")[0] == 200
    assert node.held(record) == [(5000, 40)]
    for name in ("p/setup", "team/p/setup"):
        status, said = agent.post(target=name, cores=1)
        assert (status, said["candidates"]) == (404, ["team/p/main"])
        assert f"no container {name} has vGPUs any more: it was an init container" in said["error"]
        assert "team/p/main" in said["error"]


def test_a_pod_whose_init_container_alone_has_vgpus_says_that_it_has_ended(node: Node) -> None:
    record = node.grant("p", "setup")
    node.annotate(record, None, others=SETUP, ended=["setup"])
    status, said = node.agent().post(target="p", cores=1)
    assert (status, said["candidates"]) == (404, [])
    assert "no container p has vGPUs any more" in said["error"]


WHOLE = (CARD_MIB, 0)


@pytest.mark.parametrize(
    ("claims", "scaling", "whole"),
    [
        pytest.param([WHOLE], 1.0, True, id="all memory, no limit of cores"),
        pytest.param([(CARD_MIB, 100)], 1.0, True, id="all cores"),
        pytest.param([(0, 0)], 1.0, True, id="no limits"),
        pytest.param([(CARD_MIB - 1, 100)], 1.0, False, id="not all memory"),
        pytest.param([(CARD_MIB, 99)], 1.0, False, id="not all cores"),
        pytest.param([WHOLE, WHOLE], 1.0, True, id="two GPUs"),
        pytest.param([WHOLE, (1000, 0)], 1.0, False, id="one of two GPUs"),
        pytest.param([WHOLE], 2.0, False, id="half of what is handed out"),
        pytest.param([(2 * CARD_MIB, 0)], 2.0, True, id="all that is handed out"),
        pytest.param([(CARD_MIB // 2, 0)], 0.5, False, id="scaled down, there is a limit"),
    ],
)
def test_who_has_a_whole_gpu(
    node: Node, claims: list[tuple[int, int]], scaling: float, whole: bool
) -> None:
    node.sharing = Sharing(memory_scaling=scaling)
    record = node.grant("p", "main", *claims)
    assert node.agent().containers.has_whole_gpus(record) is whole


def test_what_the_driver_keeps_is_not_wanted_of_who_has_a_whole_gpu(node: Node) -> None:
    record, agent = node.grant("p", "main", (CARD_MIB - 568, 100)), node.agent()
    assert not agent.containers.has_whole_gpus(record)
    kept = [replace(gpu, reserved_mib=568) for gpu in agent.inventory.now().gpus]
    agent.inventory.publish(GpuInventory.of(kept))
    assert agent.containers.has_whole_gpus(record)


def test_who_has_a_whole_gpu_follows_its_limits(node: Node) -> None:
    record = node.grant("p", "main", WHOLE)
    agent = node.agent()
    assert agent.post(target="p", cores=50)[0] == 200
    assert not agent.containers.has_whole_gpus(record)
    assert agent.post(target="p", reset=True)[0] == 200
    assert agent.containers.has_whole_gpus(record)
    agent.post(target="p", memory="1Gi")
    agent.inventory.publish(GpuInventory())
    assert agent.containers.has_whole_gpus(record) is None


def test_a_gpu_that_the_driver_does_not_list_is_named_by_its_uuid_alone(node: Node) -> None:
    record = node.grant("p")
    agent = node.agent()
    agent.inventory.publish(GpuInventory())
    assert agent.post(target="p", gpu="None", memory="1Mi")[0] == 409
    assert node.held(record) == [(1000, 40)]
    assert agent.post(target="p", gpu=record.claims[0].uuid, memory="500Mi")[0] == 200


# --- what the card has ----------------------------------------------------------------------------


def test_beyond_what_the_gpu_has_is_refused_with_what_can_be_had(node: Node) -> None:
    record = node.grant("p")
    node.grant("q", "main", (8000, 0))
    agent = node.agent()
    status, said = agent.post(target="p", memory="3000Mi")
    assert status == 409
    assert "has 10000 MiB to hand out, of which other containers may use 8000 MiB" in said["error"]
    assert "1000 MiB too many: ask for at most 2000 MiB" in said["error"]
    assert node.held(record) == [(1000, 40)]
    assert agent.post(target="p", memory="2000Mi")[0] == 200
    status, said = agent.post(target="p", memory="3000Mi", force=True)
    assert status == 200
    assert said["warnings"] == [
        f"GPU 0 ({GPUS[0]}): its containers may use 1000 MiB more than it has"
    ]
    assert agent.post(target="p", memory="2900Mi")[0] == 200, "lowering harms nobody"
    assert agent.post(target="p", reset=True)[0] == 200
    assert agent.post(target="q", memory=f"{CARD_MIB}Mi")[0] == 409


@pytest.mark.parametrize(("granted_mib", "set_mib", "most_mib"), [
    pytest.param(2000, None, 2000, id="what it was granted"),
    pytest.param(2000, 500, 2000, id="also when it has less"),
    pytest.param(2000, 3000, 3000, id="what an administrator gave it"),
])  # fmt: skip
def test_where_nothing_is_left_what_can_be_had_is_what_it_has_already(
    node: Node, granted_mib: int, set_mib: int | None, most_mib: int
) -> None:
    node.grant("p")
    record = node.grant("q", "main", (granted_mib, 40))
    agent = node.agent()
    if set_mib:
        assert agent.post(target="q", memory=f"{set_mib}Mi")[0] == 200
    assert agent.post(target="p", memory="60Gi", force=True)[0] == 200
    status, said = agent.post(target="q", memory="9000Mi")
    assert status == 409
    assert f"ask for at most {most_mib} MiB, lower" in said["error"]
    assert agent.post(target="q", memory=f"{most_mib}Mi")[0] == 200
    assert node.held(record) == [(most_mib, 40)]


def test_what_others_were_set_to_counts_not_what_they_were_granted(node: Node) -> None:
    node.grant("p")
    node.grant("q", "main", (8000, 0))
    agent = node.agent()
    agent.post(target="q", memory="4000Mi")
    assert agent.post(target="p", memory="6000Mi")[0] == 200
    assert agent.post(target="q", reset=True)[0] == 200, "the scheduler promised it"


PROXY = Container(name="proxy", kind="sidecar", vgpus=1)


@pytest.mark.parametrize(("target", "most_mib"), [
    pytest.param("q", 3000, id="another pod: beside the larger of setup and main"),
    pytest.param("p/setup", 8000, id="the init container: main has not begun"),
    pytest.param("p/main", 8000, id="main: the init container has ended"),
    pytest.param("p/proxy", 3000, id="the sidecar: beside the larger of the two"),
])  # fmt: skip
def test_of_a_pod_counts_what_its_containers_have_at_one_time(
    node: Node, target: str, most_mib: int
) -> None:
    for name, mib in (("proxy", 1000), ("setup", 6000), ("main", 5000)):
        record = node.grant("p", name, (mib, 0))
    node.annotate(record, None, others=[PROXY, *SETUP])
    node.grant("q")
    agent = node.agent()
    status, said = agent.post(target=target, memory=f"{most_mib + 1}Mi")
    assert status == 409
    assert f"may use {CARD_MIB - most_mib} MiB" in said["error"]
    assert agent.post(target=target, memory=f"{most_mib}Mi")[0] == 200


def test_an_unlimited_neighbour_may_use_all_of_it(node: Node) -> None:
    node.grant("p")
    node.grant("q", "main", (0, 0))
    assert node.agent().post(target="p", memory="1001Mi")[0] == 409


def test_a_node_that_promises_more_than_it_has_may_go_on_doing_so(node: Node) -> None:
    node.sharing = Sharing(memory_scaling=2.0)
    node.grant("p")
    node.grant("q", "main", (8000, 0))
    agent = node.agent()
    assert agent.post(target="p", memory="12000Mi")[0] == 200
    assert agent.post(target="p", memory="12001Mi")[0] == 409


def test_without_a_limits_file_nothing_can_be_changed(node: Node) -> None:
    record = node.grant("p")
    node.file(record).unlink()
    status, said = node.agent().post(target="p", memory="1Gi")
    assert status == 409
    assert "by its environment only" in said["error"]


def test_the_size_of_a_mig_device_is_the_hardwares(node: Node) -> None:
    record = node.grant("p")
    node.file(record).unlink()
    mig = "MIG-0a0a0a0a-1111-2222-3333-444444444444"
    node.grants.record(replace(record, grant=Grant(envs={"NVIDIA_VISIBLE_DEVICES": mig})))
    status, said = node.agent().post(target="p", memory="1Gi")
    assert status == 409
    assert said["error"].startswith(f"team/p/main has {mig}, which the hardware keeps apart")


def test_where_nobody_has_limits_the_answer_is_that_at_once(node: Node) -> None:
    """No loop runs that would answer on such a node."""
    node.grant("p")
    changes = LimitChanges(
        node.limits(),
        node.agent().containers,
        count=lambda source, outcome: node.counted.append((source, outcome)),
        none_here="there are none here",
    )
    status, content = answered(changes, b'{"target": "p", "memory": "1Gi"}')
    assert (status, json.loads(content)) == (409, {"error": "there are none here"})
    assert node.counted == [("socket", "refused")]


def test_a_disk_that_refuses_is_told_and_nothing_holds(node: Node) -> None:
    record = node.grant("p")
    (node.root / "state").mkdir()
    (node.root / "state" / "limits").symlink_to("/proc/self")
    status, said = node.agent().post(target="p", memory="500Mi")
    assert status == 503
    assert "the node cannot" in said["error"]
    assert (node.held(record), node.counted) == ([(1000, 40)], [("socket", "failed")])


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b'{"target": "p", "memory": "8"}'])
def test_a_body_that_is_none_is_answered(node: Node, body: bytes) -> None:
    node.grant("p")
    status, content = node.agent().changes.answer(body)
    assert status == 400
    assert json.loads(content)["error"]


# --- what outlives the agent and kubelet ----------------------------------------------------------


def test_an_agent_that_restarts_and_a_kubelet_that_asks_again_change_nothing(node: Node) -> None:
    record = node.grant("p")
    inode = node.file(record).stat().st_ino
    node.agent().post(target="p", memory="500Mi", cores=20)
    node.agent()
    assert node.held(record) == [(500, 20)]
    node.allocate(record)
    assert node.held(record) == [(500, 20)]
    assert node.file(record).stat().st_ino == inode, "the running container has it mounted"


def test_a_limits_file_that_was_lost_is_made_anew_with_what_was_set(node: Node) -> None:
    record = node.grant("p")
    node.agent().post(target="p", memory="500Mi", cores=20)
    node.file(record).unlink()
    node.allocate(record)
    assert node.held(record) == [(500, 20)]
    assert decode(node.file(record).read_bytes()).region_id


def test_what_is_remembered_goes_when_nobody_may_ask_for_it(node: Node) -> None:
    record = node.grant("p")
    node.agent().post(target="p", memory="500Mi")
    node.agent().annotations.look_once()
    node.pods.update(lambda table: table.without(record.pod_uid))
    node.agent().annotations.look_once()
    assert node.limits().changed() == ((record.pod_uid, "main"),), "its grant is still there"
    node.grants.forget(frozenset({record.pod_uid}))
    node.agent().annotations.look_once()
    assert node.limits().changed() == ()


# --- the annotation -------------------------------------------------------------------------------


def test_the_pod_lowers_its_limits_and_raises_them_up_to_its_grant(node: Node) -> None:
    record = node.grant("p")
    agent = node.agent()
    node.annotate(record, {"main": {"memory": "500Mi", "cores": 20}})
    assert not agent.annotations.look_once()
    assert node.held(record) == [(500, 20)]
    assert node.events[-1].message.startswith("container main, by the pod's annotation: GPU 0")
    node.annotate(record, {"main": {"memory": "1000Mi"}})
    agent.annotations.look_once()
    assert node.held(record) == [(1000, 40)], "what it does not say is as granted"
    assert node.counted == [("annotation", "changed")] * 2


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        pytest.param({"memory": "1001Mi"}, "more than the 1000 MiB", id="memory"),
        pytest.param({"cores": 41}, "41 % of GPU 0", id="cores"),
        pytest.param({"cores": "none"}, "no core limit of GPU 0", id="no limit"),
        pytest.param({"gpu": 1, "memory": "1Mi"}, "no share of GPU", id="another GPU"),
        pytest.param({"memory": "a lot"}, "no amount of memory", id="nonsense"),
        pytest.param({"force": True}, "known are", id="force"),
    ],
)
def test_what_the_pod_may_not_is_refused_once_and_its_limits_stay(
    node: Node, asked: dict[str, Any], said: str
) -> None:
    record = node.grant("p")
    node.annotate(record, {"main": asked})
    agent = node.agent()
    for _ in range(3):
        assert not agent.annotations.look_once()
    node.annotate(record, {"later": {}, "main": asked}, others=[Container(name="later", vgpus=1)])
    agent.annotations.look_once()
    node.agent().annotations.look_once()
    assert node.held(record) == [(1000, 40)]
    (event,) = node.events
    assert (event.reason, event.warning) == ("VgpuLimitsRefused", True)
    assert said in event.message
    assert node.counted == [("annotation", "refused")]


def test_what_was_read_once_is_not_read_again(node: Node) -> None:
    """It is looked at whenever anything changes about any pod, and a tenant decides how long it is."""
    records = [node.grant("p", f"c{place}") for place in range(16)]
    said = {f"c{place}": [{"memory": "500Mi"}] * 14 for place in range(48)}
    node.annotate(records[0], said | {"c0": "a lot", "c1": {"cores": 41}})
    agent = node.agent()
    for _ in range(4):
        agent.annotations.look_once()
        node.now_s += 30
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name + event))
    try:
        agent.annotations.look_once()
    finally:
        sys.setprofile(None)
    assert "look_oncecall" in calls
    assert "parse_annotationcall" not in calls


def test_a_seen_annotation_is_no_new_change_after_a_restart(node: Node) -> None:
    record = node.grant("p")
    node.annotate(record, {"main": {"memory": "500Mi"}})
    agent = node.agent()
    agent.annotations.look_once()
    agent.post(target="p", memory="700Mi")
    agent.annotations.look_once()
    node.agent().annotations.look_once()
    assert node.held(record) == [(700, 40)], "the operator came later"
    assert len(node.events) == 2


def test_an_annotation_that_is_taken_away_takes_along_what_it_did(node: Node) -> None:
    record = node.grant("p")
    node.annotate(record, {"main": {"memory": "500Mi"}})
    node.agent().annotations.look_once()
    node.annotate(record, None)
    agent = node.agent()
    agent.annotations.look_once()
    assert node.held(record) == [(1000, 40)]
    node.annotate(record, {"main": {"memory": "500Mi"}})
    agent.annotations.look_once()
    agent.post(target="p", memory="600Mi")
    node.annotate(record, None)
    agent.annotations.look_once()
    assert node.held(record) == [(600, 40)], "the operator came later"


@pytest.mark.parametrize(("set_to", "held"), [
    pytest.param({"cores": 8}, (1000, 8), id="cores alone"),
    pytest.param({"memory": "600Mi"}, (600, 40), id="memory alone"),
    pytest.param({"memory": "600Mi", "cores": 8}, (600, 8), id="both"),
    pytest.param({"memory": "500Mi"}, (500, 40), id="the same as the annotation"),
    pytest.param({"reset": True}, (1000, 40), id="back to the grant"),
])  # fmt: skip
def test_without_its_annotation_a_container_has_what_the_operator_set_and_else_its_grant(
    node: Node, set_to: dict[str, Any], held: tuple[int, int]
) -> None:
    record = node.grant("p")
    node.annotate(record, {"main": {"memory": "500Mi", "cores": 20}})
    agent = node.agent()
    agent.annotations.look_once()
    assert agent.post(target="p", **set_to)[0] == 200
    agent.annotations.look_once()
    node.annotate(record, None)
    for _ in range(2):  # whoever takes it away while the agent is not there, too
        node.agent().annotations.look_once()
        assert node.held(record) == [held]


def test_of_one_gpu_that_the_operator_set_the_others_go_back(node: Node) -> None:
    record = node.grant("p", "main", (1000, 40), (2000, 50))
    node.annotate(record, {"main": {"memory": "500Mi"}})
    agent = node.agent()
    agent.annotations.look_once()
    agent.post(target="p", gpu=1, memory="700Mi")
    node.annotate(record, None)
    agent.annotations.look_once()
    assert node.held(record) == [(1000, 40), (700, 50)]


# --- names in the annotation ----------------------------------------------------------------------

SIDE = [Container(name="side")]  # without vGPUs


@pytest.mark.parametrize("named", [
    pytest.param("mian", id="misspelt"),
    pytest.param("side", id="a container without vGPUs"),
    pytest.param("m\nain" * 400, id="no name at all"),
])  # fmt: skip
def test_a_name_that_is_nobodys_changes_nothing_and_is_told_once(node: Node, named: str) -> None:
    record = node.grant("p")
    agent = node.agent()
    node.annotate(record, {"main": {"memory": "600Mi"}}, others=SIDE)
    agent.annotations.look_once()
    node.annotate(record, {named: {"memory": "700Mi"}}, others=SIDE)
    for _ in range(2):
        assert not agent.annotations.look_once()
        node.agent().annotations.look_once()
    assert node.held(record) == [(600, 40)]
    _, event = node.events
    assert (event.reason, event.warning) == ("VgpuLimitsRefused", True)
    assert named[:1] in event.message
    assert "no container of this pod with vGPUs (it has: main)" in event.message
    assert len(event.message) < 600
    assert node.counted == [("annotation", "changed"), ("annotation", "refused")]
    node.annotate(record, None, others=SIDE)
    node.agent().annotations.look_once()
    assert node.held(record) == [(1000, 40)], "taken away, it takes along what it did"
    node.annotate(record, {named: {"memory": "700Mi"}}, others=SIDE)
    node.agent().annotations.look_once()
    assert len(node.events) == 4, "whoever writes it again hears of it again"


def test_who_is_named_rightly_is_followed_beside_a_name_that_is_nobodys(node: Node) -> None:
    record = node.grant("p")
    other = node.grant("p", "other")
    agent = node.agent()
    node.annotate(record, {"main": {"memory": "600Mi"}, "other": {"memory": "500Mi"}})
    agent.annotations.look_once()
    node.annotate(record, {"main": {"memory": "700Mi"}, "ohter": {"memory": "400Mi"}})
    agent.annotations.look_once()
    assert (node.held(record), node.held(other)) == ([(700, 40)], [(500, 40)])
    assert [event.reason for event in node.events].count("VgpuLimitsRefused") == 1
    assert "'ohter'" in node.events[-1].message
    node.annotate(record, {"main": {"memory": "700Mi"}, "other": {"memory": "400Mi"}})
    agent.annotations.look_once()
    assert node.held(other) == [(400, 40)]
    node.annotate(record, {"main": {"memory": "700Mi"}})
    agent.annotations.look_once()
    assert node.held(other) == [(1000, 40)], "it is not named any more"


@pytest.mark.parametrize("others", [
    pytest.param([Container(name="later", vgpus=1)], id="that has not been granted yet"),
    pytest.param([Container(name="later", listed=True)], id="that the scheduler decides about"),
])  # fmt: skip
def test_a_container_that_will_be_granted_something_is_known(
    node: Node, others: list[Container]
) -> None:
    record = node.grant("p")
    agent = node.agent()
    node.annotate(record, {"later": {"memory": "500Mi"}}, others=others)
    agent.annotations.look_once()
    assert node.events == []
    later = node.grant("p", "later")
    node.annotate(record, {"later": {"memory": "500Mi"}}, others=others)
    agent.annotations.look_once()
    assert (node.held(record), node.held(later)) == ([(1000, 40)], [(500, 40)])


def test_an_init_container_that_has_ended_is_a_name_all_the_same(node: Node) -> None:
    node.grant("p", "setup")
    record = node.grant("p")
    asked = {"setup": {"memory": "500Mi"}, "main": {"memory": "500Mi"}}
    node.annotate(record, asked, others=SETUP, ended=["setup"])
    node.agent().annotations.look_once()
    assert node.held(record) == [(500, 40)]
    assert [event.reason for event in node.events] == ["VgpuLimitsChanged"]


def test_an_annotation_that_cannot_be_read_at_all_is_told_as_such(node: Node) -> None:
    record = node.grant("p")
    node.annotate(record, "{")
    node.agent().annotations.look_once()
    (event,) = node.events
    assert "no JSON" in event.message


def test_nobodys_names_that_are_edited_all_the_time_are_told_in_the_end(node: Node) -> None:
    record = node.grant("p")
    agent = node.agent()
    for number in range(20):
        node.annotate(record, {f"nobody-{number}": {"cores": 1}})
        again = agent.annotations.look_once()
    assert again
    assert len(node.events) == 5
    node.now_s += 10.1
    assert not agent.annotations.look_once()
    assert "nobody-19" in node.events[-1].message


@pytest.mark.parametrize(("set_mib", "asked_mib", "held_mib"), [
    pytest.param(600, 800, 600, id="not back above what the operator lowered it to"),
    pytest.param(600, 500, 500, id="below that"),
    pytest.param(3000, 2000, 2000, id="below what the operator raised it to"),
    pytest.param(3000, 3001, 3000, id="not above that"),
])  # fmt: skip
def test_what_the_operator_set_is_the_pods_ceiling(
    node: Node, set_mib: int, asked_mib: int, held_mib: int
) -> None:
    record = node.grant("p")
    node.agent().post(target="p", memory=f"{set_mib}Mi")
    node.annotate(record, {"main": {"memory": f"{asked_mib}Mi"}})
    agent = node.agent()
    agent.annotations.look_once()
    assert node.held(record) == [(held_mib, 40)]
    node.annotate(record, None)
    agent.annotations.look_once()
    assert node.held(record) == [(set_mib, 40)]
    agent.post(target="p", reset=True)
    node.annotate(record, {"main": {"memory": "1000Mi"}})
    agent.annotations.look_once()
    assert node.held(record) == [(1000, 40)]


def test_what_the_pod_lowered_is_no_ceiling_that_the_operator_set(node: Node) -> None:
    record = node.grant("p")
    node.annotate(record, {"main": {"cores": 10}})
    agent = node.agent()
    agent.annotations.look_once()
    agent.post(target="p", memory="900Mi")
    assert node.held(record) == [(900, 10)]
    node.annotate(record, {"main": {"cores": 40}})
    agent.annotations.look_once()
    assert node.held(record) == [(900, 40)]


@pytest.mark.parametrize(
    ("rule", "held", "reason"),
    [
        pytest.param(AnnotationRule.OFF, (1000, 40), "VgpuLimitsRefused", id="off"),
        pytest.param(AnnotationRule.LOWER, (1000, 40), "VgpuLimitsRefused", id="lower"),
        pytest.param(AnnotationRule.ANY, (2000, 40), "VgpuLimitsChanged", id="any"),
    ],
)
def test_the_nodes_rule(
    node: Node, rule: AnnotationRule, held: tuple[int, int], reason: str
) -> None:
    record = node.grant("p")
    node.annotate(record, {"main": {"memory": "2000Mi"}})
    node.agent(rule).annotations.look_once()
    assert node.held(record) == [held]
    assert [event.reason for event in node.events] == [reason]
    node.agent(AnnotationRule.ANY).annotations.look_once()
    assert node.held(record) == [(2000, 40)], "another rule allows what was refused"


def test_not_even_any_goes_beyond_the_gpu(node: Node) -> None:
    record = node.grant("p")
    node.annotate(record, {"main": {"memory": "10001Mi"}})
    node.agent(AnnotationRule.ANY).annotations.look_once()
    assert node.held(record) == [(1000, 40)]


def test_an_annotation_that_is_edited_all_the_time_is_followed_in_the_end(node: Node) -> None:
    record = node.grant("p")
    agent = node.agent()
    for mib in range(100, 120):
        node.annotate(record, {"main": {"memory": f"{mib}Mi"}})
        again = agent.annotations.look_once()
    assert again
    assert len(node.events) == 5
    node.now_s += 10.1
    assert not agent.annotations.look_once()
    assert node.held(record) == [(119, 40)]


def test_a_disk_that_refuses_is_tried_again(node: Node) -> None:
    record = node.grant("p")
    (node.root / "state").mkdir()
    (node.root / "state" / "limits").symlink_to("/proc/self")
    node.annotate(record, {"main": {"memory": "500Mi"}})
    agent = node.agent()
    assert agent.annotations.look_once()
    (node.root / "state" / "limits").unlink()
    assert not agent.annotations.look_once()
    assert node.held(record) == [(500, 40)]


@contextmanager
def running(agent: Agent) -> Iterator[None]:
    stop = threading.Event()
    life = Lifeline(stop)
    thread = threading.Thread(target=agent.annotations.run, args=(life,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        life.interrupt()
        thread.join(10)
    assert not thread.is_alive()


def test_the_loop_follows_what_the_watch_brings_and_ends(node: Node) -> None:
    record = node.grant("p")
    with running(node.agent()):
        for mib in (500, 600):
            node.annotate(record, {"main": {"memory": f"{mib}Mi"}})
            wanted = [(mib, 40)]
            eventually(lambda wanted=wanted: node.held(record) == wanted)  # type: ignore[misc]


def answered(changes: LimitChanges, body: bytes) -> tuple[int, bytes]:
    """What is answered as soon as there is something to answer."""
    done = threading.Event()
    asked = changes.post(body, "", done.set)
    assert done.wait(60)
    given = asked.given()
    assert given is not None
    return given


def test_the_loop_does_what_is_asked_for_on_the_socket(node: Node) -> None:
    record = node.grant("p")
    agent = node.agent()
    with running(agent):
        for _ in range(2):
            status, _ = answered(agent.changes, b'{"target": "p", "memory": "500Mi"}')
            assert status == 200
        assert answered(agent.changes, b"{")[0] == 400
    assert node.held(record) == [(500, 40)]


def test_what_could_not_be_done_in_time_is_not_done_later(node: Node) -> None:
    """An agent that waits for another one to end may take over in an hour."""
    record = node.grant("p")
    agent = node.agent()
    asked = agent.changes.post(b'{"target": "p", "memory": "500Mi"}', "", lambda: None)
    assert asked.given() is None
    for _ in range(2):
        status, content = asked.give_up()
        assert status == 503
        assert "nothing was changed" in json.loads(content)["error"]
    with running(agent):
        assert answered(agent.changes, b'{"target": "p", "cores": 20}')[0] == 200
    assert node.held(record) == [(1000, 20)]


def test_a_request_that_takes_long_is_answered_all_the_same(node: Node) -> None:
    record = node.grant("p")
    agent = node.agent()
    worker = threading.Thread(target=agent.changes.serve_waiting)
    with agent.changes.one_at_a_time:  # as long as another change waits for the disk
        asked = agent.changes.post(b'{"target": "p", "memory": "500Mi"}', "", lambda: None)
        worker.start()
        eventually(lambda: not asked.waits)
        status, content = asked.give_up()
        assert status == 503
        assert "still being done" in json.loads(content)["error"]
    worker.join(10)
    assert node.held(record) == [(500, 40)]
    assert (asked.given() or (0,))[0] == 200, "whoever still asks is told"


def test_a_request_at_which_the_agent_fails_is_answered_all_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = node.agent().changes

    def broken(_target: str) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(changes._containers, "addressed", broken)
    asked = changes.post(b'{"target": "p", "memory": "500Mi"}', "", lambda: None)
    with pytest.raises(RuntimeError):
        changes.serve_waiting()
    assert asked.given() == (500, b'{"error": "the agent failed: look at its log"}')


def test_the_log_says_who_changed_what(node: Node) -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, form="json")
    try:
        record = node.grant("p")
        agent = node.agent()
        agent.asked_by = "uid 0, pid 77"
        agent.post(target="p", memory="500Mi")
        agent.post(target="nobody", memory="500Mi")
        node.annotate(record, {"main": {"memory": "5Ti"}})
        agent.annotations.look_once()
    finally:
        logs.configure()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    changed, unknown, refused = (line for line in lines if line["event"].startswith("limits "))
    assert (changed["event"], changed["source"]) == ("limits changed", "socket")
    assert changed["asked_by"] == unknown["asked_by"] == "uid 0, pid 77"
    assert unknown["event"] == "limits refused"
    assert node.events[0].message.startswith(
        "container main, by an administrator (uid 0, pid 77): GPU 0"
    )
    assert changed["container"] == "team/p/main"
    assert changed["change"] == f"GPU 0 ({GPUS[0]}): memory 1000 MiB -> 500 MiB"
    assert (refused["event"], refused["source"]) == ("limits refused", "annotation")


# --- the command ----------------------------------------------------------------------------------


def command(node: Node, *words: str) -> int:
    parser = argparse.ArgumentParser()
    limit_command.add_arguments(parser)
    return limit_command.run(parser.parse_args(words), node.root, asked=node.agent().asked)


def test_the_command_prints_what_holds(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    record = node.grant("p", "main", (1000, 40), (2000, 0))
    node.uses(record, 800)
    assert command(node, "p", "--memory", "500Mi") == 0
    head, first, second, tail = capsys.readouterr().out.splitlines()
    assert head == "team/p/main"
    assert first.startswith("  GPU 0: 1000 MiB -> 500 MiB, 40 %; over by 300 MiB: new allocations")
    assert second == "  GPU 1: 2000 MiB -> 500 MiB, no core limit"
    assert tail == "It holds until the pod ends, or until --reset."
    assert command(node, "team/p/main", "--gpu", "1", "--cores", "30%") == 0
    capsys.readouterr()
    assert command(node, "p", "--gpu", "1", "--reset") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "What was granted holds again on that GPU."
    assert command(node, "p", "--reset") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "What was granted holds again."
    assert command(node, "p", "--reset", "--json") == 0
    said = capsys.readouterr().out
    assert json.loads(said[said.index("{") :])["pod"] == "team/p"
    assert node.held(record) == [(1000, 40), (2000, 0)]
    assert node.limits().record(record.pod_uid, "main").ceiling == LimitRecord().ceiling


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(["p"], 2, "give --memory, --cores or both", id="nothing"),
        pytest.param(["p", "--reset", "--cores", "3"], 2, "or else --reset", id="both"),
        pytest.param(["p", "--memory", "8"], 2, "a number alone is bytes", id="a bare number"),
        pytest.param(["p", "--cores", "0"], 2, "from 1 to 100, or none", id="no share"),
        pytest.param(["", "--cores", "3"], 2, "it is not said whose limits", id="nobody's name"),
        pytest.param(["p\n", "--cores", "3"], 2, "is no name", id="no name"),
        pytest.param(["p" * 500, "--cores", "3"], 2, "is no name", id="a long name"),
        pytest.param(["p", "--gpu", "", "--cores", "4"], 2, "gpu '' is none", id="no GPU"),
        pytest.param(["p", "--gpu", "", "--reset"], 2, "gpu '' is none", id="reset of no GPU"),
        pytest.param(["p", "--gpu", "7", "--cores", "4"], 1, "no share of GPU '7'", id="its GPU"),
        pytest.param(["q", "--cores", "3"], 1, "those that have: team/p/main", id="nobody"),
        pytest.param(["p", "--memory", "1Ti"], 1, "ask for at most", id="too much"),
    ],
)
def test_the_command_says_what_is_wrong(
    node: Node, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    node.grant("p")
    assert command(node, *words) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_the_command_without_an_agent(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    limit_command.add_arguments(parser)
    assert limit_command.run(parser.parse_args(["p", "--cores", "3"]), node.root) == 1
    assert "the agent does not run on this node" in capsys.readouterr().err
