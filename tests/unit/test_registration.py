"""The registration state machine: every event in every phase, and what holds for any history."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.domain import registration as r
from agent.domain.registration import Phase, Registration, SocketIdentity, retry_delay_s, step

NOW_S = 1000.0
OLD, NEW = SocketIdentity(1, 1, 1), SocketIdentity(1, 2, 2)

LOST = Registration(deadline_s=NOW_S, attempt=3, kubelet=OLD)
SERVING = replace(LOST, phase=Phase.SERVING, deadline_s=NOW_S + 5)
REGISTERING = replace(LOST, phase=Phase.REGISTERING, deadline_s=NOW_S + 17)
STREAMING = replace(
    LOST,
    phase=Phase.STREAMING,
    deadline_s=None,
    streams=1,
    streaming_since_s=NOW_S - 60,
    reason="",
)
CLOSE, SERVE, REGISTER = r.Close(3), r.Serve(4), r.Register()
SETTLED_S = NOW_S + r.SETTLE_S


@pytest.mark.parametrize(
    ("state", "event", "phase", "deadline_s", "actions"),
    [
        # LOST
        pytest.param(LOST, r.DeadlinePassed(), Phase.SERVING, NOW_S + 5, [SERVE], id="lost: retry"),
        pytest.param(
            replace(LOST, deadline_s=NOW_S + 1),
            r.DeadlinePassed(),
            Phase.LOST,
            NOW_S + 1,
            [],
            id="lost: not yet",
        ),
        pytest.param(
            replace(LOST, kubelet=None),
            r.DeadlinePassed(),
            Phase.LOST,
            NOW_S + 5,
            [],
            id="lost: nobody to register with",
        ),
        pytest.param(
            replace(LOST, deadline_s=NOW_S + 4),
            r.KubeletSocketSeen(NEW),
            Phase.LOST,
            NOW_S,
            [],
            id="lost: kubelet is back, do not wait",
        ),
        pytest.param(
            LOST, r.KubeletSocketSeen(OLD), Phase.LOST, NOW_S, [], id="lost: same kubelet.sock"
        ),
        pytest.param(LOST, r.SocketServed(), Phase.LOST, NOW_S, [], id="lost: late serve"),
        pytest.param(LOST, r.ServeFailed("x"), Phase.LOST, NOW_S, [], id="lost: late failure"),
        pytest.param(LOST, r.RegisterSucceeded(), Phase.LOST, NOW_S, [], id="lost: late register"),
        pytest.param(LOST, r.RegisterFailed("x"), Phase.LOST, NOW_S, [], id="lost: late refusal"),
        pytest.param(LOST, r.StreamOpened(3), Phase.LOST, NOW_S, [], id="lost: late stream"),
        pytest.param(LOST, r.StreamClosed(3), Phase.LOST, NOW_S, [], id="lost: late end"),
        pytest.param(LOST, r.OwnSocketGone(), Phase.LOST, NOW_S, [], id="lost: no socket to miss"),
        pytest.param(LOST, r.Forgotten(), Phase.LOST, NOW_S, [], id="lost: nothing to forget"),
        # SERVING
        pytest.param(
            SERVING, r.SocketServed(), Phase.REGISTERING, NOW_S + 17, [REGISTER], id="serving: up"
        ),
        pytest.param(
            SERVING, r.ServeFailed("x"), Phase.LOST, NOW_S + 0.1, [CLOSE], id="serving: failed"
        ),
        pytest.param(
            replace(SERVING, deadline_s=NOW_S),
            r.DeadlinePassed(),
            Phase.LOST,
            NOW_S + 0.1,
            [CLOSE],
            id="serving: never came up",
        ),
        pytest.param(
            SERVING,
            r.KubeletSocketSeen(NEW),
            Phase.SERVING,
            NOW_S + 5,
            [],
            id="serving: a new kubelet is the one we shall register with",
        ),
        pytest.param(
            SERVING, r.StreamOpened(3), Phase.STREAMING, None, [], id="serving: stream already"
        ),
        pytest.param(SERVING, r.StreamClosed(3), Phase.SERVING, NOW_S + 5, [], id="serving: end"),
        pytest.param(
            SERVING,
            r.RegisterSucceeded(),
            Phase.SERVING,
            NOW_S + 5,
            [],
            id="serving: late register",
        ),
        pytest.param(
            SERVING, r.RegisterFailed("x"), Phase.SERVING, NOW_S + 5, [], id="serving: late refusal"
        ),
        pytest.param(
            SERVING, r.OwnSocketGone(), Phase.SERVING, NOW_S + 5, [], id="serving: not there yet"
        ),
        pytest.param(SERVING, r.Forgotten(), Phase.SERVING, NOW_S + 5, [], id="serving: not yet"),
        # REGISTERING
        pytest.param(
            REGISTERING,
            r.RegisterSucceeded(),
            Phase.REGISTERING,
            NOW_S + 5,
            [],
            id="registering: accepted proves nothing, a stream within 5 s does",
        ),
        pytest.param(
            REGISTERING,
            r.RegisterFailed("refused"),
            Phase.LOST,
            NOW_S + 0.1,
            [CLOSE],
            id="registering: refused",
        ),
        pytest.param(
            REGISTERING, r.StreamOpened(3), Phase.STREAMING, None, [], id="registering: stream"
        ),
        pytest.param(
            REGISTERING,
            r.StreamOpened(2),
            Phase.REGISTERING,
            NOW_S + 17,
            [],
            id="registering: stream of an earlier socket",
        ),
        pytest.param(
            replace(REGISTERING, deadline_s=NOW_S),
            r.DeadlinePassed(),
            Phase.LOST,
            NOW_S + 0.1,
            [CLOSE],
            id="registering: no stream in time",
        ),
        pytest.param(
            REGISTERING,
            r.KubeletSocketSeen(NEW),
            Phase.LOST,
            NOW_S,
            [CLOSE],
            id="registering: kubelet restarted meanwhile",
        ),
        pytest.param(
            REGISTERING,
            r.KubeletSocketSeen(None),
            Phase.REGISTERING,
            NOW_S + 17,
            [],
            id="registering: kubelet.sock is gone",
        ),
        pytest.param(
            REGISTERING,
            r.OwnSocketGone(),
            Phase.LOST,
            NOW_S,
            [CLOSE],
            id="registering: socket gone",
        ),
        pytest.param(
            REGISTERING,
            r.Forgotten(),
            Phase.REGISTERING,
            NOW_S + 17,
            [],
            id="registering: nothing to forget",
        ),
        pytest.param(
            REGISTERING, r.SocketServed(), Phase.REGISTERING, NOW_S + 17, [], id="registering: echo"
        ),
        pytest.param(
            REGISTERING,
            r.ServeFailed("x"),
            Phase.REGISTERING,
            NOW_S + 17,
            [],
            id="registering: odd",
        ),
        pytest.param(
            REGISTERING,
            r.StreamClosed(3),
            Phase.REGISTERING,
            NOW_S + 17,
            [],
            id="registering: an end without a beginning",
        ),
        # STREAMING
        pytest.param(
            STREAMING,
            r.StreamClosed(3),
            Phase.LOST,
            SETTLED_S - r.SETTLE_S,
            [CLOSE],
            id="streaming: closed, at once again",
        ),
        pytest.param(
            STREAMING, r.StreamClosed(2), Phase.STREAMING, None, [], id="streaming: an old one ends"
        ),
        pytest.param(
            replace(STREAMING, streams=2),
            r.StreamClosed(3),
            Phase.STREAMING,
            None,
            [],
            id="streaming: one of two ends",
        ),
        pytest.param(
            STREAMING, r.StreamOpened(3), Phase.STREAMING, None, [], id="streaming: second"
        ),
        pytest.param(
            STREAMING,
            r.KubeletSocketSeen(NEW),
            Phase.LOST,
            SETTLED_S,
            [CLOSE],
            id="streaming: kubelet.sock replaced",
        ),
        pytest.param(
            STREAMING,
            r.KubeletSocketSeen(None),
            Phase.STREAMING,
            None,
            [],
            id="streaming: kubelet.sock removed, the stream tells",
        ),
        pytest.param(
            STREAMING,
            r.OwnSocketGone(),
            Phase.LOST,
            SETTLED_S,
            [CLOSE],
            id="streaming: our socket removed",
        ),
        pytest.param(
            STREAMING, r.Forgotten(), Phase.LOST, SETTLED_S, [CLOSE], id="streaming: forgotten"
        ),
        pytest.param(
            STREAMING,
            r.RegisterFailed("x"),
            Phase.STREAMING,
            None,
            [],
            id="streaming: late refusal",
        ),
        pytest.param(
            STREAMING, r.RegisterSucceeded(), Phase.STREAMING, None, [], id="streaming: late answer"
        ),
        pytest.param(STREAMING, r.SocketServed(), Phase.STREAMING, None, [], id="streaming: echo"),
        pytest.param(STREAMING, r.ServeFailed("x"), Phase.STREAMING, None, [], id="streaming: odd"),
        pytest.param(
            STREAMING,
            r.DeadlinePassed(),
            Phase.STREAMING,
            None,
            [],
            id="streaming: time does not end it",
        ),
    ],
)
def test_every_event_in_every_phase(
    state: Registration,
    event: r.Event,
    phase: Phase,
    deadline_s: float | None,
    actions: list[r.Action],
) -> None:
    after, todo = step(state, event, now_s=NOW_S, jitter=0.0)

    assert (after.phase, list(todo)) == (phase, actions)
    assert after.deadline_s == (pytest.approx(deadline_s) if deadline_s is not None else None)


def test_the_table_above_is_complete() -> None:
    [mark] = [m for m in test_every_event_in_every_phase.pytestmark if m.name == "parametrize"]
    covered = {(row.values[0].phase, type(row.values[1])) for row in mark.args[1]}
    assert covered == {(phase, event) for phase in Phase for event in r.Event.__args__}


# --- backoff -----------------------------------------------------------------------------------


def test_retries_start_at_a_tenth_of_a_second_and_never_wait_longer_than_five() -> None:
    delays = [retry_delay_s(n, 0.0) for n in range(9)]
    assert delays == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5])
    assert retry_delay_s(10**6, 0.0) == 5.0


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_jitter_takes_at_most_half_away(failures: int, jitter: float) -> None:
    assert 0.5 * retry_delay_s(failures, 0.0) <= retry_delay_s(failures, jitter) <= 5.0


def test_a_stream_that_keeps_dying_young_is_damped_and_a_stable_one_forgives() -> None:
    state, waited_s = STREAMING, []
    now_s = NOW_S
    for _ in range(6):
        state, _ = step(state, r.StreamClosed(state.attempt), now_s=now_s, jitter=0.0)
        waited_s.append((state.deadline_s or 0.0) - now_s)
        state = replace(
            STREAMING, attempt=state.attempt, failures=state.failures, streaming_since_s=now_s
        )
        now_s += 1.0
    assert waited_s == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.8, 1.6])

    calm, _ = step(state, r.StreamClosed(state.attempt), now_s=now_s + r.STABLE_AFTER_S, jitter=0.0)
    assert calm.failures == 1


# --- any history -------------------------------------------------------------------------------


class AnyHistory(RuleBasedStateMachine):
    """Carries the actions out and throws events at the machine in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Registration()
        self.now_s = 0.0
        self.live: set[int] = set()
        self.registered_with: list[int] = []

    def happen(self, event: r.Event, jitter: float = 0.5) -> None:
        self.state, actions = step(self.state, event, now_s=self.now_s, jitter=jitter)
        for action in actions:
            if isinstance(action, r.Close):
                self.live.discard(action.attempt)
            elif isinstance(action, r.Serve):
                assert not self.live, "a second socket while one is live"
                assert action.attempt not in self.registered_with, "a name used twice"
                self.live.add(action.attempt)
            else:
                assert self.live == {self.state.attempt}, "register only what is served"
                self.registered_with.append(self.state.attempt)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.2, 1.0, 6.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.happen(r.DeadlinePassed())

    @rule(
        event=st.sampled_from(
            [
                r.SocketServed(),
                r.ServeFailed("x"),
                r.RegisterSucceeded(),
                r.RegisterFailed("x"),
                r.OwnSocketGone(),
                r.Forgotten(),
                r.KubeletSocketSeen(None),
                r.KubeletSocketSeen(OLD),
                r.KubeletSocketSeen(NEW),
            ]
        ),
        jitter=st.floats(0, 1, exclude_max=True),
    )
    def something_happens(self, event: r.Event, jitter: float) -> None:
        self.happen(event, jitter)

    @rule(age=st.integers(0, 2), opened=st.booleans())
    def a_stream_comes_or_goes(self, age: int, opened: bool) -> None:
        attempt = self.state.attempt - age
        self.happen(r.StreamOpened(attempt) if opened else r.StreamClosed(attempt))

    @precondition(lambda self: self.state.phase is not Phase.STREAMING)
    @rule()
    def good_luck_from_here_leads_to_a_stream(self) -> None:
        self.happen(r.KubeletSocketSeen(NEW))
        for _ in range(4):
            if self.state.phase is Phase.STREAMING:
                break
            if self.state.phase is Phase.LOST:
                assert self.state.deadline_s is not None
                self.now_s = max(self.now_s, self.state.deadline_s)
                self.happen(r.DeadlinePassed())
            elif self.state.phase is Phase.SERVING:
                self.happen(r.SocketServed())
            else:
                self.happen(r.RegisterSucceeded())
                self.happen(r.StreamOpened(self.state.attempt))
        assert self.state.phase is Phase.STREAMING

    @invariant()
    def at_most_one_socket_and_it_is_the_current_one(self) -> None:
        assert self.live == ({self.state.attempt} if self.state.has_socket else set())

    @invariant()
    def everything_but_a_stream_has_a_deadline(self) -> None:
        if self.state.phase is Phase.STREAMING:
            assert self.state.deadline_s is None
            assert self.state.streams >= 1
        else:
            assert self.state.deadline_s is not None
        if self.state.phase is Phase.LOST:
            assert self.state.deadline_s <= self.now_s + r.LONGEST_RETRY_S + r.SETTLE_S

    @invariant()
    def what_is_lost_has_a_reason(self) -> None:
        assert bool(self.state.reason) == (self.state.phase is not Phase.STREAMING)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
