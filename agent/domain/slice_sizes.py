"""Named sizes of slices, as an operator writes them.

On a command line `small=8Gi:25,large=24Gi:50` (name, memory, percent of the cores), in a file

    sizes:
      small: {memory: 8Gi, cores: 25}

Memory is a number of Mi or Gi, a bare number counts MiB. Texts of errors end a sentence that begins
"--slice-sizes is 'x', but ...".
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from agent.domain.slices import SIZE_NAME, SliceSize

MAX_SIZES = 16
MAX_NAME_CHARS = 15  # of 63 in an id: a GPU's uuid has 40, and the number follows
_MEMORY = re.compile(r"([0-9]{1,9})(Mi|Gi|)", re.ASCII)
_CORES = re.compile(r"([0-9]{1,3})%?", re.ASCII)
_EXAMPLE = "write sizes like small=8Gi:25,large=24Gi:50"
_SHOWN = 40


def parse_sizes(raw: object) -> tuple[SliceSize, ...]:
    """The sizes, in the order given; raises ValueError for whatever is none."""
    items = list(_written(raw))
    if len(items) > MAX_SIZES:
        raise ValueError(f"it has {len(items)} sizes and at most {MAX_SIZES} can be; write fewer")
    sizes = tuple(_size(name, memory, cores) for name, memory, cores in items)
    names = [size.name for size in sizes]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the size {name} is there twice; write each name once")
    return sizes


def show_sizes(sizes: object) -> str:
    """As they would be written."""
    assert isinstance(sizes, tuple)  # noqa: S101 - the kind's own value
    return ",".join(f"{size.name}={_memory(size)}:{size.core_percent}" for size in sizes)


def _memory(size: SliceSize) -> str:
    whole, rest = divmod(size.memory_mib, 1024)
    return f"{size.memory_mib}Mi" if rest else f"{whole}Gi"


def _written(raw: object) -> Iterable[tuple[str, object, object]]:
    if isinstance(raw, Mapping):
        yield from (_of_mapping(name, value) for name, value in raw.items())
        return
    items = raw if isinstance(raw, list | tuple) else [raw]
    for item in items:
        if isinstance(item, SliceSize):
            yield item.name, item.memory_mib, item.core_percent
            continue
        if not isinstance(item, str):
            raise ValueError(  # noqa: TRY004 - one kind of error for every objection
                f"{_shown(item)} is no size; {_EXAMPLE}"
            )
        for word in filter(None, (word.strip() for word in item.split(","))):
            name, equals, rest = word.partition("=")
            memory, colon, cores = rest.partition(":")
            if not (equals and colon):
                raise ValueError(
                    f"{_shown(word)} is not name=memory:cores; every size needs both limits: "
                    f"{_EXAMPLE}"
                )
            yield name.strip(), memory.strip(), cores.strip()


def _of_mapping(name: object, value: Any) -> tuple[str, object, object]:
    if not isinstance(value, Mapping) or set(value) != {"memory", "cores"}:
        raise ValueError(
            f"the size {_shown(name)} must have memory and cores and nothing else: write "
            f"{{memory: 8Gi, cores: 25}}"
        )
    return name if isinstance(name, str) else _shown(name), value["memory"], value["cores"]


def _size(name: str, memory: object, cores: object) -> SliceSize:
    if len(name) > MAX_NAME_CHARS or not SIZE_NAME.fullmatch(name):
        raise ValueError(
            f"{_shown(name)} cannot be the name of a size: at most {MAX_NAME_CHARS} lower-case "
            "letters, digits and dashes, a letter first; it becomes the end of a resource's name"
        )
    return SliceSize(
        name=name, memory_mib=_memory_mib(name, memory), core_percent=_percent(name, cores)
    )


def _memory_mib(name: str, value: object) -> int:
    found = _MEMORY.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        found = _MEMORY.fullmatch(str(value)) if value >= 0 else None
    mib = int(found[1]) * (1024 if found[2] == "Gi" else 1) if found else 0
    if mib < 1:
        raise ValueError(
            f"the memory of size {name} is {_shown(value)}; write it as 8Gi, 8192Mi or 8192 (MiB), "
            "at least 1 MiB"
        )
    return mib


def _percent(name: str, value: object) -> int:
    found = _CORES.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        found = _CORES.fullmatch(str(value)) if value >= 0 else None
    percent = int(found[1]) if found else 0
    if not 1 <= percent <= 100:  # noqa: PLR2004 - percent
        raise ValueError(
            f"the cores of size {name} are {_shown(value)}; write a whole number of percent from "
            "1 to 100"
        )
    return percent


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else str(value)[: _SHOWN + 1]
    return ascii(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")
