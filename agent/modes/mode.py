"""What the agent asks of the mode it is in."""

from collections.abc import Sequence
from typing import Protocol

from agent.adapters.caches import HostCaches
from agent.services.plugin import Plugin
from agent.supervisor import Service


class Mode(Protocol):
    """The services that grant, and what others ask them."""

    services: Sequence[Service]
    caches: HostCaches

    @property
    def plugins(self) -> Sequence[Plugin]:
        """One for each resource that kubelet is offered, as of now; `services` run them."""

    def missing(self) -> Sequence[str]:
        """Why pods cannot be served although kubelet knows us, a sentence each; empty: they can."""

    def leave(self, within_s: float) -> None:
        """Take back what was written to the cluster (setting `clean_exit`). Never raises."""
