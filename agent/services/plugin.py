"""Loop: keep one resource registered with kubelet, whatever kubelet or anybody else does.

`agent.domain.registration` decides; here its actions are carried out and the world is looked at:
each second, at once when inotify or a stream says that something happened, and when a deadline is
reached. Everything runs on this one thread but the notices of streams, which arrive in a queue.
"""

import queue
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from agent import logs
from agent.domain import registration as r
from agent.domain.gpu import GpuInventory, Sharing
from agent.domain.registration import Phase, Registration
from agent.domain.vgpu_ids import ListVerdict, judge_list
from agent.errors import KubeletUnavailable
from agent.ports import KubeletLink, SocketWatch
from agent.services.published import Inventory, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

POLL_S = 1.0
PULSE_S = 30.0  # the longest turn: close (3 s), serve with a self-dial (2 s), Register (12 s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginStatus:
    """How the registration of one resource stands."""

    resource: str
    phase: Phase = Phase.LOST
    reason: str = "not registered yet"  # empty while registered
    attempt: int = 0  # sockets served so far
    registrations: int = 0  # how often kubelet opened its stream
    failures: int = 0  # attempts and short-lived streams in a row

    @property
    def registered(self) -> bool:
        """Whether kubelet knows us now."""
        return self.phase is Phase.STREAMING


