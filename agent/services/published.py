"""A box with one immutable value that threads share: written by one service, read by all."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from agent.domain.gpu import GpuInventory
from agent.domain.pods import Node, Pod

T = TypeVar("T")
_Object = TypeVar("_Object", Pod, Node)


class Published(Generic[T]):
    """Holds the current value; readers take it whole, or wait for it to change."""

    def __init__(self, value: T) -> None:
        self._changed = threading.Condition()
        self._value = value
        self._version = 0
        self._listeners: list[Callable[[], None]] = []

    def now(self) -> T:
        """The current value."""
        return self._value

    def read(self) -> tuple[int, T]:
        """The current value and its version, for `wait_for_change`."""
        with self._changed:
            return self._version, self._value

    def update(self, change: Callable[[T], T]) -> bool:
        """Replace the value by `change(value)`, atomically; tell whether it is another one."""
        with self._changed:
            new = change(self._value)
            if new == self._value:
                return False
            self._value = new
            self._version += 1
            self._changed.notify_all()
            listeners = tuple(self._listeners)
        for wake in listeners:
            wake()
        return True

    def publish(self, value: T) -> bool:
        """Replace the value; tell whether it is another one."""
        return self.update(lambda _: value)

    def wait_for_change(self, seen_version: int, timeout_s: float | None) -> bool:
        """Wait until the version differs from `seen_version`; False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version != seen_version, timeout_s)

    def wait_until(self, holds: Callable[[T], bool], timeout_s: float) -> bool:
        """Wait until the value satisfies `holds`; False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self._value), timeout_s)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have `wake` called on the writer's thread after each change; gives the undo."""
        with self._changed:
            self._listeners.append(wake)

        def stop() -> None:
            with self._changed:
                if wake in self._listeners:
                    self._listeners.remove(wake)

        return stop

    def poke(self) -> None:
        """Wake every waiter although nothing changed, so that it looks at its own reasons to go."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()


class PodTable:
    """Immutable: the pods of this node by uid, in the order in which they first arrived."""

    __slots__ = ("pods", "synced")

    def __init__(self, pods: dict[str, Pod] | None = None, *, synced: bool = False) -> None:
        self.pods = pods or {}
        self.synced = synced  # a complete list has been read at least once

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PodTable) and self.synced == other.synced and self.pods == other.pods
        )

    __hash__ = None  # type: ignore[assignment] # holds a dict

    def applied(self, pod: Pod) -> "PodTable":
        """After a change of one pod, unless it is older than what is known."""
        old = self.pods.get(pod.uid)
        return PodTable(
            {**self.pods, pod.uid: newest(old, pod) if old else pod}, synced=self.synced
        )

    def without(self, uid: str) -> "PodTable":
        """After the deletion of one pod."""
        return PodTable({u: p for u, p in self.pods.items() if u != uid}, synced=self.synced)


def newest(old: _Object, new: _Object) -> _Object:
    """The younger of two states of one object; the new one when versions cannot be compared."""
    if old.resource_version.isdecimal() and new.resource_version.isdecimal():
        return new if int(new.resource_version) >= int(old.resource_version) else old
    return new


def newest_node(old: Node | None, new: Node) -> Node:
    """The younger of two states of our Node; the new one when it was made anew or cannot tell."""
    return new if old is None or old.uid != new.uid else newest(old, new)


Inventory = Published[GpuInventory]
Pods = Published[PodTable]
OwnNode = Published[Node | None]
