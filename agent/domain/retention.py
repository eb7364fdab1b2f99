"""What was made for pods that are gone, and may go too."""

from collections.abc import Collection, Iterable

from agent.domain.grants import GrantRecord

ASIDE_S = 86_400.0  # a day: for whoever wants to know what became of a journal


def pod_uid_of(directory: str) -> str:
    """The pod uid in the name `<pod uid>_<container>` of a cache directory."""
    return directory.partition("_")[0]


def _old(moment_s: float, now_s: float, after_s: float) -> bool:
    """Whether a moment is long past, or so far ahead that the clock was set back since."""
    return abs(now_s - moment_s) >= after_s


def expired_directories(
    directories: Iterable[tuple[str, float]],
    live_uids: Collection[str],
    *,
    now_s: float,
    after_s: float,
) -> list[str]:
    """The directories (name, time of the last change) of pods that are not on the node any more.

    `live_uids` must come from a complete list. A directory younger than `after_s` stays: its pod
    may be so new that no list has it yet.
    """
    return [
        name
        for name, changed_at_s in directories
        if pod_uid_of(name) not in live_uids and _old(changed_at_s, now_s, after_s)
    ]


def expired_records(
    records: Iterable[GrantRecord], live_uids: Collection[str], *, now_s: float, after_s: float
) -> frozenset[str]:
    """The uids of the pods whose grants need not be remembered any more."""
    newest: dict[str, float] = {}
    for record in records:
        newest[record.pod_uid] = max(record.granted_at_s, newest.get(record.pod_uid, 0.0))
    return frozenset(
        uid
        for uid, granted_at_s in newest.items()
        if uid not in live_uids and _old(granted_at_s, now_s, after_s)
    )


def expired_journals(
    aside: Iterable[tuple[str, float]], live_uids: Collection[str], *, now_s: float
) -> list[str]:
    """Of journals (pod uid, unix time) that were put aside, those that nobody will look at."""
    return [
        uid
        for uid, moved_at_s in aside
        if uid not in live_uids and _old(moved_at_s, now_s, ASIDE_S)
    ]
