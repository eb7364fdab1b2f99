"""`vgpu-agent uninstall` as a process: what an agent that is gone has left is taken back."""

import os
import shutil
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.sim.api_client import path
from agent.sim.node import Ask, SimNode
from agent.sim.scheduler import HANDSHAKE, LOCK, REGISTER
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import finished, serves, up
from tests.installed_here import without_installed_agent
from tests.waiting import eventually

pytestmark = without_installed_agent

SCORE = "hami.io/node-nvidia-score"
OTHERS: dict[str, str | None] = {
    "hami.io/node-dcu-register": "DCU-0,4,32768,100,DCU-Z100,0,true:",
    "hami.io/node-handshake-dcu": "Requesting_2026-01-01 00:00:00",
    "hami.io/device-cordon": "GPU-x",
    "team/note": "keep",
    LOCK: "2026-01-01T00:00:00Z,team,pod",
}


def tree(directory: Path) -> dict[str, tuple[int, int]]:
    """Everything below, with inode and time of the last change."""
    found = {}
    for parent, folders, files in os.walk(directory):
        for name in (*folders, *files):
            facts = Path(parent, name).lstat()
            found[f"{parent}/{name}"] = (facts.st_ino, facts.st_mtime_ns)
    return found


def patches(node: SimNode) -> int:
    return len(node.api.requests(verb="patch", resource="nodes"))


@pytest.fixture
def left(make_node: NodeMaker) -> SimNode:
    """A node as an agent leaves it that could not take leave; none runs, nor ever will."""
    node = make_node(started=False)
    node.client.annotate("nodes", node.name, {**OTHERS, REGISTER: "[]", SCORE: "[]"})
    return node


def test_what_a_killed_agent_has_left_is_taken_back_and_nothing_else(make_node: NodeMaker) -> None:
    node = make_node("--register-format=csv9", "--enable-topology-score", release="2.7")
    pod = node.run_pod("pod", [Ask()])  # the scheduler asks for a sign of life first
    eventually(lambda: finished(node, pod))
    eventually(lambda: node.annotations()[HANDSHAKE].startswith("Reported"))
    node.stop_agent(signal.SIGKILL)
    node.client.annotate("nodes", node.name, OTHERS)
    assert {REGISTER, SCORE, HANDSHAKE} <= node.annotations().keys()
    before, labels = tree(node.root / "host"), node.client.get("nodes", node.name)["metadata"]
    assert any("/containers/" in name for name in before)

    done = node.run_command("uninstall")
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()[:3]] == [
        REGISTER,
        SCORE,
        HANDSHAKE,
    ]
    assert str(node.root / "host" / "vgpu") in done.stdout, "it says what stays"
    assert node.annotations() == OTHERS
    assert node.client.get("nodes", node.name)["metadata"].get("labels") == labels.get("labels")
    assert tree(node.root / "host") == before

    node.start_agent()
    serves(node)


def test_the_second_time_there_is_nothing_to_remove(left: SimNode) -> None:
    assert left.run_command("uninstall").returncode == 0
    count = patches(left)
    again = left.run_command("uninstall")
    assert again.returncode == 0
    assert "nothing to remove" in again.stdout
    assert patches(left) == count
    assert left.annotations() == OTHERS


