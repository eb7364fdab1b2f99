"""Whose a grant is, by kubelet's books: its PodResources API and its checkpoint file.

The API tells namespace, pod and container by device ids, but neither pod uids nor ordinary init
containers. The checkpoint tells pod uid and container, and has the very answer we gave, with the
name of the grant in it; but it is written at the next change only, so it still lists who is gone.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.domain.grants import GrantOwner, GrantRecord
from agent.domain.identities import is_identity

MAX_ENTRIES = 10_000
MAX_TEXT_CHARS = 300
MAX_ANSWER_CHARS = 1 << 18
_GRANT = re.compile(rb"/containers/([a-z]{3,16}-[0-9a-f]{16})_c(?![0-9A-Za-z._-])")


class MalformedCheckpoint(Exception):
    """It is no checkpoint of a device manager."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the checkpoint says of one container and resource."""

    pod_uid: str
    container: str
    resource: str
    device_ids: frozenset[str]
    grant: str = ""  # the name of our grant in the answer; empty: it is somebody else's answer
    answer: bytes = field(default=b"", compare=False, repr=False)  # where it is ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """What the API says of one container and resource."""

    namespace: str
    pod_name: str
    container: str
    resource: str
    device_ids: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletLook:
    """Both books at one moment; None: they could not be read."""

    assigned: Sequence[Assigned] | None = None
    entries: Sequence[Entry] | None = None
    pods: frozenset[tuple[str, str]] = frozenset()  # all that the API lists: namespace and name
    complete: bool = True  # False: one was left out this time, so nobody is gone by it


def decode_checkpoint(text: str) -> tuple[Entry, ...]:
    """Read `kubelet_internal_checkpoint`, with or without NUMA nodes. Raises MalformedCheckpoint.

    Entries that are none are left out. Source: Kubernetes, cm/devicemanager/checkpoint.
    """
    listed = _part(text, "PodDeviceEntries")
    if listed is None:
        return ()
    if not isinstance(listed, list) or len(listed) > MAX_ENTRIES:
        raise MalformedCheckpoint("PodDeviceEntries is no list that we can read")
    return tuple(entry for item in listed if (entry := _entry(item)) is not None)


def decode_registered(text: str) -> dict[str, tuple[str, ...]]:
    """By resource, the ids of healthy devices. Raises MalformedCheckpoint.

    What are no ids is left out. Source: as above.
    """
    listed = _part(text, "RegisteredDevices")
    if listed is None:
        return {}
    if not isinstance(listed, dict) or len(listed) > MAX_ENTRIES:
        raise MalformedCheckpoint("RegisteredDevices is no object that we can read")
    return {
        resource: tuple(one for one in ids if _text(one))
        for resource, ids in listed.items()
        if _text(resource) and isinstance(ids, list)
    }


def _part(text: str, name: str) -> Any:
    try:
        return json.loads(text)["Data"][name]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedCheckpoint(f"{type(error).__name__}: {str(error)[:80]}") from error


