"""Our side of kubelet's door: sockets of fresh names that kubelet dials, and the registration.

gRPC replaces whatever file it binds to and, when it stops, unlinks the path whatever is there by
then. So every registration gets a file name that was never used before and is never used again.
"""

import contextlib
import itertools
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from agent import logs
from agent.adapters import rpc_loop
from agent.adapters.device_plugin import GRACE_S, Answers, DevicePlugin
from agent.adapters.safe_files import set_socket_mode
from agent.boundaries import passed
from agent.domain.ownership import OWN_SOCKET_PREFIX
from agent.domain.registration import REGISTER_TIMEOUT_S
from agent.errors import ConfigError, KubeletUnavailable
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc

log = logs.get(__name__)

SOCKET_PREFIX = OWN_SOCKET_PREFIX
SOCKET_PATH_BYTES = 107  # sun_path without its closing zero
START_S = 5.0  # what gRPC may take to start or stop a server, beside the calls under way
SELF_DIAL_S = 2.0
SWEEP_AGE_S = 10.0  # a younger socket may belong to somebody between bind and listen
MAX_RECEIVE_BYTES = 8 * 1024 * 1024  # GetPreferredAllocation names every free vGPU


@dataclass(frozen=True, slots=True)
class _Served:
    """A live socket."""

    path: Path
    device: int
    inode: int
    plugin: DevicePlugin
    server: Any


class KubeletLink:
    """Serves one resource and registers it (`ports.KubeletLink`)."""

    def __init__(self, kubelet_socket: Path, resource: str, answers: Answers) -> None:
        self._kubelet_socket = kubelet_socket
        self._directory = kubelet_socket.parent
        self._resource = resource
        self._answers = answers
        self._served: _Served | None = None
        self._stopping = threading.Event()
        self._numbers = itertools.count(1)
        longest = self._directory / _socket_name(4_194_304, 999_999)
        if len(os.fsencode(longest)) > SOCKET_PATH_BYTES:
            raise ConfigError(
                f"the directory {self._directory} is too long for a socket in it: a Unix socket "
                f"path has at most {SOCKET_PATH_BYTES} bytes and ours would be {longest.name}; "
                "give kubelet (or its mount in our container) a shorter path"
            )

    # --- serving ---------------------------------------------------------------------------

    def serve(self, on_stream: Callable[[bool], None]) -> None:
        """See `ports.KubeletLink.serve`."""
        self.close()
        sweep(self._directory)
        path = self._directory / _socket_name(os.getpid(), next(self._numbers))
        plugin = DevicePlugin(self._answers, on_stream)
        server = rpc_loop.run(_made_server(plugin), START_S)
        try:
            server.add_insecure_port(rpc.unix_target(path))
            set_socket_mode(path, 0o700)  # not by umask: that belongs to the whole process
            status = path.lstat()
        except (RuntimeError, OSError) as error:
            rpc_loop.run(server.stop(None), START_S)
            raise KubeletUnavailable(
                f"no socket can be made in {self._directory} ({_why(self._directory, error)}); "
                "it must be kubelet's device-plugins directory, mounted as a whole"
            ) from error
        self._served = _Served(path, status.st_dev, status.st_ino, plugin, server)
        rpc_loop.run(server.start(), START_S)
        passed("plugin-served")
        self._dial_ourselves(path)

    def _dial_ourselves(self, path: Path) -> None:
        """Serving must precede Register; kubelet would find the fault only after 10 s."""
        channel = rpc.unix_channel(path, max_receive_bytes=MAX_RECEIVE_BYTES)
        try:
            rpc.GET_OPTIONS.client(channel)(dp.Empty(), timeout=SELF_DIAL_S)
        except grpc.RpcError as error:
            raise KubeletUnavailable(
                f"our own socket {path} does not answer ({_details(error)})"
            ) from error
        finally:
            channel.close()

    def close(self) -> None:
        """See `ports.KubeletLink.close`. Calls under way may finish within their budget."""
        served, self._served = self._served, None
        if served is None:
            return
        grace_s = self._answers.budget_s + GRACE_S
        rpc_loop.run(_stop(served, self._answers, grace_s), 2 * grace_s + START_S)
        if _is_still(served):
            served.path.unlink(missing_ok=True)
            passed("plugin-socket-removed")

    def intact(self) -> bool:
        """See `ports.KubeletLink.intact`."""
        return self._served is not None and _is_still(self._served)

    # --- registering -----------------------------------------------------------------------

    def register(self) -> None:
        """See `ports.KubeletLink.register`."""
        served = self._served
        if served is None:
            raise KubeletUnavailable("nothing is served that could be registered")
        request = dp.RegisterRequest(
            version=rpc.API_VERSION,
            endpoint=served.path.name,
            resource_name=self._resource,
            options=self._answers.options(),
        )
        channel = rpc.unix_channel(self._kubelet_socket, max_receive_bytes=MAX_RECEIVE_BYTES)
        try:
            call = rpc.REGISTER.client(channel).future(request, timeout=REGISTER_TIMEOUT_S)
            self._wait_for(call)
            passed("plugin-registered")
        except grpc.RpcError as error:
            raise KubeletUnavailable(self._refusal(error)) from error
        finally:
            channel.close()

    def _wait_for(self, call: rpc.Call[dp.Empty]) -> None:
        """Wait for the answer, but not when the agent stops, nor when our socket is wiped.

        A kubelet that starts wipes the directory and would then dial our lost socket for 10 s.
        """
        while True:
            with contextlib.suppress(grpc.FutureTimeoutError):
                call.result(timeout=0.2)
                return
            if self._stopping.is_set() or not self.intact():
                call.cancel()
                raise KubeletUnavailable(
                    "the agent is stopping"
                    if self._stopping.is_set()
                    else "our socket disappeared during the registration"
                )

    def told(self) -> int:
        """See `ports.KubeletLink.told`."""
        return self._answers.healthy_told

    def interrupt(self) -> None:
        """See `ports.KubeletLink.interrupt`."""
        self._stopping.set()

    def _refusal(self, error: grpc.RpcError) -> str:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            cause = _details(error).rpartition("error: ")[2]  # before it: the path, three times
            return f"kubelet does not answer on {self._kubelet_socket} ({cause})"
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"kubelet did not answer Register within {REGISTER_TIMEOUT_S:.0f} s"
        return f"kubelet refused to register {self._resource}: {_details(error)}"


