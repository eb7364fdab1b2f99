"""The nodes that the cases run on, and an agent on them.

Each case runs on stand-ins of two generations of kubelet, on a real kubelet 1.20 with a real API
server, and on a node that the environment gives (see given_node.py). Where it gives none, the same
peers run as another process and are given by its variables, so that this way is tested too; where
it gives one, that one takes the peers' place. A node lives for the whole session; what a case has
left on it is removed after the case.
"""

import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cluster import given_node
from cluster.agent_process import AgentProcess, HostFiles, two_gpus
from cluster.given_node import GivenNode
from cluster.gpu_pods import GpuPods, NodeView
from cluster.node_under_test import NodeUnderTest
from cluster.peer_node_under_test import PeerNodeUnderTest
from cluster.stand_in_node import running_stand_in
from peers import node as peers
from peers.build_peers import available, default_cache
from peers.node import PeerNode, node_of_another_process, running_node
from xdist.scheduler import LoadScopeScheduling

from agent.sim.driver import SimDriver, SimGpu

KNOBS = [
    Path("/proc/sys", name)
    for name in (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/keys/root_maxkeys",
        "kernel/keys/root_maxbytes",
    )
]
GIVEN = not given_node.missing()
REAL_NODES = [
    pytest.param(name, marks=[pytest.mark.cluster, pytest.mark.timeout(600 if GIVEN else 500)])
    for name in (["given"] if GIVEN else ["real-1.20", "given"])
]
StartAgent = Callable[..., AgentProcess]
LOGS = pytest.StashKey[list[Path]]()  # of a case, to be shown when it fails
Reporting = Generator[None, pytest.TestReport, pytest.TestReport]


def pytest_configure(config: pytest.Config) -> None:
    """Make our own marker known, and refuse a node that is given by half."""
    if not GIVEN and any(os.environ.get(name) for name in given_node.NEEDED):
        raise pytest.UsageError(given_node.missing())
    config.addinivalue_line("markers", "needs(ability...): what the node must be able to do")


