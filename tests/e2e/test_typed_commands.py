"""Commands of README.md and docs/ that a user types on a node or in a checkout, as they stand there."""

import json
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from typed_commands import ROOT, commands_for

from agent.doctor.checks import CHECKS
from agent.sim.api_client import path
from agent.sim.node import Ask, SimNode
from agent.sim.scheduler import REGISTER
from tests.e2e.conftest import FROZEN, NodeMaker
from tests.e2e.test_live_limits import held, limit, limits_file
from tests.e2e.whole import up
from tests.installed_here import without_installed_agent
from tests.waiting import eventually

ME = "tests/e2e/test_typed_commands.py"
GRANT = Ask(vgpus=2, memory_mib=16384, core_percent=60)  # of both GPUs
NAMES = [check.name for check in CHECKS]
# What tells that a task has done its work.
TASKS = {
    "python3 build.py demo": "",
    "python3 build.py hook": "",
    "python3 build.py release-check": r"^missing: |is complete",
}


def words_of(line: str, node: SimNode) -> list[str]:
    """The words of a line, as a shell makes them of it on this node."""
    script = f'hostname() {{ echo {node.name}; }}; printf "%s\\0" {line}'
    done = subprocess.run(
        ["sh", "-c", script], cwd=node.root, capture_output=True, text=True, check=True
    )
    return done.stdout.split("\0")[:-1]


def of_one_page(test: str) -> list[str]:
    [lines] = commands_for(f"{ME}::{test}").values()
    return lines


@pytest.mark.skipif(bool(FROZEN), reason="it is about a checkout")
@pytest.mark.timeout(600)  # the hook may have to be compiled
def test_tasks_of_build_py() -> None:
    given = commands_for(f"{ME}::test_tasks_of_build_py")
    assert {line for lines in given.values() for line in lines} == set(TASKS)
    for line, told in TASKS.items():
        words = [sys.executable, *shlex.split(line)[1:]]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        known = done.returncode == 0 or told  # there is not always a release to be checked
        assert known, f"{line}: {done.stdout}{done.stderr}"
        assert re.search(told, done.stdout, re.MULTILINE), f"{line}: {done.stdout}{done.stderr}"


def test_limits(make_node: NodeMaker) -> None:
    node = make_node()
    pod = node.run_pod("train-0", [GRANT])
    given = commands_for(f"{ME}::test_limits")
    assert {"README.md", "live-limits.md"} == set(given)
    for lines in given.values():
        for line in lines:
            _, command, *words = words_of(line, node)
            assert command == "limit"
            done = limit(node, *words)
            assert (done.returncode, done.stderr) == (0, ""), line
            memory, cores = held(limits_file(pod))
            if "8Gi" in line:
                assert (memory, cores) == (8192, 40)
            elif "none" in line:
                assert cores in (0, 100)
            elif "--reset" in line:
                assert (memory, cores) == (16384, 60)


def test_annotations(make_node: NodeMaker) -> None:
    """The annotation of each line is put on the pod; kubectl itself is not what is tested."""
    node = make_node()
    pod = node.run_pod("train-0", [replace(GRANT, core_percent=0)])  # of which all may be had
    for line in of_one_page("test_annotations"):
        words = words_of(line, node)
        assert words[:4] == ["kubectl", "annotate", "pod", "train-0"]
        key, _, value = words[-1].partition("=")
        key = key if value else key.removesuffix("-")
        assert key == "vgpu-agent/limits"
        node.client.annotate("pods", "train-0", {key: value or None}, namespace="team")
        limits = json.loads(value)["main"] if value else None
        wanted = 8192 if limits else 16384
        eventually(lambda wanted=wanted: held(limits_file(pod))[0] == wanted)
    assert not [e for e in node.events() if e["reason"] == "VgpuLimitsRefused"]


def test_doctor(make_node: NodeMaker) -> None:
    node = make_node()
    for lines in commands_for(f"{ME}::test_doctor").values():
        for line in lines:
            _, *words = words_of(line, node)
            done = node.run_command(*words)
            assert done.returncode in (0, 1, 2), done.stderr  # a machine of tests is not a node
            shown = [row.split()[1] for row in done.stdout.splitlines() if row[:1].islower()]
            assert [name for name in shown if name in NAMES] == NAMES, done.stdout


@without_installed_agent
def test_run_from_source_and_take_it_off(make_node: NodeMaker) -> None:
    node = make_node(started=False)
    run, take_off = (
        words_of(line, node) for line in of_one_page("test_run_from_source_and_take_it_off")
    )
    for words, command in ((run, "run"), (take_off, "uninstall")):
        assert words[:3] == [".build/venv/bin/python", "agent.py", command]
        given = ["--node-name", node.name, "--kubeconfig", str(node.root / "kubeconfig")]
        assert words[3:] == given
        assert (ROOT / words[1]).is_file()
    node.start_agent(*run[3:])
    up(node, 20)
    node.stop_agent(signal.SIGKILL)
    assert REGISTER in node.annotations()
    done = node.run_command("uninstall", *take_off[3:])
    assert done.returncode == 0, done.stderr
    assert node.client.ask("GET", path("nodes", node.name))
    assert REGISTER not in node.annotations()
