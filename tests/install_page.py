"""The commands of the pages in docs/install, in the order in which a reader types them."""

import re
import shlex
from pathlib import Path

PAGES = Path(__file__).resolve().parents[1] / "docs" / "install"
PAGE = PAGES / "kubernetes.md"


def lines(page: Path = PAGE) -> list[str]:
    """Indented lines, which are commands, and not what is fenced, which are examples of files."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    typed = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [line.removeprefix("sudo ") for line in typed]


def commands(program: str) -> list[list[str]]:
    """Command lines of this program, as words; `$NODE` is left as it is."""
    return [words for words in map(shlex.split, lines()) if words[0] == program]


def other_programs(*known: str) -> set[str]:
    """Programs of the page's commands that nobody has asked for."""
    return {line.split()[0] for line in lines()} - set(known)
