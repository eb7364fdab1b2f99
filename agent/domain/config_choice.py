"""Which of several configurations a node takes: by a label of its Node.

Source: NVIDIA k8s-device-plugin 0.19, cmd/config-manager.
"""

from collections.abc import Collection
from dataclasses import dataclass

from agent.errors import ConfigError

NAMED, SINGLE, EMPTY = "named", "single", "empty"
FALLBACKS = (NAMED, SINGLE, EMPTY)
NAMED_CONFIG = "default"  # what the fallback `named` looks for
MAX_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChoice:
    """The settings that decide."""

    label: str  # of the Node
    default: str  # of a Node without it; empty: the fallbacks, in their order
    fallbacks: tuple[str, ...]

    def name(self, value: str, there: Collection[str]) -> str:
        """Of the label's value, the name of the configuration; empty: none is to be read.

        `there`: the names of all. Raises ConfigError.
        """
        listed = ", ".join(sorted(there)[:MAX_NAMED]) or "none"
        if value or self.default:
            wanted = value or self.default
            if wanted in there:
                return wanted
            why = f"the Node's label {self.label}" if value else "--default-config"
            raise ConfigError(
                f"{why} names the configuration {wanted[:80]!r}, and there is none of that name "
                f"({listed}): correct the name, or add it to the ConfigMap"
            )
        for fallback in self.fallbacks:
            if fallback == NAMED and NAMED_CONFIG in there:
                return NAMED_CONFIG
            if fallback == SINGLE and len(there) == 1:
                return next(iter(there))
            if fallback == EMPTY:
                return ""
        raise ConfigError(
            f"the Node has no label {self.label}, and no fallback chooses one of the "
            f"configurations ({listed}): label the Node, or set --default-config"
        )
