"""What is asked in some modes only: checks that would mean nothing say so instead of looking."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.doctor import cluster
from agent.doctor.finding import Check, Finding, skipped

if TYPE_CHECKING:
    from agent.doctor.host import Host

_NO_HOOK = "mode nvidia gives containers no hook"
_NO_SCHEDULER = "mode nvidia has no scheduler"
NOT_ASKED: Mapping[str, Mapping[str, str]] = {
    "nvidia": {
        **dict.fromkeys(
            (
                *("hook-directory", "hook-same-path", "hook-present", "hook-glibc", "hook-loads"),
                *("hook-limits", "hook-installed", "preload-file", "host-preload", "host-proc"),
                "cuda-range",
            ),
            _NO_HOOK,
        ),
        **dict.fromkeys(("node-label", "scheduler-protocol", "handshake-clock"), _NO_SCHEDULER),
        "rights-pods": "mode nvidia asks kubelet alone",
        "rights-eviction": "mode nvidia looks for no bypasses",
        "mig": "mode nvidia goes by --mig-strategy",
    },
    "slices": dict.fromkeys(
        (
            *("rights-nodes", "rights-pods", "node", "node-label"),
            *("scheduler-protocol", "handshake-clock"),
        ),
        "mode slices asks kubelet alone",
    ),
}


def in_mode(checks: Sequence[Check], mode: str) -> tuple[Check, ...]:
    """The checks as they are done in a mode."""
    return tuple(_in_mode(check, mode) for check in checks)


def _in_mode(check: Check, mode: str) -> Check:
    beside = NOT_ASKED.get(mode, {})
    if check.name in beside:
        return replace(check, look=_told(beside[check.name]), needs=())
    if check.name == "register" and beside:  # in these modes nothing is
        return replace(
            check,
            question="is no scheduler told of it?",
            look=cluster.left_behind,
            needs=("authorized",),
        )
    return check


def _told(why: str) -> Callable[["Host"], Finding]:
    return lambda _host: skipped(f"not applicable: {why}")
