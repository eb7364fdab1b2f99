"""Of which revision is a release? Asked in real checkouts."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from bundling.provenance import revision
from bundling.runtime import BundleError

NONE = {"revision": None, "committed_at": None, "modified": None}


def git(tree: Path, *words: str) -> str:
    name = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    done = subprocess.run(
        ["git", *name, *words], cwd=tree, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tree := tmp_path / "tree").mkdir()
    git(tree, "init", "--quiet")
    (tree / "file").write_text("as committed")
    git(tree, "add", "file")
    git(tree, "commit", "--quiet", "-m", "first")
    return tree


def test_a_clean_tree(tree: Path) -> None:
    told = revision(tree)
    assert (told["revision"], told["modified"]) == (git(tree, "rev-parse", "HEAD"), False)
    assert told["committed_at"] == git(tree, "show", "-s", "--format=%cI")


def changed(tree: Path) -> None:
    (tree / "file").write_text("otherwise")


def staged(tree: Path) -> None:
    changed(tree)
    git(tree, "add", "file")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(changed, id="a changed file"),
        pytest.param(staged, id="a changed file that will be committed"),
        pytest.param(lambda tree: (tree / "file").unlink(), id="a file that is gone"),
        pytest.param(lambda tree: (tree / "other").touch(), id="a file that git does not know"),
    ],
)
def test_a_changed_tree_says_so(tree: Path, change: Callable[[Path], object]) -> None:
    change(tree)
    assert revision(tree)["modified"] is True


def test_a_tree_inside_of_another_checkout_has_no_revision(tree: Path) -> None:
    (inside := tree / "unpacked").mkdir()
    (inside / "build.py").touch()
    assert revision(inside) == NONE


def test_a_second_worktree_has_its_own(tree: Path, tmp_path: Path) -> None:
    git(tree, "worktree", "add", "--quiet", "-b", "other", str(tmp_path / "second"))
    (tmp_path / "second" / "more").touch()
    git(tmp_path / "second", "add", "more")
    git(tmp_path / "second", "commit", "--quiet", "-m", "second")
    told = revision(tmp_path / "second")
    assert told["revision"] == git(tree, "rev-parse", "other") != revision(tree)["revision"]


def test_the_hook_of_another_checkout_may_ask(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other := tmp_path / "other").mkdir()
    git(other, "init", "--quiet")
    git(other, "commit", "--quiet", "--allow-empty", "-m", "of another")
    head = git(tree, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert revision(tree)["revision"] == head


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        pytest.param("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1", "dubious ownership", id="of another"),
        pytest.param("PATH", "/nonexistent", "there is no git", id="no git"),
    ],
)
def test_a_checkout_of_which_git_does_not_tell_makes_no_release(
    tree: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BundleError, match=told):
        revision(tree)


def test_a_damaged_checkout_makes_no_release(tree: Path) -> None:
    (tree / ".git" / "HEAD").write_text("ref: refs/heads/gone\n")
    with pytest.raises(BundleError, match="git does not tell"):
        revision(tree)
