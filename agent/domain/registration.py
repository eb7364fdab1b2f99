"""The registration of one resource with kubelet, as a pure state machine.

    LOST --deadline--> SERVING --socket served--> REGISTERING --stream opened--> STREAMING
      ^                   |                            |                            |
      '--- serve failed --+-- register failed, no stream in time, kubelet or own ---'
                              socket replaced, last stream closed

The ListAndWatch stream is the only reliable sign that kubelet knows us: `Register` may answer
before kubelet has even dialled (1.20), and kubelet never re-opens a stream that ended. So a stream
makes us STREAMING whatever became of the call, and its end makes us LOST at once, for ever again.
A lost registration closes its socket first and then starts over with a fresh one: kubelets 1.25 to
1.36 take the end of an older stream for the end of the newer one (kubernetes issue 127803).
"""

from dataclasses import dataclass, replace
from enum import Enum

REGISTER_TIMEOUT_S = 12.0  # kubelet dials us inside Register, for up to 10 s
STREAM_WITHIN_S = 5.0  # after Register answered
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 5.0
STABLE_AFTER_S = 10.0  # a stream that lived this long was no flapping
ABSENT = "kubelet is absent"
SETTLE_S = 0.05  # after we ended a stream ourselves: let kubelet notice before we register anew


class Phase(Enum):
    """Where the registration stands."""

    LOST = "lost"
    SERVING = "serving"
    REGISTERING = "registering"
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class SocketIdentity:
    """Which file a path leads to; inode numbers are reused, so the time of change belongs to it."""

    device: int
    inode: int
    changed_ns: int


# --- events: what happened ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SocketServed:
    """Our socket answers."""


@dataclass(frozen=True, slots=True)
class ServeFailed:
    """Our socket could not be served."""

    error: str


@dataclass(frozen=True, slots=True)
class RegisterSucceeded:
    """Kubelet took the registration."""


@dataclass(frozen=True, slots=True)
class RegisterFailed:
    """Kubelet did not take it, or did not answer."""

    error: str


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """Kubelet called ListAndWatch on the socket of this attempt."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """A ListAndWatch call on the socket of this attempt ended."""

    attempt: int


@dataclass(frozen=True, slots=True)
class KubeletSocketSeen:
    """What kubelet.sock is now; None: there is none."""

    identity: SocketIdentity | None


@dataclass(frozen=True, slots=True)
class OwnSocketGone:
    """Our socket file is no longer where kubelet would look for it."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Kubelet has our devices no more, whatever our stream looks like."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """Time went by; only has an effect when `deadline_s` is reached."""


Event = (
    SocketServed
    | ServeFailed
    | RegisterSucceeded
    | RegisterFailed
    | StreamOpened
    | StreamClosed
    | KubeletSocketSeen
    | OwnSocketGone
    | Forgotten
    | DeadlinePassed
)


# --- actions: what to do now -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve on a socket of a fresh name; answer with SocketServed or ServeFailed."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Register:
    """Call Register; answer with RegisterSucceeded or RegisterFailed."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the streams of our socket and the socket, and wait until they have ended."""

    attempt: int


Action = Serve | Register | Close