class Plugin:
    """Serves and registers one resource until the agent stops."""

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        resource: str,
        link: KubeletLink,
        watch: SocketWatch,
        inventory: Inventory,
        sharing: Sharing,
        *,
        judge: Callable[[GpuInventory], ListVerdict] | None = None,
        prepared: Callable[[float], bool] = lambda _timeout_s: True,
        count: Callable[[str, str], None] = lambda _resource, _outcome: None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        poll_s: float = POLL_S,
    ) -> None:
        """Wire it.

        judge: says what there is to say of the list; None: it is that of the vGPUs.
        prepared: waits, at most so many seconds, until what containers will need was made, or
            could not be: kubelet never asks a second time for a container that it was refused.
        """
        self.name = f"kubelet-{resource}"
        self.status = Published(PluginStatus(resource=resource))
        self._resource = resource
        self._link = link
        self._watch = watch
        self._inventory = inventory
        self._judge = judge or (lambda gpus: judge_list(gpus, sharing))
        self._prepared = prepared
        self._count = count
        self._clock = clock
        self._jitter = jitter
        self._poll_s = poll_s
        self._state = Registration()
        self._notices: queue.SimpleQueue[r.Event | None] = queue.SimpleQueue()
        self._judged: GpuInventory | None = None
        self._began_s = 0.0

    def expected(self) -> int:
        """How many devices of ours kubelet should have to give. From any thread."""
        return self._link.told() if self.status.now().registered else 0

    def renew(self) -> None:
        """Register anew: kubelet has not our devices, and has not ended our stream. Any thread."""
        self._notices.put(r.Forgotten())

    # --- the loop --------------------------------------------------------------------------

    def run(self, life: Lifeline) -> None:
        """Wait for the first look at the GPUs and what follows from it, then stay registered."""
        life.on_stop(self._stop)
        if not (
            self._holds(life, self._gpus_known, self._why_no_gpus)
            and self._holds(life, self._prepared, lambda: "what containers need is not made yet")
        ):
            return
        self._state = Registration(attempt=self._state.attempt, deadline_s=self._clock())
        self._publish()
        self._watch.start(self._wake)
        try:
            while not life.stopping:
                life.pulse(PULSE_S)
                self.turn_once()
        finally:
            self._watch.stop()
            self._link.close()
            self._state = replace(
                self._state, phase=Phase.LOST, deadline_s=0.0, streams=0, reason="stopped"
            )
            self._publish()

    def turn_once(self) -> None:
        """Look, act on what is due, then wait for a notice, the deadline or the next poll."""
        self._judge_list()
        self._look()
        if self._state.deadline_s is not None:
            self._happen(r.DeadlinePassed())
        due_s = self._state.deadline_s
        wait_s = self._poll_s if due_s is None else min(self._poll_s, due_s - self._clock())
        try:
            notice = self._notices.get(timeout=max(0.0, wait_s))
            while True:  # and all that has queued up behind it
                if notice is not None:
                    self._happen(notice)
                notice = self._notices.get_nowait()
        except queue.Empty:
            return

    def _holds(self, life: Lifeline, wait: Callable[[float], bool], why: Callable[[], str]) -> bool:
        """Wait for it, and tell why; False when the agent stops before."""
        while not life.stopping:
            life.pulse(PULSE_S)
            if wait(self._poll_s):
                return True
            self.status.update(lambda status: replace(status, reason=why()))
        return False

    def _why_no_gpus(self) -> str:
        error = self._inventory.now().driver_error
        return f"the driver has listed no GPUs yet: {error}" if error else "no GPUs are known yet"

    def _gpus_known(self, timeout_s: float) -> bool:
        """Nothing is announced before the driver was read once: no list is not an empty list."""
        return self._inventory.wait_until(lambda now: now.known, timeout_s)

    def _stop(self) -> None:
        self._link.interrupt()
        self._wake()

    def _wake(self) -> None:
        self._notices.put(None)

    # --- what happened ---------------------------------------------------------------------

    def _look(self) -> None:
        seen = self._watch.look()
        if seen != self._state.kubelet:
            self._happen(r.KubeletSocketSeen(seen))
        if self._state.phase in (Phase.REGISTERING, Phase.STREAMING) and not self._link.intact():
            self._happen(r.OwnSocketGone())

    def _happen(self, event: r.Event) -> None:
        """Take a step, and the steps that its actions bring about."""
        events = deque([event])
        while events:
            before = self._state
            self._state, actions = r.step(
                before, events.popleft(), now_s=self._clock(), jitter=self._jitter()
            )
            if self._state != before:
                self._tell(before)
            for action in actions:
                events.extend(self._carry_out(action))

    def _carry_out(self, action: r.Action) -> list[r.Event]:
        match action:
            case r.Close():
                self._link.close()
                return []
            case r.Serve(attempt):
                return self._serve(attempt)
            case r.Register():
                try:
                    self._link.register()
                except KubeletUnavailable as error:
                    return [r.RegisterFailed(str(error))]
                return [r.RegisterSucceeded()]

    def _serve(self, attempt: int) -> list[r.Event]:
        self._began_s = self._clock()

        def on_stream(opened: bool) -> None:
            self._notices.put(r.StreamOpened(attempt) if opened else r.StreamClosed(attempt))

        try:
            self._link.serve(on_stream)
        except KubeletUnavailable as error:
            return [r.ServeFailed(str(error))]
        # A kubelet that starts wipes the directory, then makes its socket. Seen in this order, our
        # socket is one that the kubelet with which we register has left in place.
        kubelet = r.KubeletSocketSeen(self._watch.look())
        if not self._link.intact():
            return [kubelet, r.ServeFailed("our socket was removed at once")]
        return [kubelet, r.SocketServed()]

    # --- what is told ----------------------------------------------------------------------

    def _tell(self, before: Registration) -> None:
        now = self._state
        registered = now.phase is Phase.STREAMING and before.phase is not Phase.STREAMING
        self._publish(registrations=1 if registered else 0)
        if registered:
            self._count(self._resource, "ok")
            for event in ("registration failed", "kubelet absent"):
                log.recovered(event, about=self._resource)
            log.info(
                "registered with kubelet",
                resource=self._resource,
                attempt=now.attempt,
                took_ms=round((self._clock() - self._began_s) * 1000, 1),
            )
        elif now.phase is Phase.LOST and before.phase is Phase.STREAMING:
            log.warning("registration lost", resource=self._resource, reason=now.reason)
        elif now.phase is Phase.LOST and before.phase is not Phase.LOST:
            self._count(self._resource, "failed")
            log.failing("registration failed", about=self._resource, error=now.reason)
        elif now.kubelet is None and now.reason != before.reason:
            log.failing("kubelet absent", about=self._resource, error=self._watch.absence())

    def _publish(self, registrations: int = 0) -> None:
        now = self._state
        absence = self._watch.absence() if now.reason == r.ABSENT else ""
        self.status.update(
            lambda status: replace(
                status,
                phase=now.phase,
                reason=f"{now.reason}: {absence}" if absence else now.reason,
                attempt=now.attempt,
                failures=now.failures,
                registrations=status.registrations + registrations,
            )
        )

    def _judge_list(self) -> None:
        """Say it when the list is long, or is cut to what kubelet can bear."""
        inventory = self._inventory.now()
        if inventory is self._judged:
            return
        self._judged = inventory
        verdict = self._judge(inventory)
        if verdict.refusal:
            log.failing("list too long", about=self._resource, error=verdict.refusal)
        elif verdict.warning:
            log.failing("list long", about=self._resource, error=verdict.warning)
