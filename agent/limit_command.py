"""`vgpu-agent limit`: other limits for a running container, through the agent's control socket."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.adapters.local_client import CONTROL_SOCKET, AgentUnreachable, Answer, ask
from agent.domain.limit_change import mib, percent
from agent.domain.limit_requests import MalformedRequest, parse_body

EXIT_OK, EXIT_REFUSED, EXIT_USAGE = 0, 1, 2
PATH = "/v1/limits"
NOT_FOUND, NOT_ALLOWED = 404, 405
UNTIL = "It holds until the pod ends, or until --reset."

DESCRIPTION = """\
Sets what a running container may use of its GPUs. It holds from the container's next allocation or
launch on, through restarts of the container and of the agent, until the pod ends or --reset. What
the container already has is not taken from it: below its present use, new allocations are refused
until it has freed enough.

The container is named namespace/pod/container; any shorter form will do (namespace/pod,
pod/container, pod) as long as only one container with vGPUs on this node has that name.
"""
EXAMPLES = """\
examples:
  vgpu-agent limit team/train-0/main --memory 8Gi --cores 40
  vgpu-agent limit train-0 --cores none          no limit of compute any more
  vgpu-agent limit train-0 --gpu 1 --memory 4Gi  of one of its GPUs, as nvidia-smi counts them
  vgpu-agent limit train-0 --reset               what the scheduler granted
exit codes:
  0  the limits hold
  1  refused, or the agent cannot be reached; the last line says why and what to do
  2  the command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("target", metavar="[NAMESPACE/]POD[/CONTAINER]", help="whose limits")
    parser.add_argument("--memory", metavar="AMOUNT", help="per GPU, such as 8Gi or 8192Mi")
    parser.add_argument(
        "--cores", metavar="PERCENT", help="share of each GPU's time, 1 to 100, or none"
    )
    parser.add_argument(
        "--gpu", metavar="N", help="only this GPU: nvidia-smi's number or the uuid (default: all)"
    )
    parser.add_argument("--reset", action="store_true", help="back to what was granted")
    parser.add_argument(
        "--force",
        action="store_true",
        help="also if all containers of the GPU may then use more memory than it has",
    )
    parser.add_argument("--json", action="store_true", help="print the agent's answer as it is")


def run(
    arguments: argparse.Namespace,
    runtime_dir: Path,
    *,
    asked: Callable[..., Answer] = ask,
) -> int:
    """Ask the agent of this node; gives the exit code. `runtime_dir`: where its sockets are."""
    try:
        body = _body(arguments)
    except MalformedRequest as error:
        _complain(str(error))
        return EXIT_USAGE
    try:
        answer = asked(runtime_dir / CONTROL_SOCKET, "POST", PATH, body)
    except AgentUnreachable as error:
        _complain(str(error))
        return EXIT_REFUSED
    if arguments.json and answer.body is not None:
        print(json.dumps(answer.body, indent=2))
    if not answer.ok:
        _complain(_refusal(answer))
        return EXIT_REFUSED
    if not arguments.json:
        _show(answer.body, _end(arguments))
    return EXIT_OK


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises MalformedRequest for what the agent would not take either."""
    asks = arguments.memory is not None or arguments.cores is not None
    if asks == arguments.reset:
        raise MalformedRequest("give --memory, --cores or both, or else --reset")
    if not arguments.target:
        raise MalformedRequest("it is not said whose limits: write namespace/pod/container")
    given = {"memory": arguments.memory, "cores": arguments.cores, "gpu": arguments.gpu}
    flags = {"reset": arguments.reset, "force": arguments.force}
    body = {
        "target": arguments.target,
        **{name: value for name, value in given.items() if value is not None},
        **{name: True for name, value in flags.items() if value},
    }
    parse_body(json.dumps(body).encode())
    return body


def _refusal(answer: Answer) -> str:
    problem = answer.body.get("error") if isinstance(answer.body, dict) else None
    if isinstance(problem, str):
        return problem
    if answer.status in (NOT_FOUND, NOT_ALLOWED):
        return (
            "the agent that runs here is older than this command and cannot change limits: "
            "upgrade it"
        )
    return f"the agent answered {answer.status}: look at its log"


def _end(arguments: argparse.Namespace) -> str:
    if not arguments.reset:
        return UNTIL
    return "What was granted holds again" + (" on that GPU." if arguments.gpu else ".")


def _show(body: Any, end: str = UNTIL) -> None:
    try:
        print(f"{body['pod']}/{body['container']}")
        for gpu in body["gpus"]:
            print(f"  {_line(gpu)}")
        for warning in body["warnings"]:
            print(f"  note: {warning}")
    except (KeyError, TypeError):
        print("done; the agent's answer is of a newer kind, which --json shows")
        return
    print(end)


def _line(gpu: dict[str, Any]) -> str:
    before = gpu["before"]
    memory = _step(before["memory_limit_bytes"], gpu["memory_limit_bytes"], mib)
    cores = _step(before["core_permille"], gpu["core_permille"], percent)
    index = gpu["uuid"] if gpu["index"] is None else gpu["index"]
    over = ""
    if gpu["over_bytes"]:
        over = (
            f"; over by {mib(gpu['over_bytes'])}: new allocations are refused until it has freed "
            "that much"
        )
    return f"GPU {index}: {memory}, {cores}{over}"


def _step(before: int, after: int, text: Callable[[int], str]) -> str:
    return text(after) if before == after else f"{text(before)} -> {text(after)}"


def _complain(sentence: str) -> None:
    print(f"vgpu-agent limit: {sentence}", file=sys.stderr)
