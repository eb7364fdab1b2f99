"""Kubelet, as the services need it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from agent.domain.kubelet_books import Entry
from agent.domain.ownership import HeldDevice
from agent.domain.registration import SocketIdentity


class KubeletLink(Protocol):
    """One resource's way to kubelet: a socket of ours that kubelet dials, and its registration.

    Used by one thread, but for `interrupt`.
    """

    def serve(self, on_stream: Callable[[bool], None]) -> None:
        """Serve DevicePlugin on a socket of a fresh name, after closing any earlier one.

        `on_stream` is called with True when kubelet opens ListAndWatch and with False when that
        ends, on the server's loop; it must not block. Raises KubeletUnavailable.
        """

    def register(self) -> None:
        """Announce the served socket to kubelet. Takes up to 12 s. Raises KubeletUnavailable."""

    def close(self) -> None:
        """End streams and socket and wait for that, up to 3 s; without a socket, do nothing."""

    def intact(self) -> bool:
        """Whether our socket file is still there, and ours."""

    def told(self) -> int:
        """How many devices kubelet was told last that it can give. From any thread."""

    def interrupt(self) -> None:
        """The agent stops: make `register` fail at once, now and later. From any thread."""


class SocketWatch(Protocol):
    """Watches the socket at which kubelet takes registrations. Used by one thread."""

    def start(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, on another thread, when looking is worth while before the next poll.

        An accelerator only: it may stay silent for ever.
        """

    def look(self) -> SocketIdentity | None:
        """What the socket is now; None: there is none."""

    def absence(self) -> str:
        """Where it is looked for, and what to do when there is none."""

    def stop(self) -> None:
        """End the accelerator; never raises."""


@dataclass(frozen=True, slots=True)
class KubeletAssignment:
    """What kubelet says it assigned: the truth after admission."""

    namespace: str
    pod_name: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


class PodResources(Protocol):
    """Kubelet's PodResources API."""

    def assignments(self) -> tuple[KubeletAssignment, ...]:
        """Every assignment of every resource. Raises KubeletUnavailable."""


@dataclass(frozen=True, slots=True)
class PodList:
    """Kubelet's list at one moment."""

    assignments: tuple[KubeletAssignment, ...]
    pods: frozenset[tuple[str, str]]  # namespace and name of each, also of those without devices


class PodLists(Protocol):
    """The same, and who is there without having anything."""

    def pod_list(self) -> PodList:
        """What kubelet lists now. Raises KubeletUnavailable."""


class Checkpoint(Protocol):
    """The file from which kubelet starts again. Used by one thread."""

    def entries(self) -> tuple[Entry, ...]:
        """Who holds what, as it was written last. Raises KubeletUnavailable."""


class DeviceBooks(Protocol):
    """What kubelet's API says of all devices of the node, whoever hands them out."""

    def offered(self) -> Mapping[str, tuple[str, ...]] | None:
        """By resource, the ids that can be given. Raises KubeletUnavailable.

        None: it does not tell, as it is older than 1.23. One of those must not be asked what is
        `held` at any moment: it then forgets the devices of a pod that it is just admitting (seen
        with 1.20.2).
        """

    def held(self) -> tuple[HeldDevice, ...]:
        """Every device of every container, of plugins and of DRA. Raises KubeletUnavailable."""


class NodeDevices(Protocol):
    """What kubelet says of all devices of the node, whoever hands them out."""

    def offered(self) -> Mapping[str, tuple[str, ...]]:
        """By resource, the ids that can be given. To be called first. Raises KubeletUnavailable."""

    def held(self) -> tuple[HeldDevice, ...]:
        """Every device of every container, of plugins and of DRA. Raises KubeletUnavailable.

        A kubelet before 1.23 is not asked: at the wrong moment it then forgets the devices of a pod
        that it is just admitting (seen with 1.20.2). Its checkpoint tells of living pods, by uid.
        """

    def other_plugins(self) -> tuple[str, ...]:
        """Sockets of other plugins that take connections. Raises KubeletUnavailable."""
