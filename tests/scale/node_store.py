"""The stand-in's objects, found by node: thousands of nodes ask for their own, and get no others."""

from collections import defaultdict
from collections.abc import Callable

from agent.sim.api_store import Change, Object, ObjectStore

HISTORY = 5000
SELECTED_BY = {"pods": "spec.nodeName=", "nodes": "metadata.name="}


class NodeStore(ObjectStore):
    """Finds the objects of a node at once, and tells of each change."""

    def __init__(self) -> None:
        super().__init__(history=HISTORY)
        self._by_node: dict[tuple[str, str], dict[tuple[str, str], Object]] = defaultdict(dict)
        self.told: Callable[[Change], None] = lambda _: None

    def of(self, resource: str, node: str) -> list[Object]:
        """Not copies: whoever gets them only reads."""
        return list(self._by_node.get((resource, node), {}).values())

    def put(self, resource: str, item: Object) -> None:
        """Write an object whose parts may be shared with others: nothing is copied."""
        metadata = item["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        with self.changed:
            self._commit(resource, key, self._items[resource].get(key), item)

    def forget(self) -> None:
        """Compact, as etcd does: no watch can be resumed from before now."""
        self.compact()

    def _commit(
        self, resource: str, key: tuple[str, str], old: Object | None, new: Object | None
    ) -> Object:
        answer = super()._commit(resource, key, old, new)
        for item, found in ((old, False), (new, True)):
            if item is None or resource not in SELECTED_BY:
                continue
            place = self._by_node[resource, owner(resource, item)]
            if found:
                place[key] = item
            else:
                place.pop(key, None)
        self.told(self._changes[-1])
        return answer


def owner(resource: str, item: Object) -> str:
    """Name of the node that an object is about."""
    if resource == "nodes":
        return str(item["metadata"]["name"])
    return str(item.get("spec", {}).get("nodeName") or "")


def selected(resource: str, query: dict[str, str]) -> str | None:
    """The one node whose objects a list or a watch is about; None: all are."""
    before, asked = SELECTED_BY.get(resource), query.get("fieldSelector", "")
    if before is None or not asked.startswith(before) or "," in asked:
        return None
    return asked.removeprefix(before)
