"""The three patch types of the Kubernetes API, on plain JSON values.

Imitated: JSON merge patch (RFC 7386) and JSON patch (RFC 6902, all six operations). A strategic
merge patch is treated as a merge patch, which is the same thing for maps such as annotations and
labels. NOT imitated: strategic merging of lists by key, and the `$patch`, `$retainKeys` and
`$setElementOrder` directives; such a patch is refused rather than applied wrongly. Server-side
apply is not imitated either.
"""

import copy
from collections.abc import Callable
from typing import Any

Json = Any


class PatchFailed(Exception):
    """A patch that cannot be applied: `code` is the HTTP status a real API server answers with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def apply_merge(target: Json, patch: Json) -> Json:
    """Give `target` after an RFC 7386 merge patch; neither argument is changed."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = copy.copy(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge(result.get(key), value)
    return result


def apply_strategic(target: Json, patch: Json) -> Json:
    """Give `target` after a strategic merge patch that touches maps and scalars only."""
    _refuse_lists(patch)
    return apply_merge(target, patch)


def _refuse_lists(patch: Json) -> None:
    if isinstance(patch, list):
        raise PatchFailed(501, "the stand-in does not imitate strategic merging of lists")
    if isinstance(patch, dict):
        for key, value in patch.items():
            if key.startswith("$"):
                raise PatchFailed(501, f"the stand-in does not imitate the directive {key}")
            _refuse_lists(value)


def apply_json_patch(target: Json, operations: Json) -> Json:
    """Give `target` after RFC 6902 operations: all of them, or PatchFailed and none.

    As in a real API server, a document that is not a JSON patch is 400, and one that does not fit
    the object (a path that is not there, a `test` that fails) is 422.
    """
    if not isinstance(operations, list):
        raise PatchFailed(400, "a JSON patch is a list of operations")
    document = copy.deepcopy(target)
    for operation in operations:
        if not isinstance(operation, dict) or operation.get("op") not in _OPERATIONS:
            raise PatchFailed(400, f"not a JSON patch operation: {operation!r}")
        document = _OPERATIONS[operation["op"]](document, operation)
    return document


def _member(operation: dict[str, Json], key: str) -> Json:
    if key not in operation:
        raise PatchFailed(400, f"JSON patch operation without {key!r}: {operation!r}")
    return operation[key]


def _tokens(pointer: Json) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise PatchFailed(400, f"not a JSON pointer: {pointer!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _index(container: list[Json], place: str, *, last: int) -> int:
    if not place.isdecimal() or (place != "0" and place.startswith("0")) or int(place) > last:
        raise PatchFailed(422, f"no such list index: {place!r} of {len(container)}")
    return int(place)


def _read(document: Json, pointer: Json) -> Json:
    for token in _tokens(pointer):
        if isinstance(document, dict) and token in document:
            document = document[token]
        elif isinstance(document, list):
            document = document[_index(document, token, last=len(document) - 1)]
        else:
            raise PatchFailed(422, f"path does not exist: {pointer}")
    return document


def _parent(document: Json, pointer: Json) -> tuple[Json, str]:
    tokens = _tokens(pointer)
    if not tokens:
        raise PatchFailed(422, "the whole object cannot be replaced")
    return _read(document, pointer.rpartition("/")[0]), tokens[-1]


def _put(document: Json, pointer: Json, value: Json) -> Json:
    parent, token = _parent(document, pointer)
    if isinstance(parent, dict):
        parent[token] = value
    elif isinstance(parent, list):
        place = len(parent) if token == "-" else _index(parent, token, last=len(parent))  # noqa: S105
        parent.insert(place, value)
    else:
        raise PatchFailed(422, f"path does not exist: {pointer}")
    return document


def _cut(document: Json, pointer: Json) -> Json:
    _read(document, pointer)
    parent, token = _parent(document, pointer)
    if isinstance(parent, list):
        del parent[int(token)]
    else:
        del parent[token]
    return document


def _add(document: Json, operation: dict[str, Json]) -> Json:
    return _put(document, _member(operation, "path"), copy.deepcopy(_member(operation, "value")))


def _remove(document: Json, operation: dict[str, Json]) -> Json:
    return _cut(document, _member(operation, "path"))


def _replace(document: Json, operation: dict[str, Json]) -> Json:
    path = _member(operation, "path")
    _read(document, path)
    parent, token = _parent(document, path)
    parent[int(token) if isinstance(parent, list) else token] = copy.deepcopy(
        _member(operation, "value")
    )
    return document


def _move(document: Json, operation: dict[str, Json]) -> Json:
    value = _read(document, _member(operation, "from"))
    return _put(_cut(document, operation["from"]), _member(operation, "path"), value)


def _copy(document: Json, operation: dict[str, Json]) -> Json:
    value = copy.deepcopy(_read(document, _member(operation, "from")))
    return _put(document, _member(operation, "path"), value)


def _test(document: Json, operation: dict[str, Json]) -> Json:
    wanted = _member(operation, "value")
    try:
        found = _read(document, _member(operation, "path"))
    except PatchFailed as failed:
        if failed.code != 422 or wanted is not None:  # noqa: PLR2004 - an HTTP status
            raise
        found = None  # the API server's library takes "is null" as true of what is not there
    if found != wanted:
        raise PatchFailed(422, f"testing path {operation['path']} value failed")
    return document


_OPERATIONS: dict[str, Callable[[Json, dict[str, Json]], Json]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}
