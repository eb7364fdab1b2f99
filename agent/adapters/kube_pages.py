"""A list that is too long for one answer, read in pages.

Whoever may create a pod says how large it is, and pods that have ended stay until they are deleted:
a node's list has no bound of its own, but what we hold of it at a time must have one.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agent.adapters.kube_answers import AnswerTooLong
from agent.errors import ClusterUnavailable

PAGE = 128  # objects in the first page; fewer where those are large
MOST_PAGES = 1000
LONGEST_S = 20.0  # of a list without a deadline: its caller has to show that it lives

Ask = Callable[[Mapping[str, str]], dict[str, Any]]


def pages(ask: Ask, *, clock: Callable[[], float] = time.monotonic) -> Iterator[dict[str, Any]]:
    """Give one answer after the other; `ask` gets what to add to the query.

    A page that is too long is asked for anew with half as many objects, down to a single one. All
    pages show the same moment: the API server sees to that, or answers 410.

    Raises ClusterError; ClusterUnavailable when there is no end to it.
    """
    ends_s, limit, goes_on = clock() + LONGEST_S, PAGE, ""
    for _ in range(MOST_PAGES):
        if clock() >= ends_s:
            break
        try:
            answer = ask({"limit": str(limit)} | ({"continue": goes_on} if goes_on else {}))
        except AnswerTooLong:
            if limit == 1:
                raise
            limit //= 2
            continue
        yield answer
        metadata = answer.get("metadata")
        following = metadata.get("continue") if isinstance(metadata, dict) else None
        if not following or not isinstance(following, str):
            return
        goes_on = following
    raise ClusterUnavailable(
        f"the list has not come to its end within {LONGEST_S:.0f} s and {MOST_PAGES} pages: delete "
        "what has ended, or make the objects smaller"
    )
