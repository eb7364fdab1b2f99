"""Field and label selectors of the Kubernetes API.

Imitated: field selectors with `=`, `==`, `!=` over the fields the API server indexes for pods,
nodes and events; label selectors with `=`, `==`, `!=`, `in`, `notin`, `key` and `!key`. A field
that a real API server does not support is refused as it refuses it, with 400.
"""

import re
from collections.abc import Callable
from typing import Any

Selector = Callable[[dict[str, Any]], bool]

FIELDS = {
    "pods": {
        "metadata.name",
        "metadata.namespace",
        "spec.nodeName",
        "spec.schedulerName",
        "spec.restartPolicy",
        "status.phase",
        "status.podIP",
    },
    "nodes": {"metadata.name", "spec.unschedulable"},
    "events": {
        "metadata.name",
        "metadata.namespace",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "reason",
        "type",
    },
}
_EVERYWHERE = {"metadata.name", "metadata.namespace"}
_TERM = re.compile(r"\s*([^!=\s]+)\s*(==|!=|=)\s*([^,]*?)\s*")
_SET = re.compile(r"\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*")


class BadSelector(Exception):
    """A selector the API server answers with 400."""


def _field(item: dict[str, Any], path: str) -> str:
    value: Any = item
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def by_fields(text: str, resource: str) -> Selector:
    """Compile `spec.nodeName=n,status.phase!=Failed`; the empty text selects everything."""
    terms = []
    for term in filter(None, text.split(",")):
        match = _TERM.fullmatch(term)
        if not match:
            raise BadSelector(f"invalid field selector: {term!r}")
        path, operator, value = match.groups()
        if path not in FIELDS.get(resource, _EVERYWHERE):
            raise BadSelector(f"field label not supported: {path}")
        terms.append((path, operator != "!=", value))
    return lambda item: all((_field(item, path) == value) is same for path, same, value in terms)


def by_labels(text: str) -> Selector:
    """Compile `a=b,c!=d,e in (f,g),h,!i`; the empty text selects everything."""
    checks = [_label_check(term) for term in re.findall(r"(?:[^,(]|\([^)]*\))+", text)]
    return lambda item: all(check(item.get("metadata", {}).get("labels") or {}) for check in checks)


def _label_check(term: str) -> Callable[[dict[str, str]], bool]:
    if match := _SET.fullmatch(term):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _TERM.fullmatch(term):
        key, operator, value = match.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    key = term.strip()
    if not key or " " in key:
        raise BadSelector(f"unable to parse requirement: {term!r}")
    if key.startswith("!"):
        return lambda labels: key[1:] not in labels
    return lambda labels: key in labels