def test_a_dry_run_says_it_and_changes_nothing(left: SimNode) -> None:
    before, count = tree(left.root), patches(left)
    done = left.run_command("uninstall", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"would remove {REGISTER} from the Node {left.name}" in done.stdout
    assert f"would remove {SCORE} from the Node {left.name}" in done.stdout
    assert left.annotations() == {**OTHERS, REGISTER: "[]", SCORE: "[]"}
    assert patches(left) == count
    assert tree(left.root) == before


def test_while_an_agent_runs_nothing_is_removed(node: SimNode) -> None:
    assert node.agent is not None
    count = patches(node)
    done = node.run_command("uninstall")
    assert done.returncode == 1
    assert done.stdout == ""
    (said,) = done.stderr.splitlines()
    for words in (f"pid {node.agent.pid} on ", "systemctl stop", "DaemonSet"):
        assert words in said
    dry = node.run_command("uninstall", "--dry-run")
    assert dry.returncode == 1, "as without --dry-run"
    assert f"would remove {REGISTER}" in dry.stdout
    assert "systemctl stop" in dry.stderr
    assert patches(node) == count
    serves(node)


def test_an_agent_that_cannot_be_seen_is_noticed(node: SimNode) -> None:
    """It has another state directory; it writes its annotation again, and the person is told."""
    done = node.run_command("uninstall", f"--state-dir={node.root}/another")
    assert done.returncode == 1
    assert f"{REGISTER} was removed and is there again" in done.stderr
    assert not (node.root / "another").exists()
    serves(node)


def test_after_a_clean_exit_there_is_nothing_to_remove(make_node: NodeMaker) -> None:
    node = make_node("--clean-exit")
    assert node.stop_agent() == 0
    done = node.run_command("uninstall")
    assert done.returncode == 0
    assert "nothing to remove" in done.stdout


def test_a_scheduler_offers_none_of_its_gpus_afterwards(make_node: NodeMaker) -> None:
    """HAMi's overlooks a Node without the annotation, and would go on with what it read last."""
    node = make_node()
    assert node.scheduler.handshake_once(node.name) == "refreshed"
    assert node.stop_agent() == 0
    count = patches(node)
    with ThreadPoolExecutor() as pool:
        removal = pool.submit(node.run_command, "uninstall")
        eventually(lambda: patches(node) > count)
        while not removal.done():  # its next looks at the Node
            node.scheduler.handshake_once(node.name)
    done = removal.result()
    assert done.returncode == 0, done.stderr
    assert REGISTER not in node.annotations()
    assert done.stderr == ""
    assert done.stdout.startswith("waiting up to 40 s")
    assert node.scheduler.handshake_once(node.name) == "unregistered"
    assert [gpu for gpu in node.scheduler.nodes.get(node.name, ()) if gpu.healthy] == []


def busy(node: SimNode) -> None:
    node.api.fail(429, count=2, retry_after_s=0.1)


def restarting(node: SimNode) -> None:
    node.api.fail(503, count=3)


def answer_lost(node: SimNode) -> None:
    node.api.lose_answer(verb="patch", resource="nodes")


@pytest.mark.parametrize("mishap", [busy, restarting, answer_lost], ids=lambda row: row.__name__)
def test_what_passes_is_waited_for(left: SimNode, mishap: Callable[[SimNode], None]) -> None:
    mishap(left)
    done = left.run_command("uninstall")
    assert done.returncode == 0, done.stderr
    assert left.annotations() == OTHERS


def away(node: SimNode) -> None:
    node.api.stop()


def forbidden(node: SimNode) -> None:
    node.api.fail(403, verb="patch", resource="nodes")


def unknown_account(node: SimNode) -> None:
    node.api.accept_tokens("another")


def no_lock_to_ask(node: SimNode) -> None:
    (node.root / "state").mkdir()
    (node.root / "state" / "agent.lock").symlink_to("/elsewhere")


@pytest.mark.parametrize(
    ("mishap", "words"),
    [
        pytest.param(away, "the API server cannot be reached", id="API server away"),
        pytest.param(forbidden, "allow `patch` on `nodes` in the agent's ClusterRole", id="403"),
        pytest.param(unknown_account, "check the agent's credentials", id="401"),
        pytest.param(no_lock_to_ask, "--state-dir", id="a link instead of the lock"),
    ],
)
def test_what_does_not_pass_is_one_sentence_and_exit_code_1(
    left: SimNode, mishap: Callable[[SimNode], None], words: str
) -> None:
    mishap(left)
    done = left.run_command("uninstall")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("vgpu-agent: ")
    assert words in last
    assert "removed hami.io" not in done.stdout
    assert "Traceback" not in done.stderr


def test_without_credentials_it_is_a_wrong_setting(left: SimNode) -> None:
    (left.root / "kubeconfig").unlink()
    done = left.run_command("uninstall")
    assert done.returncode == 2
    assert "kubeconfig" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["in earnest", "--dry-run"])
def test_a_node_that_does_not_exist_may_be_mistyped(left: SimNode, more: list[str]) -> None:
    left.client.ask("DELETE", path("nodes", left.name))
    done = left.run_command("uninstall", *more)
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"vgpu-agent: there is no Node {left.name}, so nothing was removed")
    assert "kubectl get nodes" in said
    assert done.stdout == ""


def test_a_hosts_own_node_that_is_gone_needs_nothing(left: SimNode) -> None:
    own = socket.gethostname().strip().lower()
    done = left.run_command("uninstall", f"--node-name={own}")
    assert done.returncode == 0, done.stderr
    (warning,) = done.stderr.splitlines()
    assert warning.startswith(f"vgpu-agent: there is no Node {own}, so nothing was removed")
    assert left.annotations() == {**OTHERS, REGISTER: "[]", SCORE: "[]"}


def test_what_was_done_cannot_be_told(left: SimNode) -> None:
    left._command = ["sh", "-c", 'exec "$@" > /dev/full', "sh", *left._command]
    done = left.run_command("uninstall")
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.startswith("vgpu-agent: the output cannot be written")
    assert left.annotations() == OTHERS


def test_it_leaves_no_trace_on_the_disk(make_node: NodeMaker) -> None:
    node = make_node()
    node.stop_agent(signal.SIGKILL)
    shutil.rmtree(node.root / "state")
    assert node.run_command("uninstall").returncode == 0
    assert not (node.root / "state").exists()
    node.start_agent()
    up(node, 20)
