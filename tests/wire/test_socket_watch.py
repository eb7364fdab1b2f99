"""Looking at kubelet's socket, with inotify as far as it goes and without it."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from plugin_bed import dead_socket

from agent.adapters.socket_watch import SocketWatch


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a name so short that sockets fit into it."""
    return tmp_path_factory.mktemp("d") / "dp"


@pytest.fixture
def watch(directory: Path, stack: ExitStack) -> tuple[SocketWatch, threading.Event, Path]:
    directory.mkdir()
    watched = SocketWatch(directory / "kubelet.sock")
    woken = threading.Event()
    watched.start(woken.set)
    stack.callback(watched.stop)
    return watched, woken, directory


def test_look_tells_one_socket_from_the_next(
    watch: tuple[SocketWatch, threading.Event, Path],
) -> None:
    watched, _, directory = watch
    seen = [watched.look()]
    for _ in range(2):
        dead_socket(directory / "kubelet.sock")
        seen += [watched.look(), watched.look()]
        (directory / "kubelet.sock").unlink()
        seen.append(watched.look())

    none_1, first, first_again, none_2, second, second_again, none_3 = seen
    assert none_1 is none_2 is none_3 is None
    assert first == first_again is not None
    assert second == second_again
    assert second != first


@pytest.mark.parametrize("there", [True, False])
def test_where_there_is_no_socket_it_says_where_and_what_to_do(
    directory: Path, there: bool
) -> None:
    if there:
        directory.mkdir()
    says = SocketWatch(directory / "kubelet.sock").absence()
    assert says.startswith(f"there is no {directory}/kubelet.sock")
    assert ("nor the directory" in says) is not there
    assert "start kubelet" in says
    assert "--kubelet-socket" in says


def test_creation_of_kubelets_socket_wakes(
    watch: tuple[SocketWatch, threading.Event, Path],
) -> None:
    _, woken, directory = watch
    dead_socket(directory / "kubelet.sock")
    assert woken.wait(10)


def test_kubelets_checkpoint_does_not_wake(
    watch: tuple[SocketWatch, threading.Event, Path],
) -> None:
    _, woken, directory = watch
    (directory / "kubelet_internal_checkpoint").write_text("x")
    (directory / "other.sock").touch()
    assert not woken.wait(0.3)


@pytest.mark.parametrize("how", ["deleted", "renamed"])
def test_directory_made_anew_is_watched_anew(
    watch: tuple[SocketWatch, threading.Event, Path], how: str
) -> None:
    watched, woken, directory = watch
    if how == "deleted":
        directory.rmdir()
    else:
        directory.rename(directory.with_name("old"))
    assert watched.look() is None
    directory.mkdir()
    watched.look()
    woken.clear()

    dead_socket(directory / "kubelet.sock")

    assert woken.wait(10)
    assert watched.look() is not None


def test_directory_exchanged_for_one_with_a_kubelet_in_it_is_watched_anew(
    watch: tuple[SocketWatch, threading.Event, Path],
) -> None:
    watched, woken, directory = watch
    dead_socket(directory / "kubelet.sock")
    first = watched.look()
    other = directory.with_name("new")
    other.mkdir()
    dead_socket(other / "kubelet.sock")
    directory.rename(directory.with_name("old"))
    other.rename(directory)
    second = watched.look()
    assert second not in (None, first)
    woken.clear()

    (directory / "kubelet.sock").unlink()

    assert woken.wait(10)


def test_without_inotify_the_look_still_works(
    directory: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with EMFILE, when other containers have used up the instances of this user."""
    from watchdog.observers import inotify

    def exhausted(*_: object, **__: object) -> None:
        raise OSError(24, "inotify instance limit reached")

    directory.mkdir()
    monkeypatch.setattr(inotify.InotifyEmitter, "on_thread_start", exhausted)
    now_s = [0.0]
    watched = SocketWatch(directory / "kubelet.sock", clock=lambda: now_s[0])
    woken = threading.Event()
    watched.start(woken.set)
    stack.callback(watched.stop)
    dead_socket(directory / "kubelet.sock")
    assert watched.look() is not None

    monkeypatch.undo()
    watched.look()
    (directory / "kubelet.sock").unlink()
    assert not woken.wait(0.2)  # not tried again yet
    now_s[0] = 61.0
    watched.look()
    dead_socket(directory / "kubelet.sock")

    assert woken.wait(10)
