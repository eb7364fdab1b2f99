"""Our socket files and the call of Register: what is made, kept, noticed and cleaned up."""

import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from plugin_bed import GPU, Served, dead_socket

from agent import errors
from agent.adapters.kubelet import SOCKET_PREFIX, KubeletLink, sweep


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a name so short that sockets fit into it."""
    return tmp_path_factory.mktemp("d") / "dp"


@pytest.fixture
def served(directory: Path, stack: ExitStack) -> Served:
    return Served(directory, stack)


def test_every_socket_has_a_fresh_name_and_one_is_live(served: Served) -> None:
    first = served.path

    served.link.serve(served.streams.append)

    [second] = first.parent.glob(f"{SOCKET_PREFIX}*")
    assert second.name != first.name
    assert not first.exists()


def test_socket_is_roots_alone_whatever_the_umask(served: Served) -> None:
    assert stat.S_IMODE(served.path.lstat().st_mode) == 0o700
    assert stat.S_ISSOCK(served.path.lstat().st_mode)


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_missing_or_foreign_socket_is_noticed(served: Served, replaced: bool) -> None:
    assert served.link.intact()
    served.path.unlink()
    if replaced:
        served.path.touch()

    assert not served.link.intact()


def test_missing_directory_is_a_sentence(directory: Path, served: Served) -> None:
    link = KubeletLink(directory / "absent" / "kubelet.sock", GPU, served.answers)

    with pytest.raises(errors.KubeletUnavailable, match=r"no such directory.*mounted as a whole"):
        link.serve(served.streams.append)


def test_path_that_no_socket_can_have_is_refused_before_anything_starts(served: Served) -> None:
    with pytest.raises(errors.ConfigError, match=r"at most 107 bytes.*shorter path"):
        KubeletLink(Path("/" + "x" * 80) / "kubelet.sock", GPU, served.answers)


def test_directory_with_odd_characters_works(directory: Path, stack: ExitStack) -> None:
    served = Served(directory.with_name("a b%20#?"), stack)
    assert served.allocate("GPU-0-0").envs


def test_sockets_of_dead_agents_are_swept_and_nothing_else(
    directory: Path, stack: ExitStack
) -> None:
    directory.mkdir()
    live = stack.enter_context(socket.socket(socket.AF_UNIX))
    live.bind(str(directory / f"{SOCKET_PREFIX}1-1-live.sock"))
    live.listen()
    dead_socket(directory / f"{SOCKET_PREFIX}2-1-dead.sock")
    dead_socket(directory / "nvidia-gpu.sock")
    (directory / f"{SOCKET_PREFIX}3-1-file.sock").touch()
    (directory / f"{SOCKET_PREFIX}4-1-link.sock").symlink_to("nvidia-gpu.sock")
    before = {path.name for path in directory.iterdir()}

    assert sweep(directory) == []  # too young to judge
    swept = sweep(directory, now_s=lambda: time.time() + 60)

    assert [path.name for path in swept] == [f"{SOCKET_PREFIX}2-1-dead.sock"]
    assert {path.name for path in directory.iterdir()} == before - {swept[0].name}


def test_sweeping_a_missing_directory_finds_nothing(directory: Path) -> None:
    assert sweep(directory / "absent") == []


def test_registration_without_a_kubelet_says_where_it_knocked(served: Served) -> None:
    with pytest.raises(errors.KubeletUnavailable, match=r"does not answer on .*kubelet\.sock"):
        served.link.register()


def test_interrupted_registration_ends_at_once(served: Served, stack: ExitStack) -> None:
    deaf = stack.enter_context(socket.socket(socket.AF_UNIX))
    deaf.bind(str(served.path.parent / "kubelet.sock"))
    deaf.listen()
    failures: list[str] = []

    def register() -> None:
        try:
            served.link.register()
        except errors.KubeletUnavailable as error:
            failures.append(str(error))

    thread = threading.Thread(target=register)
    thread.start()
    served.link.interrupt()
    thread.join(10)

    assert failures == ["the agent is stopping"]


def test_registration_ends_when_our_socket_is_wiped(served: Served, stack: ExitStack) -> None:
    deaf = stack.enter_context(socket.socket(socket.AF_UNIX))
    deaf.bind(str(served.path.parent / "kubelet.sock"))
    deaf.listen()
    served.path.unlink()

    with pytest.raises(errors.KubeletUnavailable, match="our socket disappeared"):
        served.link.register()
