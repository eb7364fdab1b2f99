"""Behind every write to the world there is a boundary, and nothing in the product looks at one."""

import ast
from collections.abc import Iterator

import pytest

from agent import boundaries
from tests.faults.breaking import ROOT, names

WRITES = {
    "write", "pwrite", "rename", "replace", "unlink", "rmdir", "mkdir", "ftruncate", "truncate",
    "fchmod", "chmod", "fchown", "chown", "fsync", "fdatasync", "posix_fallocate", "utime", "link",
    "symlink", "mkfifo",
}  # fmt: skip
BY_PATH = {"unlink", "mkdir", "rename", "write_text", "write_bytes", "touch", "symlink_to", "rmdir"}
# Function by file: why it has none of its own. Whatever is listed has to be there and to write.
WITHOUT = {
    "safe_files.py:write_all": "its callers say what was written",
    "safe_files.py:set_socket_mode": "its callers say what is served then",
    "safe_files.py:_delete_directory": "its entries were deleted one by one",
    "safe_files.py:_delete_or_move_up": "an entry of a tree that is going, as in _delete",
    "live_limits.py:_sync": "makes nothing: it hastens what the mapping already holds",
    "hook_files.py:_renew": "gives a file that is there the present time",
    "block_guardian.py:unblock": "of a child that outlives the agent: tests/wire/test_block_guard.py",
    "totals_file.py:_remove_leftovers": "what is left is taken away at the next start",
    "local_sockets.py:_give_to": "the way out after an error",
    "local_sockets.py:entered": "makes an empty directory that stays",
    "grant_log.py:_opened": "makes an empty directory that stays",
    "limit_records.py:_opened": "makes an empty directory that stays",
    "safe_files.py:opened_for": "makes an empty directory that stays",
    "instance_lock.py:try_acquire": "makes an empty directory that stays",
    "mps.py:_made": "makes an empty directory that stays",
    "mps.py:obstacle": "makes an empty directory that stays",
    "mig_files.py:_create": "HAMi's own file for the MIG modes; not yet in the matrix",
}


def writers() -> Iterator[tuple[str, bool]]:
    """Every function of the adapters that writes, and whether it passes a boundary."""
    for path in sorted((ROOT / "agent" / "adapters").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
                if any(writes(function) for function in calls):
                    told = any(isinstance(f, ast.Name) and f.id == "passed" for f in calls)
                    yield f"{path.name}:{node.name}", told


def writes(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and function.value.id == "os":
        return function.attr in WRITES
    return function.attr in BY_PATH


def test_every_function_that_writes_says_so() -> None:
    found = dict(writers())
    assert len(found) > 20
    assert {name for name, told in found.items() if not told} - set(WITHOUT) == set()


def test_what_is_excused_is_there() -> None:
    found, there = dict(writers()), ROOT / "agent" / "adapters"
    excused = [name for name in WITHOUT if (there / name.partition(":")[0]).exists()]
    assert [name for name in excused if found.get(name) is not False] == []


def test_nothing_in_the_product_looks_at_boundaries() -> None:
    """No setting, variable or file can arm them: only a program that calls `observe` itself."""
    for path in sorted((ROOT / "agent").rglob("*.py")):
        if path.name != "boundaries.py":
            assert "observe(" not in path.read_text() or "boundaries" not in path.read_text(), path
    tree = ast.parse((ROOT / "agent" / "boundaries.py").read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imported] == ["from collections.abc import Callable"]


def test_a_boundary_is_nothing_until_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "_observer", boundaries._nobody)
    boundaries.passed("file-renamed")
    seen: list[str] = []
    boundaries.observe(seen.append)
    boundaries.passed("file-renamed")
    assert seen == ["file-renamed"]


def test_each_name_is_one_place() -> None:
    """So that a row of the results says where it was; asking the API server is one place as well."""
    assert {name: places for name, places in names().items() if len(places) > 1} == {}
