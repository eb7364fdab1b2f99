"""The agent reads what containers can write, and never maps it: one that cuts it short would end us."""

import ast
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[2] / "agent"
MODULES = sorted(AGENT.rglob("*.py"))
# Files of the agent's own that nobody else can write or cut short.
OWN_FILES = AGENT / "adapters" / "mapped_limits.py"


def imported(source: str) -> set[str]:
    """Names of the modules that a source imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(AGENT)))
def test_no_module_maps_files(path: Path) -> None:
    assert ("mmap" in imported(path.read_text())) == (path == OWN_FILES)


def test_a_module_that_does_would_be_found() -> None:
    assert imported("def look():\n    from mmap import mmap\n    import os.path") == {"mmap", "os"}
    assert len(MODULES) > 50
