"""A process that serves gRPC starts programs by a real fork, as it takes to start one as another user."""

import subprocess
import threading
from concurrent import futures
from pathlib import Path

import grpc

FORKS = (
    300  # where gRPC has handlers of fork, one child in 200 crashed, or all of them waited for ever
)


class Echo(grpc.GenericRpcHandler):
    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


def test_a_child_of_a_busy_server_gets_to_its_program(tmp_path: Path) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Echo(),))
    address = f"unix:{tmp_path}/socket"
    server.add_insecure_port(address)
    server.start()
    ended = threading.Event()

    def chat() -> None:
        while not ended.is_set():
            with grpc.insecure_channel(address) as channel:
                ask = channel.unary_unary("/echo/echo")
                assert [ask(b"x", timeout=60) for _ in range(5)] == [b"x"] * 5

    with futures.ThreadPoolExecutor(2) as pool:
        chats = [pool.submit(chat) for _ in range(2)]
        try:
            # what Python is to run in the child keeps it from vfork, of which gRPC is not told
            children = [
                subprocess.run(["/bin/true"], check=False, preexec_fn=lambda: None)
                for _ in range(FORKS)
            ]
        finally:
            ended.set()
    server.stop(grace=None).wait()
    assert [done.returncode for done in children] == [0] * FORKS
    assert [one.result() for one in chats] == [None, None]
