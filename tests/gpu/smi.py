"""What nvidia-smi says of one GPU, inside a container and outside."""

import shutil
import time

from tests.gpu.tenants import Bed, TenantError

SMI_S = 60.0


def smi(
    bed: Bed, fields: str, *, hooked: bool, container: str = "one", **env: str
) -> list[str] | None:
    """What nvidia-smi says of the bed's GPU, field by field; None without it, or if it does not say.

    Rows are known by the GPU's uuid: their order, and so their number, is not CUDA's.
    """
    program = shutil.which("nvidia-smi", path=bed.environ.get("PATH"))
    if program is None:
        return None
    command = [program, f"--query-gpu=uuid,{fields}", "--format=csv,noheader,nounits"]
    until_s = min(time.monotonic() + min(bed.answer_s, SMI_S), bed.until_s)
    try:
        with bed.tenant(command, bed.environment(hooked, container, env)) as tenant:
            code, lines = tenant.text(until_s)
    except TenantError:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    own = [row[1:] for row in rows if row[0] == bed.uuid]
    return own[0] if code == 0 and own else None


def smi_used_mib(bed: Bed) -> float | None:
    """Memory of the GPU that is in use, seen from outside of every container."""
    cells = smi(bed, "memory.used", hooked=False)
    try:
        return float(cells[0]) if cells else None
    except ValueError:  # "[N/A]"
        return None
