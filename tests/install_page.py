"""The commands of docs/install/kubernetes.md, in the order in which a reader types them."""

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "install" / "kubernetes.md"


def _lines() -> list[str]:
    """Indented lines, which are commands, and not what is fenced, which are examples of files."""
    text = re.sub(r"^```.*?^```", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [line.removeprefix("sudo ") for line in lines]


def commands(program: str) -> list[list[str]]:
    """Command lines of this program, as words; `$NODE` is left as it is."""
    return [words for words in map(shlex.split, _lines()) if words[0] == program]


def other_programs(*known: str) -> set[str]:
    """Programs of the page's commands that nobody has asked for."""
    return {line.split()[0] for line in _lines()} - set(known)