async def _made_server(plugin: DevicePlugin) -> Any:
    """A server belongs to the loop on which it is made."""
    return grpc.aio.server(
        handlers=[rpc.device_plugin_handler(plugin)],
        options=[("grpc.max_receive_message_length", MAX_RECEIVE_BYTES)],
    )


async def _stop(served: _Served, answers: Answers, grace_s: float) -> None:
    await answers.settled()  # before the streams: kubelet hangs up all calls when they end
    served.plugin.end_streams()
    await served.server.stop(grace_s)


# --- socket files --------------------------------------------------------------------------------


def sweep(directory: Path, *, now_s: Callable[[], float] = time.time) -> list[Path]:
    """Remove sockets of ours on which nobody listens: what a killed agent left. Gives them.

    Process ids say nothing (every container counts its own), so each socket is tried.
    """
    swept = []
    with contextlib.suppress(OSError):
        for path in directory.glob(f"{SOCKET_PREFIX}*.sock"):
            with contextlib.suppress(OSError):
                status = path.lstat()
                young = now_s() - status.st_ctime < SWEEP_AGE_S
                if stat.S_ISSOCK(status.st_mode) and not young and _is_dead(path):
                    path.unlink()
                    passed("plugin-socket-swept")
                    swept.append(path)
    if swept:
        log.info("stale sockets removed", count=len(swept), directory=directory)
    return swept


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


def _socket_name(pid: int, number: int) -> str:
    return f"{SOCKET_PREFIX}{pid}-{number}-{secrets.token_hex(3)}.sock"


def _is_still(served: _Served) -> bool:
    try:
        status = os.lstat(served.path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (served.device, served.inode)


def _why(directory: Path, error: Exception) -> str:
    """Say the usual cause where gRPC speaks of addresses."""
    if not directory.is_dir():
        return "there is no such directory"
    return str(error)


def _details(error: grpc.RpcError) -> str:
    return str(error.details() or error.code().name)
