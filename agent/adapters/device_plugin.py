"""The DevicePlugin service: protobuf on the outside, vGPUs and grants on the inside.

Kubelet sets no deadline for Allocate and admits no other pod meanwhile, so every call has a budget
here: the allocator is told its deadline and honours it, and should it hang nevertheless (a disk, a
mount), its thread is left to itself and the call ends with a sentence. Texts of errors are read by
the owner of the pod in `kubectl describe pod`.

All coroutines here run on the one loop of `agent.adapters.rpc_loop`, and never block it.
"""

import asyncio
import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

import grpc

from agent import errors, logs
from agent.adapters.device_list import encoded_list
from agent.adapters.grant_wire import encode_grant
from agent.boundaries import passed
from agent.domain.gpu import GpuInventory
from agent.domain.grants import Grant
from agent.domain.preferred_ids import preferred_ids
from agent.domain.vgpu_ids import Vgpu
from agent.services.published import Inventory, Published
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc

log = logs.get(__name__)

T = TypeVar("T")

ALLOCATE_BUDGET_S = 2.0
PREFER_BUDGET_S = 1.0  # it is only a hint, and kubelet waits for it too
GRACE_S = 0.25  # for an allocator that honours its deadline to say so itself
MAX_CALLS = 8  # of kubelet at a time, with those that are overdue
MAX_DETAILS_CHARS = 1000

INTERNAL = (
    "vgpu-agent failed on this node while it prepared the container; this is a defect of the "
    "agent, not of the pod: its log on the node has the details"
)

# Checked in order: the first class that fits.
_CODES: tuple[tuple[type[errors.AgentError], grpc.StatusCode], ...] = (
    (errors.NoPendingPod, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.MalformedAnnotation, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.CountMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.UnknownDevice, grpc.StatusCode.NOT_FOUND),
    (errors.BudgetExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.NodeNotReady, grpc.StatusCode.UNAVAILABLE),
    (errors.ClusterConflict, grpc.StatusCode.ABORTED),
    (errors.ClusterGone, grpc.StatusCode.NOT_FOUND),
    (errors.ClusterDenied, grpc.StatusCode.PERMISSION_DENIED),
    (errors.ClusterError, grpc.StatusCode.UNAVAILABLE),
    (errors.AgentError, grpc.StatusCode.FAILED_PRECONDITION),
)


class Allocator(Protocol):
    """Who decides what a container gets. Thread-safe; `deadline_s` is of `time.monotonic()`."""

    def allocate(self, device_ids: Sequence[str], *, deadline_s: float) -> Grant:
        """Grant one container the vGPUs that kubelet chose (sorted). Raises AgentError.

        It counts and logs its own outcomes, and grants nothing after the deadline.
        """


class Preference(Protocol):
    """Who advises kubelet on which vGPUs to choose. Thread-safe."""

    def preferred(
        self,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        *,
        deadline_s: float,
    ) -> Sequence[str]:
        """Choose `size` of the available ids for the container whose turn it is."""


