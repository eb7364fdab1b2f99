"""The demo: the main job on a simulated node, watched from the outside."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

DESCRIPTION = """\
Run the main job on a simulated node: two simulated GPUs, a stand-in kubelet, API server and
scheduler, and the real agent as a process of its own. Every "container" is a real process with
exactly the environment and mounts that Allocate returned. Needs no root, GPU, kubelet or cluster;
takes about 10 seconds.
"""
# GPUs recover after 3 clean probes; a demo should not take the 30 s that a node takes.
FLAGS = ("--probe-interval", "0.5s", "--recovery-probes", "3")


def own_command() -> list[str]:
    """How to start this program once more."""
    if getattr(sys, "frozen", False):
        return [sys.executable]
    return [sys.executable, str(Path(__file__).resolve().parents[2] / "agent.py")]


def main(argv: Sequence[str]) -> int:
    """Run the demo; 0 when every check passed."""
    parser = argparse.ArgumentParser(
        prog="vgpu-agent demo",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--keep", action="store_true", help="keep the node's files, and say where")
    chosen = parser.parse_args(argv)

    from agent.demo.screen import Screen, summary
    from agent.demo.story import Story
    from agent.sim.node import SimNode

    root = Path(tempfile.mkdtemp(prefix="vgpu-demo-"))
    screen = Screen(silent=chosen.json)
    screen.say(f"vgpu-agent demo: a simulated node in {root}")
    node = SimNode(root, own_command(), flags=FLAGS, environ=os.environ)
    story = Story(node, screen)
    try:
        with node:
            try:
                story.tell()
            finally:
                story.end()
        failed = [check for check in story.checks if not check.passed]
        if chosen.json:
            print(json.dumps({"passed": not failed, "checks": [asdict(c) for c in story.checks]}))
        screen.leave_standing()
        for line in summary(story.checks):
            screen.say(line)
        if failed:
            print(node.log_text()[-4000:], file=sys.stderr)
    finally:
        if chosen.keep:
            print(f"the node's files, the agent's log among them, are in {root}", file=sys.stderr)
        else:
            shutil.rmtree(root, ignore_errors=True)
    return 1 if failed else 0
