"""The objects behind the stand-in API server: optimistic concurrency, history, change feed.

Imitated: one global resourceVersion counter, uid, creationTimestamp, generateName, 409 for a stale
resourceVersion or a foreign uid, no new version for a write that changes nothing, the split between
an object and its `status`, the immutable pod spec, binding, graceful deletion of pods (optional),
a bounded history that can be compacted, and the limits on annotations. NOT imitated: admission,
defaulting, validation beyond what is listed, owner references and garbage collection, finalizers,
paging of lists, several API versions of one object.
"""

import builtins
import copy
import itertools
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for cluster-wide kinds), name

KINDS = {  # resource -> kind, namespaced
    "nodes": ("Node", False),
    "namespaces": ("Namespace", False),
    "pods": ("Pod", True),
    "events": ("Event", True),
    "configmaps": ("ConfigMap", True),
}
MAX_ANNOTATIONS_BYTES = 256 * 1024
GRACE_S = 30


class ApiError(Exception):
    """An answer other than 2xx: HTTP status, Kubernetes reason, sentence."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    def status(self) -> Object:
        """Give the `Status` object that is the body of such an answer."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """One committed write. `new` is None for a deletion, `old` for a creation."""

    version: int
    resource: str
    old: Object | None
    new: Object | None
    at_s: float


def _now_text() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class ObjectStore:
    """All objects of the simulated cluster. Thread-safe; everything handed out is a copy."""

    def __init__(self, *, history: int = 1000, graceful_pods: bool = False) -> None:
        self._graceful_pods = graceful_pods
        self._items: dict[str, dict[Key, Object]] = {resource: {} for resource in KINDS}
        self._frozen: dict[str, dict[Key, Object]] | None = None
        self._frozen_version = 0
        self._version = 1
        self._oldest = 1  # a new watch may resume from here on
        self._dropped = 0  # the last change that no longer fits into the history
        self._changes: deque[Change] = deque(maxlen=history)
        self._names = itertools.count(1)
        self.changed = threading.Condition()

    # --- reading ------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The resourceVersion of the last write."""
        return self._version

    @property
    def stale_version(self) -> int:
        """The version stale reads are of: that of `freeze`, or the present one."""
        with self.changed:
            return self._version if self._frozen is None else self._frozen_version

    def get(self, resource: str, name: str, namespace: str = "", *, stale: bool = False) -> Object:
        """Give one object; `stale` reads what `freeze` preserved, if anything."""
        with self.changed:
            items = self._frozen if stale and self._frozen is not None else self._items
            return copy.deepcopy(self._find(items[resource], resource, name, namespace))

    def list(
        self, resource: str, namespace: str = "", *, stale: bool = False
    ) -> tuple[builtins.list[Object], int]:
        """Give all objects of a resource, by namespace and name, and the version they are of."""
        with self.changed:
            frozen = self._frozen if stale else None
            items = (self._items if frozen is None else frozen)[resource]
            found = [
                copy.deepcopy(item)
                for key, item in sorted(items.items())
                if namespace in ("", key[0])
            ]
            return found, self._version if frozen is None else self._frozen_version

    def changes_since(self, version: int, *, live: bool = False) -> builtins.list[Change]:
        """Give what was committed after `version`, or raise 410 when that is gone.

        Compaction ends only later resumptions; a `live` watch is not affected, unless it is so
        slow that the history overflowed meanwhile.
        """
        with self.changed:
            oldest = self._dropped if live else self._oldest
            if version < oldest:
                raise ApiError(410, "Expired", f"too old resource version: {version} ({oldest})")
            found = []
            for change in reversed(self._changes):
                if change.version <= version:
                    break
                found.append(change)
            return found[::-1]

    def _find(self, items: dict[Key, Object], resource: str, name: str, namespace: str) -> Object:
        if (namespace, name) not in items:
            raise ApiError(404, "NotFound", f'{resource} "{name}" not found')
        return items[namespace, name]

    # --- writing ------------------------------------------------------------------------------

    def create(self, resource: str, item: Object, namespace: str = "") -> Object:
        """Add an object; its metadata gets name, uid, creationTimestamp and resourceVersion."""
        kind, namespaced = KINDS[resource]
        item = copy.deepcopy(item)
        metadata = item.setdefault("metadata", {})
        namespace = (metadata.get("namespace") or namespace or "default") if namespaced else ""
        with self.changed:
            if not metadata.get("name") and metadata.get("generateName"):
                metadata["name"] = f"{metadata['generateName']}{next(self._names):05x}"
            if not metadata.get("name"):
                raise ApiError(422, "Invalid", "name or generateName is required")
            key = (namespace, metadata["name"])
            if key in self._items[resource]:
                raise ApiError(409, "AlreadyExists", f'{resource} "{key[1]}" already exists')
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": _now_text()}
            if namespaced:
                metadata["namespace"] = namespace
            _check(resource, item, unreadable=400)
            if resource == "pods":
                item.setdefault("status", {}).setdefault("phase", "Pending")
            return self._commit(resource, key, None, {"kind": kind, "apiVersion": "v1"} | item)

    def update(
        self,
        resource: str,
        name: str,
        namespace: str,
        change: Callable[[Object], Object],
        *,
        subresource: str = "",
        patch: bool = False,
    ) -> Object:
        """Replace an object by `change(object)`, under the rules for its resource.

        Raises ApiError 404, 409 (stale resourceVersion; other uid, unless it is a `patch`) and 422.
        """
        with self.changed:
            old = self._find(self._items[resource], resource, name, namespace)
            new = change(copy.deepcopy(old))
            metadata = new.get("metadata")
            if not isinstance(metadata, dict):
                raise ApiError(422, "Invalid", "metadata is required")
            _check_identity(resource, old["metadata"], metadata, patch=patch)
            _check(resource, new, unreadable=422 if patch else 400)
            if subresource == "status":
                new = _with_part_of(old, new, "spec")
            elif resource in ("pods", "nodes"):
                new = _with_part_of(old, new, "status")
                if resource == "pods" and new.get("spec") != old.get("spec"):
                    raise ApiError(
                        422, "Invalid", f'Pod "{name}" is invalid: spec: Forbidden: cannot change'
                    )
            if new == old:
                return copy.deepcopy(old)
            return self._commit(resource, (namespace, name), old, new)

    def bind(self, name: str, namespace: str, binding: Object) -> None:
        """Assign a pod to a node, as `pods/binding` does; a pod is bound once."""
        node = binding.get("target", {}).get("name")
        if not node:
            raise ApiError(422, "Invalid", "target.name: Required value")
        with self.changed:
            old = self._find(self._items["pods"], "pods", name, namespace)
            if bound_to := old.get("spec", {}).get("nodeName"):
                raise ApiError(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on pods/binding "{name}": '
                    f'pod {name} is already assigned to node "{bound_to}"',
                )
            new = copy.deepcopy(old)
            new.setdefault("spec", {})["nodeName"] = node
            new["metadata"].setdefault("annotations", {}).update(
                binding.get("metadata", {}).get("annotations") or {}
            )
            conditions = new.setdefault("status", {}).setdefault("conditions", [])
            conditions.append({"type": "PodScheduled", "status": "True"})
            self._commit("pods", (namespace, name), old, new)

    def delete(
        self, resource: str, name: str, namespace: str = "", *, grace_s: int | None = None
    ) -> Object:
        """Remove an object. A bound pod may first only be marked, see `graceful_pods`."""
        with self.changed:
            old = self._find(self._items[resource], resource, name, namespace)
            bound = resource == "pods" and bool(old.get("spec", {}).get("nodeName"))
            if bound and self._graceful_pods and grace_s != 0:
                new = copy.deepcopy(old)
                new["metadata"] |= {
                    "deletionTimestamp": _now_text(),
                    "deletionGracePeriodSeconds": GRACE_S if grace_s is None else grace_s,
                }
                return self._commit(resource, (namespace, name), old, new)
            self._commit(resource, (namespace, name), old, None)
            return copy.deepcopy(old)

    def _commit(self, resource: str, key: Key, old: Object | None, new: Object | None) -> Object:
        self._version += 1
        if new is None:
            del self._items[resource][key]
        else:
            new["metadata"]["resourceVersion"] = str(self._version)
            self._items[resource][key] = new
        if len(self._changes) == self._changes.maxlen:
            self._dropped = self._changes[0].version
            self._oldest = max(self._oldest, self._dropped)
        self._changes.append(Change(self._version, resource, old, new, time.monotonic()))
        self.changed.notify_all()
        return copy.deepcopy(new if new is not None else old or {})

    # --- faults -------------------------------------------------------------------------------

    def compact(self) -> None:
        """Forget the history: whoever resumes a watch from before now gets 410."""
        with self.changed:
            self._version += 1  # as if somebody else had written: no version handed out is current
            self._oldest = self._version

    def freeze(self) -> None:
        """Preserve the present state for stale reads."""
        with self.changed:
            self._frozen = {resource: dict(items) for resource, items in self._items.items()}
            self._frozen_version = self._version

    def thaw(self) -> None:
        """End stale reads."""
        with self.changed:
            self._frozen = None