class Refused(Exception):
    """How an RPC ends: the status, and the sentence for the owner of the pod."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Overdue(Exception):
    """A call is not done in its time; `working` calls are still at it."""

    def __init__(self, working: int) -> None:
        super().__init__(f"{working} overdue calls")
        self.working = working


class BoundedCalls:
    """Runs calls in threads of their own, so that a caller can stop waiting for one.

    The threads are daemons: one that never comes back does not keep the process from ending. Only
    so many may be out; then calls are overdue before they have begun.
    """

    def __init__(self, limit: int = MAX_CALLS) -> None:
        self._limit = limit
        self._free = threading.BoundedSemaphore(limit)
        self._under_way: dict[asyncio.Event, float] = {}  # until when; only the loop looks

    async def run(self, work: Callable[[], T], within_s: float) -> T:
        """Give what `work` gives, or raise what it raises. Raises Overdue."""
        if not self._free.acquire(blocking=False):
            raise Overdue(self._limit)
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        outcome: Future[T] = Future()

        def call() -> None:
            try:
                outcome.set_result(work())
            except Exception as error:  # noqa: BLE001 - it belongs to the waiting caller
                outcome.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - one that ends loops is not for the loop
                outcome.set_exception(RuntimeError(f"a call of kubelet ended by {error!r}"))
            finally:
                self._free.release()
                loop.call_soon_threadsafe(finished)

        def finished() -> None:
            done.set()
            self._under_way.pop(done, None)

        try:
            threading.Thread(target=call, name="kubelet-call", daemon=True).start()
        except RuntimeError:
            self._free.release()
            raise
        self._under_way[done] = loop.time() + within_s
        try:
            await asyncio.wait_for(done.wait(), within_s)
        except TimeoutError:
            if not outcome.done():  # at the last moment
                raise Overdue(1) from None
        return outcome.result()

    async def settled(self) -> None:
        """Wait for the calls under way, each for as long as it may take.

        Also for those that nobody waits for any more: kubelet has hung up, but what was begun must
        be brought to its end, or a lock stays behind.
        """
        now_s = asyncio.get_running_loop().time
        for done, until_s in list(self._under_way.items()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), max(0.0, until_s - now_s()))


class Answers:
    """What is answered to kubelet, on whichever socket it asks. Lives as long as the agent."""

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        inventory: Inventory,
        vgpus: Callable[[GpuInventory], Sequence[Vgpu]],
        allocator: Allocator,
        preference: Preference | None,
        *,
        also: Published[int] | None = None,
        again: Published[int] | None = None,
        budget_s: float = ALLOCATE_BUDGET_S,
        on_overdue: Callable[[float], None] = lambda _took_s: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`vgpus` gives a value: two are equal when kubelet need not be told again.

        `also` counts changes of what the list depends on beside the inventory; with each of `again`
        kubelet is told all the same. Without a `preference` it is told not to ask for one.
        """
        self.inventory = inventory
        self._also = also
        self.again = again or Published(0)
        self._vgpus = vgpus
        self._allocator = allocator
        self._preference = preference
        self.budget_s = budget_s
        self._on_overdue = on_overdue
        self._clock = clock
        self._calls = BoundedCalls()
        self.healthy_told = 0  # how many vGPUs kubelet was told last that it can give

    async def settled(self) -> None:
        """Wait for what is being answered, at most for its budget."""
        await self._calls.settled()

    def options(self) -> dp.DevicePluginOptions:
        """The same at Register and at GetDevicePluginOptions: kubelets believe one or the other."""
        available = self._preference is not None
        return dp.DevicePluginOptions(get_preferred_allocation_available=available)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have `wake` called when the list may have changed; gives the undo."""
        stops = [self.inventory.listen(wake), self.again.listen(wake)]
        if self._also is not None:
            stops.append(self._also.listen(wake))

        def stop() -> None:
            for undo in stops:
                undo()

        return stop

    def vgpus(self) -> Sequence[Vgpu]:
        """The list as it is now."""
        return self._vgpus(self.inventory.now())

    async def allocate(self, request: dp.AllocateRequest) -> dp.AllocateResponse:
        """Answer one Allocate. Raises Refused."""
        started_s = self._clock()
        deadline_s = started_s + self.budget_s

        def work() -> dp.AllocateResponse:
            return dp.AllocateResponse(
                container_responses=[
                    encode_grant(
                        self._allocator.allocate(_ids(asked.device_ids), deadline_s=deadline_s)
                    )
                    for asked in request.container_requests
                ]
            )

        try:
            return await self._calls.run(work, self.budget_s + GRACE_S)
        except errors.AgentError as error:
            code = next(code for kind, code in _CODES if isinstance(error, kind))
            raise Refused(code, str(error)) from error
        except Overdue as overdue:
            text, took_s = self._late(overdue), self._clock() - started_s
            self._on_overdue(took_s)
            log.error("allocate overdue", error=text, took_ms=round(took_s * 1000, 1))
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, text) from overdue
        except Exception as error:  # whatever it is, its text is not for the pod's owner
            log.error("allocate crashed", trace=traceback.format_exc())
            raise Refused(grpc.StatusCode.INTERNAL, INTERNAL) from error

    def _late(self, overdue: Overdue) -> str:
        if overdue.working > 1:
            return (
                f"vgpu-agent has {overdue.working} earlier calls that do not come back (a hanging "
                "disk?), so it takes no more on this node: see its log on the node, and restart it"
            )
        return (
            f"vgpu-agent could not prepare the container within {self.budget_s:g} s and gave up so "
            "that other pods of this node can start; the API server or the node's disk is slow: "
            "create the pod again"
        )

    async def preferred(
        self, asked: dp.ContainerPreferredAllocationRequest
    ) -> dp.ContainerPreferredAllocationResponse:
        """Give a valid answer whatever happens: an error here would reject the pod."""
        available = _ids(asked.available_device_ids)
        must_include = _ids(asked.must_include_device_ids)
        size = max(0, asked.allocation_size)
        choice: tuple[str, ...] = ()
        try:
            if self._preference is not None:
                choice = await self._advised(self._preference, available, must_include, size)
        except (errors.AgentError, Overdue) as error:
            log.info("no preference", error=error)
        except Exception:  # noqa: BLE001 - see above
            log.error("preference crashed", trace=traceback.format_exc())
        if not _valid(choice, available, must_include, size):
            choice = tuple(preferred_ids(available, must_include, size, ()))
        return dp.ContainerPreferredAllocationResponse(device_ids=choice)

    async def _advised(
        self,
        preference: Preference,
        available: tuple[str, ...],
        must_include: tuple[str, ...],
        size: int,
    ) -> tuple[str, ...]:
        within_s = min(PREFER_BUDGET_S, self.budget_s)
        deadline_s = self._clock() + within_s
        return await self._calls.run(
            lambda: tuple(
                preference.preferred(available, must_include, size, deadline_s=deadline_s)
            ),
            within_s + GRACE_S,
        )


class DevicePlugin:
    """The five RPCs on one socket; it knows which streams are open there."""

    def __init__(self, answers: Answers, on_stream: Callable[[bool], None]) -> None:
        self._answers = answers
        self._on_stream = on_stream
        self._streams: set[asyncio.Event] = set()
        self._closing = False

    def end_streams(self) -> None:
        """Have every ListAndWatch return, and every new one return at once. Called on the loop."""
        self._closing = True
        for woken in self._streams:
            woken.set()

    # --- RPCs ------------------------------------------------------------------------------

    async def get_device_plugin_options(
        self, _request: dp.Empty, _context: rpc.AsyncContext
    ) -> dp.DevicePluginOptions:
        """What kubelet may ask of us."""
        return self._answers.options()

    async def list_and_watch(self, _request: dp.Empty, context: rpc.AsyncContext) -> None:
        """Send the list, and again after each change, until either side ends it."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        self._on_stream(True)
        self._streams.add(woken)

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        stop_listening = self._answers.listen(wake)
        try:
            await self._send_lists(woken, context)
        finally:  # also when the other side has gone: that cancels what is awaited
            stop_listening()
            self._streams.discard(woken)
            self._on_stream(False)

    async def _send_lists(self, woken: asyncio.Event, context: rpc.AsyncContext) -> None:
        sent: tuple[Sequence[Vgpu], int] | None = None
        while not self._closing:
            woken.clear()  # before looking: what changes after the look wakes us
            vgpus, again = self._answers.vgpus(), self._answers.again.now()
            if (vgpus, again) != sent:
                say = log.info if sent is None or vgpus != sent[0] else log.debug
                sent = vgpus, again
                message, healthy = await encoded_list(vgpus)
                say("list sent", vgpus=len(vgpus), healthy=healthy)
                await context.write(message)
                self._answers.healthy_told = healthy
            await woken.wait()

    async def get_preferred_allocation(
        self, request: dp.PreferredAllocationRequest, _context: rpc.AsyncContext
    ) -> dp.PreferredAllocationResponse:
        """Which vGPUs kubelet should choose, so that its books agree with the scheduler."""
        return dp.PreferredAllocationResponse(
            container_responses=[
                await self._answers.preferred(asked) for asked in request.container_requests
            ]
        )

    async def allocate(
        self, request: dp.AllocateRequest, context: rpc.AsyncContext
    ) -> dp.AllocateResponse:
        """What the container gets."""
        try:
            answer = await self._answers.allocate(request)
        except Refused as refused:
            await context.abort(refused.code, details(str(refused)))
        passed("allocate-granted")
        return answer

    async def pre_start_container(
        self, _request: dp.PreStartContainerRequest, _context: rpc.AsyncContext
    ) -> dp.PreStartContainerResponse:
        """Nothing to prepare; kubelet is not told to ask."""
        return dp.PreStartContainerResponse()


# --- protobuf <-> domain -------------------------------------------------------------------------


def _ids(device_ids: Sequence[str]) -> tuple[str, ...]:
    """Kubelet sends a set in random order."""
    return tuple(sorted(set(device_ids)))


def _valid(
    choice: Sequence[str], available: Sequence[str], must_include: Sequence[str], size: int
) -> bool:
    return (
        len(choice) == len(set(choice)) == size
        and set(choice) <= {*available, *must_include}
        and set(must_include) <= set(choice)
    )


def details(text: str) -> str:
    """The text as one printable line of bounded length: parts of it may be a tenant's."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MAX_DETAILS_CHARS else line[: MAX_DETAILS_CHARS - 3] + "..."
