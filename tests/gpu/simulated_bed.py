"""A simulated GPU on which the suite for real ones is tried."""

import sys
from pathlib import Path

from built_hook import built, sim_libraries

from agent.sim.driver import SimDriver
from tests.gpu.tenants import Bed

KERNEL_US = 2000


def simulated_bed(folder: Path, *, connections: int = 0) -> Bed:
    """The first of two GPUs. `connections`: hardware queues of a program; 0: one for each stream."""
    sim = SimDriver(folder, libraries=sim_libraries())
    gpu, second = sim.add_gpu(), sim.add_gpu()
    sim.kernel_us(KERNEL_US)
    sim.execution(connections=connections)
    environ = {"PATH": "/usr/bin:/bin", **sim.environment(), "SECOND": second.uuid}
    return Bed(sys.executable, built() / "libvgpu.so", folder, environ, gpu.uuid)


def quick(bed: Bed, kernel_us: int = 0) -> Bed:
    """The same GPU, with other kernels, by default some that take no time."""
    config = Path(bed.environ["VGPU_SIM_DRIVER"])
    was = f"kernel_us {KERNEL_US}\n"
    config.write_text(config.read_text().replace(was, f"kernel_us {kernel_us}\n"))
    return bed
