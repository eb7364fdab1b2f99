"""The configurations in a directory, as a ConfigMap is mounted: one a file, by its name."""

import os
from itertools import islice
from pathlib import Path

from agent.errors import ConfigError

MANY_FILES = 10_000


def configurations(folder: Path) -> frozenset[str]:
    """Names of the files there; those of kubelet's own, which begin with two dots, are none."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(
                entry.name
                for entry in islice(entries, MANY_FILES)
                if not entry.name.startswith("..") and not entry.is_dir()
            )
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be read: {error.strerror}; mount the ConfigMap with the "
            "configurations there, or leave --config-file-srcdir out"
        ) from error
