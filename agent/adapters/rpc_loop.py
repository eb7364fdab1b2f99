"""The event loop on which gRPC serves: one thread for the whole process.

Servers of grpc.aio sleep until something happens. The synchronous ones look five times a second,
each: a third of what an idle agent would cost. There is one loop and no more, since all of grpc.aio
shares one queue of completions, and several loops would steal each other's.
"""

import asyncio
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_ONE = threading.Lock()


def run(work: Coroutine[Any, Any, T], within_s: float) -> T:
    """Do `work` on the loop and wait for it. Raises what it raises, and TimeoutError."""
    with _ONE:
        loop = _loop()
    doing = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return doing.result(within_s)
    finally:
        doing.cancel()  # what is not done by now is not wanted any more


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop, once it runs. Like the threads of gRPC it ends with the process."""
    loop = asyncio.new_event_loop()
    running = threading.Event()
    loop.call_soon(running.set)
    threading.Thread(target=loop.run_forever, name="kubelet-rpc", daemon=True).start()
    running.wait()
    return loop
