"""What a check is, what it finds, and how checks are done: one by one, each in bounded time."""

import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.doctor.host import Host

WITHIN_S = 10.0  # by which a driver, a kubelet or an API server has answered, or is said to hang
CHILD_SHARE = 0.9  # of that for its child process, so that none is left behind


class Verdict(StrEnum):
    """What was found. `skipped` says nothing about the node: it could not be looked."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """`evidence` is what was seen; `fix` the command that mends it, if something is wrong."""

    verdict: Verdict
    evidence: str
    fix: str = ""


def ok(evidence: str) -> Finding:
    """As it should be."""
    return Finding(Verdict.OK, evidence)


def warning(evidence: str, fix: str) -> Finding:
    """It works, but not for everybody, not for long, or not safely."""
    return Finding(Verdict.WARNING, evidence, fix)


def failed(evidence: str, fix: str) -> Finding:
    """Pods do not get their GPUs, or their limits do not hold."""
    return Finding(Verdict.FAILED, evidence, fix)


def skipped(evidence: str, fix: str = "") -> Finding:
    """Could not be looked at; `fix`: how it could."""
    return Finding(Verdict.SKIPPED, evidence, fix)


def unseen() -> Finding:
    """It is about files of the host, and this is a pod without them."""
    return skipped(
        "the host's files are not seen from this pod",
        "vgpu-agent doctor --host-root /host   # with hostPath / mounted there, read-only",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about the node. `needs`: checks without which the answer would mean nothing."""

    name: str
    question: str
    look: Callable[["Host"], Finding]
    needs: tuple[str, ...] = ()
    hangs: "str | Callable[[Host], str]" = ""  # what to do when it does not answer
    within_s: float = 0.0  # by when it must have answered if nobody asks for a time; 0: as all


@dataclass(frozen=True, slots=True)
class Result:
    """A check and what it has found."""

    check: Check
    finding: Finding


def selected(
    checks: Sequence[Check], only: Collection[str], skip: Collection[str]
) -> tuple[Check, ...]:
    """The checks to do: all or `only` these and what they need, without `skip`."""
    wanted = set(only) or {check.name for check in checks}
    for check in reversed(checks):  # what is needed comes before
        if check.name in wanted:
            wanted |= set(check.needs)
    return tuple(check for check in checks if check.name in wanted - set(skip))


def done(
    checks: Sequence[Check], host: "Host", *, within_s: float | None = None
) -> Iterator[Result]:
    """Do the checks in their order. One that needs a check that found nothing usable is skipped.

    `within_s`: how long each of them may take; None: as long as each has of its own.
    """
    found: dict[str, Finding] = {}
    causes: dict[str, str] = {}  # skipped check -> the first that found nothing usable
    for check in checks:
        missing = next((name for name in check.needs if not _usable(found.get(name))), "")
        if missing:
            cause = causes.get(missing, missing)
            causes[check.name] = cause
            how = f"is {found[cause].verdict}" if cause in found else "is not looked at"
            finding = skipped(f"needs `{cause}`, which {how}")
        else:
            own_s = check.within_s or WITHIN_S
            finding = bounded(check, host, own_s if within_s is None else within_s)
        found[check.name] = finding
        yield Result(check, finding)


def _usable(finding: Finding | None) -> bool:
    return finding is not None and finding.verdict in (Verdict.OK, Verdict.WARNING)


def bounded(check: Check, host: "Host", within_s: float) -> Finding:
    """What the check finds; it is left to itself when it takes longer. Never raises."""
    found: list[Finding | None] = []
    host.child_within_s = within_s * CHILD_SHARE
    attempt(check.name, lambda: found.append(_looked(check, host)), within_s)
    if found and found[0]:
        return found[0]
    mends = check.hangs if isinstance(check.hangs, str) else check.hangs(host)
    return failed(
        f"did not answer within {within_s:g} s", mends or "dmesg --level=err,warn | tail -50"
    )


def attempt(name: str, do: Callable[[], None], within_s: float) -> None:
    """Do something, and leave it to itself when it takes longer."""
    # No service of the agent's: nothing but the end of the program ends a call into a driver that
    # hangs, and that is what `daemon` says.
    thread = threading.Thread(target=do, name=f"doctor-{name}", daemon=True)
    thread.start()
    thread.join(within_s)


def _looked(check: Check, host: "Host") -> Finding | None:
    """None: its child process took all of its time."""
    try:
        return check.look(host)
    except subprocess.TimeoutExpired:
        return None
    except PermissionError as error:
        return skipped(
            f"{error.filename or 'it'} is closed to user {host.uid}",
            "sudo vgpu-agent doctor",
        )
    except Exception as error:  # noqa: BLE001 - one check must not end the others
        return warning(
            f"the check itself broke off: {type(error).__name__}: {error}",
            f"vgpu-agent doctor --json --only {check.name}   # and report what it says",
        )


def worst(results: Sequence[Result]) -> Verdict:
    """The verdict on the whole."""
    verdicts = {result.finding.verdict for result in results}
    return next(
        (verdict for verdict in (Verdict.FAILED, Verdict.WARNING) if verdict in verdicts),
        Verdict.OK,
    )


def counts(results: Sequence[Result]) -> Mapping[Verdict, int]:
    """How many there are of each verdict."""
    return {
        verdict: sum(result.finding.verdict is verdict for result in results) for verdict in Verdict
    }
