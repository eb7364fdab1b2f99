"""The agent as a process finds real processes that use GPUs past their grants."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from pod_cgroups import CgroupsUnavailable, pod_cgroup

from agent.sim.container import Container
from agent.sim.node import Ask, SimNode
from tests.e2e.conftest import NodeMaker
from tests.e2e.test_enforcement import Pod
from tests.waiting import eventually

QUICK = ("--process-interval", "0.2s", "--bypass-interval", "0.2s", "--allocate-budget", "10s")


@dataclass
class Stage:
    """A node, and what is undone after the test."""

    node: SimNode
    stack: ExitStack

    def taker(self, pod_uid: str = "", mib: int = 500) -> Container:
        """A process without the library that holds memory of GPU 0; in a pod's cgroup."""
        driver = self.node.driver
        words = [str(driver.libraries / "sim-tenant")]
        if pod_uid:
            try:
                words = self.stack.enter_context(pod_cgroup(pod_uid)).command(*words)
            except CgroupsUnavailable as error:
                pytest.skip(str(error))
        taker = Container.start("taker", driver=driver, env={}, command=words, isolated=False)
        self.stack.callback(taker.stop)
        taker._read_answer("starting")
        assert taker.ask(f"alloc {mib}").ok
        return taker

    def bound_pod(self, name: str, **asks: Any) -> str:
        """A pod that runs here; give its uid."""
        return self.node.create_pod(name, [Ask(**asks)] if asks else [], node_name=self.node.name)

    def found(self) -> list[tuple[str, str]]:
        """Kind and pod of what /metrics says."""
        lines = self.node.fetch("/metrics")[1].splitlines()
        rows = [line for line in lines if line.startswith("vgpu_bypass{")]
        assert all(row.endswith((" 1.0", " 1")) for row in rows)
        label = [
            dict(p.split("=", 1) for p in row[12 : row.rindex("}")].split(",")) for row in rows
        ]
        return [(one["kind"].strip('"'), one["pod"].strip('"')) for one in label]

    def events(self, reason: str = "VgpuBypass") -> list[dict[str, Any]]:
        return [event for event in self.node.events() if event["reason"] == reason]


def staged(make_node: NodeMaker, stack: ExitStack, *flags: str) -> Stage:
    return Stage(make_node(*QUICK, *flags, gpus=1), stack)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_pod_without_a_grant_is_told_and_counted_once(
    make_node: NodeMaker, stack: ExitStack
) -> None:
    stage = staged(make_node, stack)
    uid = stage.bound_pod("thief")
    assert stage.found() == []
    taker = stage.taker(uid)
    eventually(lambda: stage.found() == [("no grant", "thief")])
    (event,) = eventually(stage.events)
    assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("Pod", "thief")
    assert f"process {taker.pid}" in event["message"]
    assert 'vgpu_bypasses_total{kind="no grant"} 1.0' in stage.node.fetch("/metrics")[1]
    taker.stop()
    eventually(lambda: stage.found() == [])
    eventually(lambda: 'failure="GPU used past its grant"' in stage.node.log_text())
    assert len(stage.events()) == 1
    assert uid in {pod["metadata"]["uid"] for pod in stage.node.api.objects.list("pods")[0]}


def test_a_process_of_the_host_is_told_of_the_node_unless_it_is_allowed(
    make_node: NodeMaker, stack: ExitStack
) -> None:
    stage = staged(make_node, stack)
    stage.taker()
    eventually(lambda: stage.found() == [("host process", "")])
    (event,) = eventually(stage.events)
    assert event["involvedObject"]["kind"] == "Node"
    allowed = staged(make_node, stack, "--bypass-allow-programs", "Xorg,sim-tenant")
    allowed.taker()
    uid = allowed.bound_pod("thief")
    allowed.taker(uid)
    eventually(lambda: allowed.found() == [("no grant", "thief")], what="its name excuses no pod")


def test_who_keeps_to_the_grant_is_not_accused(make_node: NodeMaker, stack: ExitStack) -> None:
    stage = staged(make_node, stack)
    try:
        pod = Pod(stage.node, stack)
    except CgroupsUnavailable as error:
        pytest.skip(str(error))
    tenant = pod.tenant()
    assert tenant.ask("alloc 1000").ok
    assert not tenant.ask("alloc 1").ok
    eventually(lambda: pod.metric() == " 1.0")
    uid = stage.bound_pod("thief")
    taker = stage.taker(uid)
    eventually(lambda: stage.found() == [("no grant", "thief")], what="it was looked, meanwhile")
    taker.stop()
    tenant.kill()


def test_beside_its_library_a_container_gets_past_its_limit_and_is_found(
    make_node: NodeMaker, stack: ExitStack
) -> None:
    """One process counts, another one in the same cgroup does not."""
    stage = staged(make_node, stack)
    try:
        pod = Pod(stage.node, stack)
    except CgroupsUnavailable as error:
        pytest.skip(str(error))
    tenant = pod.tenant()
    assert tenant.ask("alloc 900").ok
    driver = stage.node.driver
    process = Container.start(
        "beside", driver=driver, env={}, isolated=False,
        command=pod.cgroup.command(str(driver.libraries / "sim-tenant")),
    )  # fmt: skip
    stack.callback(process.stop)
    process._read_answer("starting")
    assert process.ask("alloc 1400").ok
    # The simulated driver lists the other one by its pid inside, so that this has to be enough.
    eventually(lambda: ("above grant", "pod") in stage.found())
    eventually(lambda: ("not enforced", "pod") in stage.found())
    process.stop()
    eventually(lambda: stage.found() == [])
    tenant.kill()


def test_a_thief_is_evicted_where_that_is_wanted(make_node: NodeMaker, stack: ExitStack) -> None:
    stage = staged(make_node, stack, "--on-bypass", "evict")
    keeper = stage.bound_pod("keeper")
    uid = stage.bound_pod("thief")
    stage.taker(uid)

    def uids() -> set[str]:
        return {pod["metadata"]["uid"] for pod in stage.node.api.objects.list("pods")[0]}

    eventually(lambda: uids() == {keeper})
    (event,) = eventually(lambda: stage.events("VgpuBypassEvicted"))
    assert event["message"].startswith("evicted, as --on-bypass asks: ")