def _entry(item: Any) -> Entry | None:
    if not isinstance(item, dict):
        return None
    uid, container = _text(item.get("PodUID")), _text(item.get("ContainerName"))
    resource, ids = _text(item.get("ResourceName")), _ids(item.get("DeviceIDs"))
    if not (uid and container and resource and ids):
        return None
    grant, answer = _grant(item.get("AllocResp"))
    return Entry(
        pod_uid=uid,
        container=container,
        resource=resource,
        device_ids=ids,
        grant=grant,
        answer=answer,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= MAX_TEXT_CHARS else ""


def _ids(value: Any) -> frozenset[str]:
    """Older kubelets write a list, newer ones a list for each NUMA node."""
    lists = value.values() if isinstance(value, dict) else [value]
    return frozenset(one for some in lists if isinstance(some, list) for one in some if _text(one))


def _grant(answer: Any) -> tuple[str, bytes]:
    """The name of our grant, from the mounts in our own answer, and that answer."""
    if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
        return "", b""
    try:
        content = base64.b64decode(answer, validate=True)
    except (binascii.Error, ValueError):
        return "", b""
    found = _GRANT.search(content)
    return (found[1].decode(), content) if found else ("", b"")


# --- comparing -----------------------------------------------------------------------------------


def owners(records: Sequence[GrantRecord], look: KubeletLook) -> dict[str, GrantOwner]:
    """Whose each grant is, by its name, as far as kubelet lists it now.

    `records` oldest first, all of them with names of their own. Where the checkpoint does not say
    which grant it was (no answer of mode nvidia does), the youngest with exactly these ids is it.
    """
    by_grant = {entry.grant: entry for entry in look.entries or () if entry.grant}
    names = _pod_names(records, look)
    found: dict[str, GrantOwner] = {}
    for record in records:
        entry = by_grant.get(record.pod_uid)
        if entry is not None:
            namespace, name = names.get(entry.pod_uid, ("", ""))
            found[record.pod_uid] = GrantOwner(
                pod_uid=entry.pod_uid,
                namespace=namespace,
                pod_name=name,
                container=entry.container,
            )
    youngest = _youngest(records)
    for assigned in look.assigned or ():
        meant = youngest.get(assigned.device_ids)
        if meant is not None and meant.pod_uid not in by_grant:
            found[meant.pod_uid] = GrantOwner(
                pod_uid=_uid_by_ids(assigned, look),
                namespace=assigned.namespace,
                pod_name=assigned.pod_name,
                container=assigned.container,
            )
    return found


def _youngest(records: Sequence[GrantRecord]) -> dict[frozenset[str], GrantRecord]:
    """By ids, the grant that has them now: kubelet gives them again when their pod has ended."""
    return {frozenset(record.device_ids): record for record in records}


def _uid_by_ids(assigned: Assigned, look: KubeletLook) -> str:
    """Of the one pod to which the checkpoint gives these very ids; empty: there are more, or none.

    What has the name of a grant is of another one than it is asked for.

    Kubelet writes it when it gives ids away, and takes those out by then that had them before.
    """
    wanted = (assigned.container, assigned.resource, assigned.device_ids)
    uids = {
        entry.pod_uid
        for entry in look.entries or ()
        if not entry.grant and (entry.container, entry.resource, entry.device_ids) == wanted
    }
    return uids.pop() if len(uids) == 1 else ""


def _pod_names(records: Sequence[GrantRecord], look: KubeletLook) -> dict[str, tuple[str, str]]:
    """Namespace and name by pod uid: containers that both books know by their ids tell.

    The checkpoint was read first, and may still have the pod that had the ids before.
    """
    youngest = _youngest(records)
    named: dict[tuple[str, str, frozenset[str]], tuple[str, str]] = {
        (one.container, one.resource, one.device_ids): (one.namespace, one.pod_name)
        for one in look.assigned or ()
    }
    found = {}
    for entry in look.entries or ():
        name = named.get((entry.container, entry.resource, entry.device_ids))
        has_them = youngest.get(entry.device_ids)
        if name is not None and (has_them is None or entry.grant in {"", has_them.pod_uid}):
            found[entry.pod_uid] = name
    return found


def listed(records: Sequence[GrantRecord], look: KubeletLook) -> frozenset[str]:
    """Pod uids (or names) of the grants that are held now, as far as kubelet says so.

    The checkpoint still lists who is gone, the API does not. So whoever is in the checkpoint counts
    while the API lists a container of the same pod, or has never done so (see `doubtful`).
    """
    own = [record for record in records if is_identity(record.pod_uid)]
    found = owners(own, look)
    by_grant = {entry.grant: entry for entry in look.entries or () if entry.grant}
    uids = {entry.pod_uid for entry in look.entries or ()}
    pods = {(one.namespace, one.pod_name) for one in look.assigned or ()}
    names = _pod_names(own, look)

    def held(record: GrantRecord) -> bool:
        if not is_identity(record.pod_uid):  # of another mode, before
            if look.assigned is None:
                return record.pod_uid in uids
            return (record.namespace, record.pod_name) in pods
        entry = by_grant.get(record.pod_uid)
        return record.pod_uid in found and (
            look.assigned is None or entry is None or entry.pod_uid in names or not record.named
        )

    return frozenset(record.pod_uid for record in records if held(record))


def doubtful(records: Sequence[GrantRecord], look: KubeletLook) -> frozenset[str]:
    """Grants that the checkpoint lists and the API never did.

    Of a pod of which nothing but an init container has devices, which may yet start (an image is
    pulled for minutes) or start again, or that was gone before the API was asked. A checkpoint that
    kubelet wrote after the API was asked tells which: asked, kubelet takes back what pods had that
    are gone, and forgets to write that down. Source: Kubernetes 1.20 and later, cm/devicemanager
    (UpdateAllocatedDevices, genericDeviceUpdateCallback) and apis/podresources (List).
    """
    inside = {entry.grant for entry in look.entries or ()}
    return frozenset(
        record.pod_uid for record in records if record.pod_uid in inside and not record.named
    )


def of_other_pods(
    records: Sequence[GrantRecord], look: KubeletLook
) -> dict[str, frozenset[tuple[str, str]]]:
    """By grant that the checkpoint lists: names of pods that are known to have another uid."""
    names = _pod_names(records, look)
    return {
        entry.grant: frozenset(name for uid, name in names.items() if uid != entry.pod_uid)
        for entry in look.entries or ()
        if entry.grant
    }


def strays(records: Sequence[GrantRecord], look: KubeletLook) -> tuple[Entry, ...]:
    """Grants of ours that kubelet lists and no record is of: the journal was lost.

    As in `listed`, the checkpoint alone does not count where the API tells who is there.
    """
    known, names = {record.pod_uid for record in records}, _pod_names(records, look)
    return tuple(
        entry
        for entry in look.entries or ()
        if entry.grant
        and entry.grant not in known
        and (look.assigned is None or entry.pod_uid in names)
    )


def with_known(record: GrantRecord, owner: GrantOwner) -> GrantOwner:
    """The owner with what was known of it before and is not told this time."""
    return GrantOwner(
        pod_uid=owner.pod_uid or record.owner_uid,
        namespace=owner.namespace or record.namespace,
        pod_name=owner.pod_name or record.pod_name,
        container=owner.container,
    )


def given_ids(look: KubeletLook) -> frozenset[str]:
    """Every id that kubelet has given away; by the API, where that can be read."""
    source: Iterable[Entry | Assigned] = look.entries or ()
    if look.assigned is not None:
        source = look.assigned
    return frozenset(device_id for one in source for device_id in one.device_ids)