class OneNodeEach(LoadScopeScheduling):
    """Two workers, two nodes: each keeps to its own, which is started once."""

    def _split_scope(self, nodeid: str) -> str:
        return "given" if "[given" in nodeid else "real"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneNodeEach | None:
    """Do what `--dist loadgroup` is for: xdist 3.8 misses its own marks under pytest 9.2."""
    return OneNodeEach(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture(scope="session")
def knobs_before() -> dict[Path, str]:
    """Kernel settings that a kubelet likes to change, as they were before there was one."""
    return {knob: knob.read_text() for knob in KNOBS if knob.exists()}


@pytest.fixture(scope="session")
def peer_node(knobs_before: dict[Path, str]) -> Iterator[PeerNode]:
    """A real kubelet, API server and etcd; one for all cases, because it takes seconds to start."""
    reason, built = peers.missing(), available(default_cache())
    if reason or built is None:
        pytest.skip(reason)
    with running_node(built) as node:
        yield node


@pytest.fixture(scope="session")
def given_environ(knobs_before: dict[Path, str]) -> Iterator[Mapping[str, str]]:
    """The variables that give a node: those of the tests' own environment, or of our peers."""
    if GIVEN:
        yield os.environ
        return
    if reason := peers.missing():
        pytest.skip(f"{given_node.missing()}, and {reason}")
    with node_of_another_process() as exported:
        yield os.environ | exported


@pytest.fixture(scope="session")
def short_path() -> Iterator[Path]:
    """A directory whose path is short enough for unix sockets, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="vgpu-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(
    scope="session",
    params=[
        "stand-in-1.20",
        "stand-in-1.36",
        *REAL_NODES,
    ],
)
def any_node(request: pytest.FixtureRequest) -> Iterator[NodeUnderTest]:
    """One node after the other."""
    if request.param == "given":
        yield GivenNode(request.getfixturevalue("given_environ"))
    elif request.param == "real-1.20":
        yield PeerNodeUnderTest(request.getfixturevalue("peer_node"))
    else:
        behaviour = request.param.removeprefix("stand-in-")
        # Made anew each time: pytest may end this fixture and set it up again in one session.
        parent: Path = request.getfixturevalue("short_path")
        state = Path(tempfile.mkdtemp(prefix=behaviour, dir=parent))
        with running_stand_in(state, behaviour) as node:
            yield node


@pytest.fixture
def node(request: pytest.FixtureRequest, any_node: NodeUnderTest) -> NodeUnderTest:
    """The node of this case; skips the case where the node lacks what `needs` asks for."""
    for mark in request.node.iter_markers("needs"):
        for ability in mark.args:
            if ability not in any_node.abilities:
                reason = any_node.why_not.get(ability, "nobody taught it")
                pytest.skip(f"{any_node.kind} does not {ability}: {reason}")
    return any_node


@pytest.fixture
def view(node: NodeUnderTest) -> NodeView:
    """The Node object."""
    return NodeView(node)


@pytest.fixture
def driver_and_gpus(tmp_path: Path) -> tuple[SimDriver, tuple[SimGpu, SimGpu]]:
    """A simulated driver with two GPUs."""
    folder = tmp_path / "driver"
    folder.mkdir()
    return two_gpus(folder)


@pytest.fixture
def driver(driver_and_gpus: tuple[SimDriver, tuple[SimGpu, SimGpu]]) -> SimDriver:
    """The simulated driver."""
    return driver_and_gpus[0]


@pytest.fixture
def gpus(driver_and_gpus: tuple[SimDriver, tuple[SimGpu, SimGpu]]) -> tuple[SimGpu, SimGpu]:
    """Its two GPUs."""
    return driver_and_gpus[1]


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    """The host's directories for the hook."""
    return HostFiles(tmp_path)


@pytest.fixture
def pods(node: NodeUnderTest) -> Iterator[GpuPods]:
    """Pods; all deleted after the case."""
    created = GpuPods(node)
    yield created
    created.delete_all()


@pytest.fixture
def start_agent(
    node: NodeUnderTest,
    view: NodeView,
    driver: SimDriver,
    files: HostFiles,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[StartAgent]:
    """Starts agents with flags; ends them after the case, and removes what they left."""
    started: list[AgentProcess] = []
    logs = request.node.stash.setdefault(LOGS, [])
    logs += [node.kubelet_log] if node.kubelet_log else []

    def start(*flags: str, state: str = "state") -> AgentProcess:
        log = tmp_path / f"agent-{len(started) + 1}.log"
        agent = AgentProcess(node, driver, files, *flags, state=tmp_path / state, log=log)
        logs.insert(0, agent.process.log)
        agent.start()
        started.append(agent)
        return agent

    yield start
    for agent in started:
        agent.kill()
    ours = [key for key in view.annotations() if key.startswith("hami.io/")]
    view.annotate(**dict.fromkeys(ours))
    view.wait_for_allocatable(0)  # otherwise the next case would take these for its own


@pytest.fixture
def start_working_agent(start_agent: StartAgent, view: NodeView) -> StartAgent:
    """Starts an agent and waits: kubelet offers its vGPUs, and the scheduler can read its node."""

    def at_work() -> bool:
        return view.allocatable() == 20 and "hami.io/node-nvidia-register" in view.annotations()

    def start(*flags: str) -> AgentProcess:
        agent = start_agent(*flags)
        agent.process.wait_until(at_work, within_s=60, what="the agent is at work")
        return agent

    return start


@pytest.fixture
def agent(start_working_agent: StartAgent) -> AgentProcess:
    """An agent that is at work."""
    return start_working_agent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Reporting:
    """Show the ends of the agents' and kubelet's logs with a case that failed."""
    report = yield
    if report.failed and LOGS in item.stash:
        logs = item.stash[LOGS]
        for log in dict.fromkeys(logs):
            tail = log.read_text(errors="replace").splitlines()[-40:]
            report.sections.append((f"end of {log}", "\n".join(line[:400] for line in tail)))
    return report
