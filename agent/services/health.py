"""Loop: watch the driver, and keep the inventory true.

One thread makes every NVML call, because any of them may hang; a second one (`Patience`) notices
that it hangs and marks all GPUs unhealthy, since silence is not health. GPUs are listed anew every
`probe_every_s`: new ones are added, vanished ones stay, unhealthy, so that kubelet keeps their
capacity and the pods on them keep their device.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from agent import logs
from agent.domain.gpu import Gpu, GpuEvent, GpuInventory, MigDevice
from agent.domain.health import GpuHealth, fell_ill, probed, verdict
from agent.domain.topology import GpuPair, asymmetric_pairs
from agent.errors import NvmlAbsent, NvmlError, NvmlStale
from agent.ports import ClusterEvent, Nvml
from agent.services.published import Inventory, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

HANG_AFTER_S = 10.0  # a call that takes longer is a hanging driver
LOOK_AGAIN_S = 1.0  # the most by which a hang is noticed later than that
HANG_PULSE_S = 600.0  # how long a hang may last before the process itself counts as stuck
ABSENT_RETRY_S = 5.0
SHUT_OUT_S = 120.0  # for so long a driver that we had may be failing, as while it is reset
WAIT_S = 1.0  # for an event; a stop waits for one that has begun, and an event ends it at once
HUNG = f"the driver has not answered for {HANG_AFTER_S:.0f} s"
VANISHED = "the driver no longer lists this GPU (it fell off the bus or was removed)"


class Health:
    """Loop: open NVML, wait for events, probe, publish."""

    name = "gpus"

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        nvml: Nvml,
        inventory: Inventory,
        *,
        probe_every_s: float = 10.0,
        recovery_probes: int = 3,
        ignored_xids: frozenset[int] = frozenset(),
        events_watched: bool = True,
        post: Callable[[ClusterEvent], None] = lambda _: None,
        found: Callable[[str], None] = lambda _uuid: None,
        count: Callable[[str, str], None] = lambda _uuid, _to: None,
        count_xid: Callable[[str, int], None] = lambda _uuid, _xid: None,
        leave: Callable[[str], None] = lambda _why: None,
        objection: Callable[[GpuInventory], str] = lambda _gpus: "",
        refuse: Callable[[str], None] = lambda _why: None,
        leave_when_absent: bool = False,
        devices_taken: Callable[[], bool] = lambda: False,
        topology: Published[tuple[GpuPair, ...]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self._inventory = inventory
        self._probe_every_s = probe_every_s
        self._recovery_probes = recovery_probes
        self._ignored_xids = ignored_xids
        self._events_watched = events_watched
        self._post = post
        self._found = found
        self._count = count
        self._count_xid = count_xid
        self._leave = leave
        self._objection = objection  # why the settings do not fit the GPUs that were found
        self._refuse = refuse
        self._accepted = False  # the settings fit the GPUs that were found first
        self._leave_when_absent = leave_when_absent
        self._devices_taken = devices_taken  # from us alone: a new process would have them
        self._topology = topology  # None: nobody wants to know
        self._joined = frozenset[str]()  # the GPUs whose topology was read
        self._asymmetric: set[tuple[str, str]] = set()  # pairs that were told of
        self._clock = clock
        self._open = False
        self._shut_out_since_s: float | None = None  # NVML does not start any more
        self._gpus: dict[str, Gpu] = {}
        self._health: dict[str, GpuHealth] = {}
        self._parts: dict[tuple[str, str], GpuHealth] = {}  # ill MIG devices, by GPU and own uuid
        self._withheld: Mapping[str, str] = {}  # why a GPU is not given although it is well
        self._next_sweep_s = 0.0
        self._calling_since_s: float | None = None
        self._hung = False  # set by Patience's thread, taken back by ours
        # Guards what is known of the GPUs; never held during a call of the driver.
        self._mutex = threading.Lock()

    def run(self, life: Lifeline) -> None:
        try:
            while not life.stopping:
                life.pulse(HANG_PULSE_S)
                if not self.step_once(stopping=lambda: life.stopping):
                    life.pause(ABSENT_RETRY_S)
        finally:
            self._nvml.close()
            self._open = False

    def step_once(
        self, wait_s: float = WAIT_S, *, stopping: Callable[[], bool] = lambda: False
    ) -> bool:
        """One turn: open if need be, sweep if due, wait for one event. False: no driver, pause.

        Each call of a driver on a busy node takes its time, and nothing but our own turn can end
        it; so once we are `stopping` no other one begins.
        """
        try:
            if not self._open:
                self._call_begins()
                self._nvml.open()
                self._open, self._shut_out_since_s = True, None
                self._next_sweep_s = 0.0
            if self._clock() >= self._next_sweep_s:
                self._sweep(stopping)
                self._next_sweep_s = self._clock() + self._probe_every_s
            if stopping():
                return True
            self._call_begins(may_wait_s=wait_s)
            event = self._nvml.wait_event(wait_s, self._call_begins)
        except NvmlError as error:
            self._driver_failed(error)
            return False
        finally:
            self._calling_since_s = None
        if self._hung:
            self._answers_again()
        if event is not None:
            self._happened(event)
        return True

    def _call_begins(self, *, may_wait_s: float = 0.0) -> None:
        """Or another one: many slow ones in a row are a slow driver, and no hanging one."""
        self._calling_since_s = self._clock() + may_wait_s

    def hanging_s(self) -> float:
        """How long the current NVML call has been overdue; 0 when none is."""
        since_s = self._calling_since_s
        return 0.0 if since_s is None else max(0.0, self._clock() - since_s)

    def withhold(self, reasons: Mapping[str, str]) -> None:
        """Give no vGPUs of these GPUs (uuid -> why), however well they are; of others again."""
        with self._mutex:
            if reasons == self._withheld:
                return
            for uuid in reasons.keys() - self._withheld.keys():
                log.error("gpu withheld", gpu=uuid, reason=reasons[uuid])
            for uuid in self._withheld.keys() - reasons.keys():
                log.info("gpu given again", gpu=uuid)
            self._withheld = dict(reasons)
            if self._gpus and not self._hung:
                self._publish(self._inventory.now().driver_error)

    def driver_hangs(self) -> None:
        """Called by `Patience`: nobody answers, so nothing is known to be healthy."""
        with self._mutex:
            if self._hung:
                return
            self._hung = True
            log.error("driver hangs", waited_s=HANG_AFTER_S)
            self._post(
                ClusterEvent(
                    reason="GpuDriverHangs",
                    message=f"NVML call without answer for {HANG_AFTER_S:.0f} s; all GPUs are "
                    "unhealthy until it answers. Look at dmesg for NVRM messages.",
                )
            )
            self._all_fell_ill(HUNG)
            self._publish(driver_error=HUNG)

    # --- what the driver said --------------------------------------------------------------

    def _sweep(self, stopping: Callable[[], bool]) -> None:
        """Ask the driver for all there is to know. Cut short by a stop, it tells nothing."""
        if stopping():
            return
        self._call_begins()
        listed = {gpu.uuid: gpu for gpu in self._nvml.gpus(self._call_begins)}
        if self._topology is not None and listed.keys() != self._joined and not stopping():
            self._read_topology(self._topology, frozenset(listed))
        failures = {}
        for uuid in listed:
            if stopping():
                return
            failures[uuid] = self._probe(uuid)
        with self._mutex:
            now_s = self._clock()
            for uuid, gpu in listed.items():
                if uuid not in self._gpus:
                    self._found(uuid)
                    log.info(
                        "gpu found", gpu=uuid, index=gpu.index, model=gpu.name,
                        memory_mib=gpu.memory_mib, reserved_mib=gpu.reserved_mib,
                        numa_node=gpu.numa_node, mig=gpu.mig_enabled,
                    )  # fmt: skip
                self._gpus[uuid] = gpu
                health = self._health.get(uuid, GpuHealth())
                self._judge(uuid, probed(
                    health, failures[uuid], recovery_probes=self._recovery_probes, now_s=now_s
                ))  # fmt: skip
            for uuid in self._gpus.keys() - listed.keys():
                self._judge(uuid, fell_ill(self._health[uuid], VANISHED, now_s=now_s))
            self._probe_parts(failures, now_s)
            self._publish()

    def _probe_parts(self, failures: Mapping[str, str], now_s: float) -> None:
        """A part recovers by its GPU's clean probes, or by being made anew."""
        there = {
            (uuid, one.uuid): failures.get(uuid, VANISHED)
            for uuid, gpu in self._gpus.items()
            for one in gpu.mig_devices
        }
        probes = {
            key: probed(health, there[key], recovery_probes=self._recovery_probes, now_s=now_s)
            for key, health in self._parts.items()
            if key in there
        }
        self._parts = {key: health for key, health in probes.items() if not health.healthy}

    def _read_topology(
        self, topology: Published[tuple[GpuPair, ...]], uuids: frozenset[str]
    ) -> None:
        """Once for each set of GPUs: links do not change while a GPU is there.

        No GPU is ill for want of it: some virtual machines have none to tell. The next sweep asks
        again.
        """
        try:
            self._call_begins()
            pairs = self._nvml.pairs(self._call_begins)
        except NvmlError as error:
            log.failing("topology not read", error=error)
            return
        log.recovered("topology not read")
        self._joined = uuids
        topology.publish(pairs)
        for pair in asymmetric_pairs(pairs):
            if (pair.first, pair.second) not in self._asymmetric:
                self._asymmetric.add((pair.first, pair.second))
                self._tell_asymmetric(pair)

    def _tell_asymmetric(self, pair: GpuPair) -> None:
        log.warning("asymmetric nvlink", first=pair.first, second=pair.second)
        self._post(
            ClusterEvent(
                reason="AsymmetricGPUP2PLink",
                message=f"GPUs {pair.first} and {pair.second} disagree on the number of their "
                f"NVLinks ({pair.links} and {pair.links_back}); the pair is scored 0",
            )
        )

    def _probe(self, uuid: str) -> str:
        self._call_begins()
        try:
            self._nvml.probe(uuid)
        except NvmlError as error:
            return str(error)
        return ""

    def _happened(self, event: GpuEvent) -> None:
        if event.kind == "xid":
            self._count_xid(event.uuid, event.xid)
            log.info("xid reported", gpu=event.uuid, xid=event.xid)
        reason = verdict(event, self._ignored_xids) if self._events_watched else ""
        if not reason:
            return
        with self._mutex:
            if self._part_fell_ill(event, reason):
                self._publish()
                return
            # An event that names no GPU may be about any of them.
            for uuid in [event.uuid] if event.uuid else list(self._gpus):
                if uuid in self._gpus:
                    self._judge(uuid, fell_ill(self._health[uuid], reason, now_s=self._clock()))
            self._publish()

    def _part_fell_ill(self, event: GpuEvent, reason: str) -> bool:
        """Whether it concerns a MIG device alone: the hardware keeps the others from it."""
        gpu = self._gpus.get(event.uuid)
        ill = [one for one in gpu.mig_devices if event.concerns(one)] if gpu is not None else []
        for one in ill:
            health = self._parts.get((event.uuid, one.uuid), GpuHealth())
            self._parts[event.uuid, one.uuid] = fell_ill(health, reason, now_s=self._clock())
            log.error("mig device unhealthy", gpu=event.uuid, mig=one.uuid, reason=reason)
        return bool(ill)

    def _judged_parts(self, uuid: str, gpu: Gpu) -> tuple[MigDevice, ...]:
        return tuple(
            replace(one, unhealthy_reason=self._parts[uuid, one.uuid].reason)
            if (uuid, one.uuid) in self._parts
            else one
            for one in gpu.mig_devices
        )

    def _answers_again(self) -> None:
        """After a hang every GPU has to earn its health by clean probes, like after an XID."""
        with self._mutex:
            self._hung = False
            log.info("driver answers again")
            self._publish()

    def _all_fell_ill(self, reason: str) -> None:
        for uuid, health in list(self._health.items()):
            self._judge(uuid, fell_ill(health, reason, now_s=self._clock()))

    def _driver_failed(self, error: NvmlError) -> None:
        """The library or the driver as a whole: nothing is healthy, start over."""
        self._call_begins()
        absent = isinstance(error, NvmlAbsent)
        if absent or self._open:
            self._shut_out_since_s = None
        elif self._shut_out_since_s is None:
            self._shut_out_since_s = self._clock()
        self._nvml.close()
        self._open = False
        log.failing("driver absent" if absent else "driver failed", error=error)
        with self._mutex:
            self._all_fell_ill(str(error))
            self._publish(driver_error=str(error))
        if (
            isinstance(error, NvmlStale)
            or (absent and self._leave_when_absent and not self._gpus)
            or self._shut_out()
        ):
            self._leave(str(error))

    def _shut_out(self) -> bool:
        """Whether the driver is there, but not for this process any more.

        A reload of systemd takes the devices from containers whose runtime did not list them, ours
        too: one that is started anew has them. It has no GPUs before it has seen some, so where
        that changes nothing it stays. A driver that fails everybody is no reason: beside one no
        container may start, and kubelet keeps what it was told of.
        """
        since_s = self._shut_out_since_s
        if not self._gpus or since_s is None or self._clock() - since_s < SHUT_OUT_S:
            return False
        return self._devices_taken()

    def _judge(self, uuid: str, health: GpuHealth) -> None:
        before = self._health.get(uuid, GpuHealth())
        self._health[uuid] = health
        if before.healthy == health.healthy:
            return
        gpu = self._gpus[uuid]
        if health.healthy:
            log.info("gpu recovered", gpu=uuid, index=gpu.index, after=before.reason)
        else:
            log.error("gpu unhealthy", gpu=uuid, index=gpu.index, reason=health.reason)
        self._count(uuid, "healthy" if health.healthy else "unhealthy")
        self._post(
            ClusterEvent(
                reason="GpuRecovered" if health.healthy else "GpuUnhealthy",
                message=f"GPU {gpu.index} {uuid} ({gpu.name}) "
                + ("is healthy again after: " + before.reason if health.healthy
                   else f"takes no new pods: {health.reason}"),
                warning=not health.healthy,
            )
        )  # fmt: skip

    def _publish(self, driver_error: str = "") -> None:
        picture = GpuInventory.of(
            replace(
                gpu,
                unhealthy_reason=self._health[uuid].reason or self._withheld.get(uuid, ""),
                mig_devices=self._judged_parts(uuid, gpu),
            )
            for uuid, gpu in self._gpus.items()
        )
        if not self._accepted and not driver_error:
            if objection := self._objection(picture):
                self._refuse(objection)  # and announce nothing to anybody
                return
            self._accepted = True
        if driver_error:
            picture = replace(picture, driver_error=driver_error, known=bool(self._gpus))
        else:
            log.recovered("driver absent")
            log.recovered("driver failed")
        self._inventory.publish(picture)


class Patience:
    """Loop: notice that the driver hangs, from a thread that does not call it."""

    name = "gpu-patience"

    def __init__(self, health: Health, *, hang_after_s: float = HANG_AFTER_S) -> None:
        self._health = health
        self._hang_after_s = hang_after_s

    def run(self, life: Lifeline) -> None:
        while life.pause(self.step_once()):
            pass

    def step_once(self) -> float:
        """Look once; give the seconds in which no call can become overdue, or a short while."""
        hanging_s = self._health.hanging_s()
        if hanging_s >= self._hang_after_s:
            self._health.driver_hangs()
        return max(LOOK_AGAIN_S, self._hang_after_s - hanging_s)
