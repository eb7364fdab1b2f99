"""The demo: the main job on a simulated node, watched from the outside."""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from agent.demo.screen import Screen
    from agent.demo.slices_story import SlicesStory
    from agent.demo.story import Story

DESCRIPTION = """\
Run the main job on a simulated node: two simulated GPUs, a stand-in kubelet, API server and
scheduler (in modes slices and nvidia kubelet alone), and the real agent as a process of its own.
Every "container" is a real process with exactly the environment and mounts that Allocate returned.
Needs no root, GPU, kubelet or cluster; takes 5 to 25 seconds, by mode.
"""
# A demo should not take the 30 s in which a GPU of a node recovers, nor the seconds in which an
# agent looks around.
# Idle shares are not lent, so that limits of GPU time are seen to hold for who computes alone.
FLAGS = (
    *("--core-lending", "off", "--priorities", "off"),
    *("--probe-interval", "0.5s", "--recovery-probes", "3"),
    *("--process-interval", "0.3s", "--accounting-interval", "0.3s", "--bypass-interval", "0.3s"),
)
EXIT_INTERRUPTED = 130
MODES = ("hami", "slices", "volcano", "nvidia", "mig")


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
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="hami",
        help="who decides about GPUs, see `vgpu-agent run --mode` (default: hami); mig: hami with "
        "GPUs that the hardware divides",
    )
    chosen = parser.parse_args(argv)

    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal: leave nothing running
        signal.signal(number, _interrupt)
    from agent.demo.place import NoPlaceError, made_place

    try:
        root = made_place("vgpu-demo-", keep=chosen.keep)
    except NoPlaceError as error:
        print(f"vgpu-agent: {error}", file=sys.stderr)
        return 1
    try:
        return _run(root, chosen.mode, as_json=chosen.json)
    except KeyboardInterrupt:
        print("vgpu-agent: demo interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except FileNotFoundError as error:  # of the simulated driver
        print(f"vgpu-agent: {error}", file=sys.stderr)
        return 1
    finally:
        if chosen.keep:
            print(f"the node's files, the agent's log among them, are in {root}", file=sys.stderr)
        else:
            shutil.rmtree(root, ignore_errors=True)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _made(mode: str, root: Path, screen: "Screen") -> "Story | SlicesStory":
    """The story of a mode, on a node in this directory. Nothing runs yet."""
    if mode in ("slices", "nvidia"):
        from agent.demo.nvidia_story import NvidiaStory
        from agent.demo.slices_story import SlicesStory
        from agent.sim.lone_node import LoneNode

        alone = LoneNode(root, own_command(), flags=[*FLAGS, "--mode", mode])
        return (SlicesStory if mode == "slices" else NvidiaStory)(alone, screen)
    from agent.sim.proc import SimProc

    proc = SimProc(root / "proc")
    flags = [*FLAGS, "--host-proc", str(proc.root)]
    if mode == "volcano":
        from agent.demo.volcano import VolcanoStory
        from agent.sim.volcano_node import VolcanoNode

        return VolcanoStory(VolcanoNode(root, own_command(), flags=flags), screen, proc)
    from agent.demo.story import Story
    from agent.sim.node import SimNode

    if mode == "mig":
        from agent.demo.mig import MigStory, mig_flags

        flags += mig_flags(str(root))
        return MigStory(SimNode(root, own_command(), flags=flags), screen, proc)
    return Story(SimNode(root, own_command(), flags=flags), screen, proc)


def _run(root: Path, mode: str, *, as_json: bool) -> int:
    """Tell the story on a node in this directory; everything it started has ended afterwards."""
    from agent.demo.deadline import END_S, HungError, within
    from agent.demo.screen import Check, Screen, summary

    screen = Screen(silent=as_json)
    story = _made(mode, root, screen)
    node = story.node
    screen.say(f"vgpu-agent demo: a simulated node in {root}")
    node.start()
    try:
        story.tell()
    finally:
        for end in (story.end, node.stop):  # what does not end keeps nothing else from being ended
            try:
                with within(END_S):
                    end()
            except (HungError, OSError, subprocess.TimeoutExpired) as error:
                detail = f"{type(error).__name__}: {error}"
                at_s = time.monotonic() - story.began_s
                story.checks.append(Check(name="all ended", passed=False, detail=detail, at_s=at_s))
    failed = [check for check in story.checks if not check.passed]
    if as_json:
        print(json.dumps({"passed": not failed, "checks": [asdict(c) for c in story.checks]}))
    screen.leave_standing()
    for line in summary(story.checks):
        screen.say(line)
    if failed:
        print(node.log_text()[-4000:], file=sys.stderr)
    return 1 if failed else 0