def _check_identity(resource: str, old: Object, new: Object, *, patch: bool) -> None:
    name = old["name"]
    if new.get("name", name) != name or new.get("namespace") != old.get("namespace"):
        raise ApiError(400, "BadRequest", "the name of the object does not match the URL")
    if new.get("uid", old["uid"]) != old["uid"]:
        if patch:
            kind, _ = KINDS[resource]
            raise ApiError(
                422,
                "Invalid",
                f'{kind} "{name}" is invalid: metadata.uid: Invalid value: "{new.get("uid")}": '
                "field is immutable",
            )
        raise ApiError(
            409,
            "Conflict",
            f'Operation cannot be fulfilled on {resource} "{name}": Precondition failed: '
            f"UID in precondition: {new.get('uid')}, UID in object meta: {old['uid']}",
        )
    if new.get("resourceVersion") not in (None, "", old["resourceVersion"]):
        raise ApiError(
            409,
            "Conflict",
            f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified; '
            "please apply your changes to the latest version and try again",
        )
    new |= {"uid": old["uid"], "resourceVersion": old["resourceVersion"]}


def _with_part_of(old: Object, new: Object, part: str) -> Object:
    """Give `new`, except that this part of it is what it was."""
    rest = {key: value for key, value in new.items() if key != part}
    return rest | ({part: old[part]} if part in old else {})


def _check(resource: str, item: Object, *, unreadable: int) -> None:
    metadata = item["metadata"]
    for field in ("annotations", "labels"):
        texts = metadata.get(field) or {}
        if not isinstance(texts, dict) or not all(isinstance(v, str) for v in texts.values()):
            reason = "BadRequest" if unreadable == 400 else "Invalid"  # noqa: PLR2004
            raise ApiError(unreadable, reason, f"metadata.{field} must map strings to strings")
    size = sum(len(k) + len(v.encode()) for k, v in (metadata.get("annotations") or {}).items())
    if size > MAX_ANNOTATIONS_BYTES:
        raise ApiError(
            422, "Invalid", f"metadata.annotations: Too long: may not be more than {size} bytes"
        )
    involved = item.get("involvedObject", {})
    if resource == "events" and metadata["namespace"] != (involved.get("namespace") or "default"):
        raise ApiError(
            422,
            "Invalid",
            "involvedObject.namespace: Invalid value: does not match event.namespace",
        )
