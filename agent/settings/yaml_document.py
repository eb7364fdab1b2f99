"""One YAML document of a file that somebody wrote, with bounds that YAML itself does not have.

A few lines of aliases (`&a`, `*a`, `<<`) stand for any number of values, and a key that is there
twice is silently the last one's: the first is told before anything is made of it, the second said.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.errors import ConfigError

MAX_NODES = 200_000  # far more than a configuration file has
MERGE = "tag:yaml.org,2002:merge"


def parse_yaml(text: str, path: Path) -> tuple[Any, tuple[str, ...]]:
    """What the text says, and a sentence for every key that is twice in one mapping.

    Raises ConfigError.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None, ()
        twice = tuple(_weighed(node, path))
        return loader.construct_document(node), twice
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context or "not YAML"
        raise ConfigError(f"{path}{where}: {problem}; correct the YAML there") from error
    except Exception as error:  # PyYAML lets others through: !!timestamp x, deep nesting, ...
        raise ConfigError(f"{path} is not usable YAML ({type(error).__name__}); correct it") from (
            error
        )


def _weighed(top: Any, path: Path) -> Iterator[str]:
    """Refuse what is too much with its aliases written out; tell of keys that are there twice."""
    known: dict[int, int] = {}
    if _weight(top, known, path) > MAX_NODES:
        raise ConfigError(
            f"{path} has more than {MAX_NODES} values with its aliases (`*name`, `<<`) written "
            "out; write it with fewer of them"
        )
    seen: set[int] = set()
    left = [top]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        children = _children(node)
        left += children
        yield from _keys_twice(node, path)


def _weight(node: Any, known: dict[int, int], path: Path) -> int:
    """How many values a node stands for. Raises ConfigError: one is within itself."""
    if id(node) not in known:
        known[id(node)] = 0
        known[id(node)] = 1 + sum(_weight(child, known, path) for child in _children(node))
    if not known[id(node)]:
        raise ConfigError(
            f"{path} has a value within itself, by an alias (`*name`); write it without"
        )
    return known[id(node)]


def _children(node: Any) -> list[Any]:
    if node.id == "mapping":
        return [part for pair in node.value for part in pair]
    return list(node.value) if node.id == "sequence" else []


def _keys_twice(node: Any, path: Path) -> Iterator[str]:
    if node.id != "mapping":
        return
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if key.id != "scalar" or key.tag == MERGE:
            continue
        line = key.start_mark.line + 1
        name = (key.tag, key.value)
        if name in lines:
            yield (
                f"{path}, line {line}: {key.value[:80]} is there a second time, after line "
                f"{lines[name]}, and the last holds; remove one"
            )
        lines[name] = line