# --- state -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """All that is remembered. `deadline_s` is None only while STREAMING.

    attempt: number of the socket in use, counted up by every Serve. failures: attempts and
    short-lived streams in a row. streams: ListAndWatch calls open on our socket.
    """

    phase: Phase = Phase.LOST
    deadline_s: float | None = 0.0
    attempt: int = 0
    failures: int = 0
    streams: int = 0
    streaming_since_s: float = 0.0
    kubelet: SocketIdentity | None = None
    reason: str = "not registered yet"

    @property
    def has_socket(self) -> bool:
        """Whether a socket of ours is live, or is being made."""
        return self.phase is not Phase.LOST


def retry_delay_s(failures: int, jitter: float) -> float:
    """Pause after so many failures in a row: none, then 0.1 s doubling to 5 s, less up to a half.

    jitter: in [0, 1), so that two agents on one node fall out of step.
    """
    if failures <= 0:
        return 0.0
    ceiling = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 20))
    return ceiling * (1.0 - 0.5 * jitter)


def step(
    state: Registration, event: Event, *, now_s: float, jitter: float
) -> tuple[Registration, tuple[Action, ...]]:
    """The next state and what to do, in this order. Total: any event in any state."""
    match event:
        case DeadlinePassed():
            return _deadline(state, now_s, jitter)
        case KubeletSocketSeen(identity):
            return _kubelet_seen(state, identity, now_s)
        case StreamOpened(attempt) | StreamClosed(attempt):
            if attempt != state.attempt or not state.has_socket:
                return state, ()  # of an earlier socket
            if isinstance(event, StreamOpened):
                return _stream_opened(state, now_s), ()
            return _stream_closed(state, now_s, jitter)
    return _own_doing(state, event, now_s, jitter)


def _own_doing(
    state: Registration,
    event: SocketServed
    | ServeFailed
    | RegisterSucceeded
    | RegisterFailed
    | OwnSocketGone
    | Forgotten,
    now_s: float,
    jitter: float,
) -> tuple[Registration, tuple[Action, ...]]:
    """How our actions ended, and what became of our socket."""
    match state.phase, event:
        case Phase.SERVING, SocketServed():
            due_s = now_s + REGISTER_TIMEOUT_S + STREAM_WITHIN_S
            return replace(state, phase=Phase.REGISTERING, deadline_s=due_s), (Register(),)
        case Phase.REGISTERING, RegisterSucceeded():
            return replace(state, deadline_s=now_s + STREAM_WITHIN_S), ()
        case (Phase.SERVING, ServeFailed(error)) | (Phase.REGISTERING, RegisterFailed(error)):
            return _failed(state, error, now_s, jitter)
        case Phase.REGISTERING | Phase.STREAMING, OwnSocketGone():
            return _unsettled(state, "our socket file disappeared", now_s, jitter)
        case Phase.STREAMING, Forgotten():
            return _unsettled(state, "kubelet has our devices no more", now_s, jitter)
    return state, ()  # too late to matter: the stream has told already


def _deadline(
    state: Registration, now_s: float, jitter: float
) -> tuple[Registration, tuple[Action, ...]]:
    if state.deadline_s is None or now_s < state.deadline_s:
        return state, ()
    if state.phase is Phase.LOST:
        if state.kubelet is None:  # nobody to register with: look again when it is there
            return replace(state, deadline_s=now_s + LONGEST_RETRY_S, reason=ABSENT), ()
        attempt = state.attempt + 1
        due_s = now_s + LONGEST_RETRY_S
        served = replace(state, phase=Phase.SERVING, attempt=attempt, streams=0, deadline_s=due_s)
        return served, (Serve(attempt),)
    if state.phase is Phase.SERVING:
        return _failed(state, "our socket did not come up", now_s, jitter)
    return _failed(
        state,
        f"kubelet did not open ListAndWatch within {STREAM_WITHIN_S:.0f} s of the registration",
        now_s,
        jitter,
    )


def _stream_opened(state: Registration, now_s: float) -> Registration:
    since_s = state.streaming_since_s if state.phase is Phase.STREAMING else now_s
    return replace(
        state,
        phase=Phase.STREAMING,
        deadline_s=None,
        streams=state.streams + 1,
        streaming_since_s=since_s,
        reason="",
    )


def _stream_closed(
    state: Registration, now_s: float, jitter: float
) -> tuple[Registration, tuple[Action, ...]]:
    streams = max(0, state.streams - 1)
    if state.phase is not Phase.STREAMING or streams:
        return replace(state, streams=streams), ()
    return _unsettled(replace(state, streams=0), "kubelet closed ListAndWatch", now_s, jitter)


def _kubelet_seen(
    state: Registration, identity: SocketIdentity | None, now_s: float
) -> tuple[Registration, tuple[Action, ...]]:
    if identity == state.kubelet:
        return state, ()
    seen = replace(state, kubelet=identity)
    if identity is None or state.phase is Phase.SERVING:
        return seen, ()  # its absence is no news: the stream tells; and Register is yet to come
    if state.phase is Phase.LOST:
        return replace(seen, deadline_s=now_s), ()
    return _lost(seen, "kubelet.sock was replaced", due_s=now_s, failures=state.failures)


def _unsettled(
    state: Registration, reason: str, now_s: float, jitter: float
) -> tuple[Registration, tuple[Action, ...]]:
    """A registration that held ended: start over at once, unless it keeps ending young."""
    lived_s = now_s - state.streaming_since_s if state.phase is Phase.STREAMING else 0.0
    failures = 0 if lived_s >= STABLE_AFTER_S else state.failures
    due_s = now_s + retry_delay_s(failures, jitter)
    return _lost(state, reason, due_s=due_s, failures=failures + 1)


def _failed(
    state: Registration, reason: str, now_s: float, jitter: float
) -> tuple[Registration, tuple[Action, ...]]:
    """An attempt came to nothing: the next one has to wait."""
    failures = state.failures + 1
    due_s = now_s + retry_delay_s(failures, jitter)
    return _lost(state, reason, due_s=due_s, failures=failures)


def _lost(
    state: Registration, reason: str, *, due_s: float, failures: int
) -> tuple[Registration, tuple[Action, ...]]:
    settled_s = due_s + SETTLE_S if state.streams else due_s
    lost = replace(
        state,
        phase=Phase.LOST,
        deadline_s=settled_s,
        failures=failures,
        streams=0,
        reason=reason,
    )
    return lost, (Close(state.attempt),)
