"""The handshake by which HAMi 2.7 and earlier decide whether a node's agent is alive.

    scheduler: anything            -> `Requesting_<time>`   and reads the register annotation
    agent:     `Requesting_...`    -> `Reported ...`        or the node is dropped after 60 s
    scheduler: 60 s unanswered     -> `Deleted_<time>`      and nothing more, until
    agent:     `Deleted_...`       -> `Reported ...`        the node is taken in again

The text after the keyword is never parsed by either side of this machine: schedulers differ in its
format and write local time as if it were UTC. From 2.8 on the scheduler looks at kubelet's
allocatable instead and asks nothing; answering is then harmless, and off by default.
Volcano's scheduler up to 1.15 speaks the same with a key of its own, and overlooks a node without
that key. Sources: HAMi 2.4 to 2.10, pkg/device/nvidia/device.go, CheckHealth; Volcano 1.9 to 1.15,
pkg/scheduler/api/devices/nvidia/vgpu/device_info.go, NewGPUDevices.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

HANDSHAKE = "hami.io/node-handshake"
MAX_CHARS = 1024  # a keyword and a time; what is longer is not from a scheduler

# The scheduler may ask again the moment it sees our answer. Answers this far apart are still
# given within 5 s of each question, and such a scheduler cannot drive us into a write loop.
SPACING_S = 4.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What to do about the handshake. An empty `text`: nothing."""

    text: str = ""
    wait_s: float = 0.0  # how long to wait before writing `text`


def needs_answer(value: str | None) -> bool:
    """Whether the scheduler waits for us: it asks, or it has given up on us."""
    if value is None or len(value) > MAX_CHARS:
        return False
    return "Requesting" in value or "Deleted" in value


def is_question(value: str | None) -> bool:
    """Whether a scheduler has written it that has this node's GPUs: it stamps what it has read."""
    return value is not None and "Requesting" in value


def report(now_s: float) -> str:
    """Give the answer for this unix time; it must contain neither of the scheduler's keywords."""
    moment = datetime.fromtimestamp(max(0.0, now_s), UTC)
    return f"Reported {moment:%Y-%m-%d %H:%M:%S} +0000 UTC"


def is_report(value: str | None) -> bool:
    """Whether this is the answer of a device plugin, ours or HAMi's; a scheduler writes no such."""
    return value is not None and value.startswith("Reported")


def answer(
    value: str | None,
    *,
    now_s: float,
    since_last_s: float,
    spacing_s: float = SPACING_S,
    begins: bool = False,
) -> Answer:
    """Decide what to write for this value of the annotation (None: absent).

    Args:
        value: of the annotation, as the watch saw it last.
        now_s: unix time.
        since_last_s: seconds since our last answer; infinite when there was none.
        spacing_s: least time between two answers.
        begins: the scheduler looks at no node that has not reported once (Volcano up to 1.15).
    """
    if not (needs_answer(value) or (begins and value is None)):
        return Answer()
    if value is None or "Deleted" in value:  # the node is out: the sooner the better
        spacing_s = min(spacing_s, SPACING_S)
    return Answer(report(now_s), max(0.0, spacing_s - since_last_s))
