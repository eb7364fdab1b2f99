"""How many files the agent may have open: two for each container, and sockets."""

import contextlib
import resource

ENOUGH = 1 << 16


def allow_many() -> int:
    """Raise the soft limit, which is 1024 under systemd, as far as the hard one lets us.

    Gives what it is now. It is low for programs that use select(2), which the agent does not:
    systemd, "File Descriptor Limits".
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
