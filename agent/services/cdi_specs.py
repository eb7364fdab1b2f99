"""Loop: keep the CDI files true to the GPUs, the MIG devices and the driver's files there are.

A container names a device that a file must know, or its runtime refuses to start it. So files are
written before the first container is told of them, and again when GPUs change; now and then it is
looked whether the driver was replaced or somebody deleted a file.
"""

from collections.abc import Iterator

from agent import logs
from agent.domain.cdi import (
    EVERY,
    GPU_CLASS,
    IMEX_CLASS,
    CdiMount,
    CdiSpec,
    Edits,
    nodes,
    with_every,
)
from agent.domain.gpu import Gpu
from agent.domain.grant_plan import (
    VISIBLE_DEVICES,
    VOLUME_MOUNTS,
    VOLUME_MOUNTS_ROOT,
    GrantPolicy,
    Named,
    imex_node,
)
from agent.errors import NodeNotReady
from agent.ports import CdiFiles, DriverFiles
from agent.services.published import Inventory, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

EVERY_S = 60.0
RETRY_S = 5.0
WRITING_S = 60.0
NOT_YET = "the CDI file that says what the GPUs are is not written yet"
# The driver's files are named by us: NVIDIA's own runtime must not add them a second time.
NOT_TWICE = Edits(envs={VISIBLE_DEVICES: "void"})
# Where it goes by mounts, which name the same GPUs to runtimes without CDI, it asks for this one.
NOT_BY_MOUNTS = Edits(mounts=(CdiMount(f"{VOLUME_MOUNTS_ROOT}/void", "/dev/null"),))


class CdiSpecs:
    """Writes what `policy` names. `problem` says why a container cannot be told of a device."""

    name = "cdi"

    def __init__(
        self,
        inventory: Inventory,
        files: CdiFiles,
        driver: DriverFiles,
        policy: GrantPolicy,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self.problem: Published[str] = Published(NOT_YET)
        self._described: frozenset[int] = frozenset()  # channels that a file has; replaced whole
        self._inventory = inventory
        self._files = files
        self._driver = driver
        self._policy = policy
        self._every_s = every_s

    def tried(self, timeout_s: float) -> bool:
        """Wait until they were written, or could not be; False after `timeout_s`."""
        return self.problem.wait_until(lambda why: why != NOT_YET, timeout_s)

    def channels(self) -> tuple[int, ...]:
        """IMEX channels that are there and that a file has: runtimes refuse to give any other.

        Raises NodeNotReady where one is required and missing.
        """
        return tuple(one for one in self._driver.imex_channels() if one in self._described)

    def run(self, life: Lifeline) -> None:
        life.on_stop(self._inventory.poke)
        while not life.stopping:
            version, inventory = self._inventory.read()
            life.pulse(WRITING_S)
            pause_s = self._every_s
            if inventory.known and not self.write_once():
                pause_s = min(RETRY_S, self._every_s)
            life.pulse(pause_s)
            self._inventory.wait_for_change(version, pause_s)

    def write_once(self) -> bool:
        """Write what is not there yet; False when that failed."""
        try:
            specs = list(self.specs())
            written = [spec.file_name for spec in specs if self._files.write(spec)]
        except NodeNotReady as error:
            log.failing("cdi file not written", error=error)
            self.problem.publish(str(error))
            return False
        log.recovered("cdi file not written")
        if written:
            log.info("cdi files written", files=",".join(written))
        self._described = frozenset(
            int(name)
            for spec in specs
            if spec.class_name == IMEX_CLASS
            for name in spec.devices
            if name != EVERY
        )
        self.problem.publish("")
        return True

    def specs(self) -> Iterator[CdiSpec]:
        """All files, as they should be now. Raises NodeNotReady."""
        yield CdiSpec(class_name=GPU_CLASS, devices=with_every(self._gpus()))
        if channels := self._driver.imex_channels():
            root = self._policy.dev_root
            devices = {
                str(channel): Edits(nodes=nodes([imex_node(channel)], root)).plus(NOT_TWICE)
                for channel in channels
            }
            yield CdiSpec(class_name=IMEX_CLASS, devices=with_every(devices))
        for extra in self._policy.extras:
            edits = Edits(nodes=nodes(self._driver.extra_nodes(extra), self._policy.dev_root))
            edits = edits.plus(self._driver.extra_mounts(extra))
            if edits.nodes:
                yield CdiSpec(class_name=extra, devices={"all": edits})

    def _gpus(self) -> dict[str, Edits]:
        common = self._driver.driver().plus(
            Edits(nodes=nodes(self._driver.common_nodes(), self._policy.dev_root)).plus(NOT_TWICE)
        )
        if VOLUME_MOUNTS in self._policy.device_list_strategy and not common.hooks:
            # Not elsewhere: runtimes before 1.20.2 look for a GPU of this name, and what hooks do
            # can be done twice. Links that are mounted cannot be made once more.
            common = common.plus(NOT_BY_MOUNTS)
        devices = {}
        for gpu in self._inventory.now().gpus:
            drm = self._driver.drm_nodes(gpu)
            for one in _devices(gpu):
                own = Edits(nodes=nodes((*one.nodes, *drm), self._policy.dev_root))
                by_index = self._policy.device_id_strategy == "index"
                devices[one.index if by_index else one.uuid] = own.plus(common)
        return devices


def _devices(gpu: Gpu) -> Iterator[Named]:
    """A GPU and its MIG devices, as runtimes are told of them."""
    whole = Named.of(gpu)
    yield whole
    for place, mig in enumerate(gpu.mig_devices):
        yield Named(mig.uuid, f"{gpu.index}:{place}", (*whole.nodes, *mig.device_nodes))
