"""What is checked on a real GPU. Each check starts tenants, and makes results of what they say."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from statistics import median

from tests.gpu.page import Result, control_result, memory_results, share_result
from tests.gpu.tenants import CORES, MEMORY, POLICY, Bed, TenantError

LIMIT_MIB = 4096
KERNELS_NS = (50_000, 5_000_000)
ALONE_PERCENT, PAIR_PERCENT = (25, 50, 75), (30, 70)
ALONE_POINTS, PAIR_POINTS = 2.0, 3.0
SMI_S = 120.0
HANDLED_AT_ONCE_US = 100.0  # what the hook takes for "at once"
CONTAINERS = count()  # each has a usage region of its own, which keeps the limits it began with
ALLOCATORS = {
    "PyTorch, its own allocator": {},
    "PyTorch, cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "PyTorch, expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
}


@dataclass(frozen=True)
class Suite:
    """How long things are watched; shorter on the simulated GPU of our own tests."""

    bed: Bed
    seconds: float = 6.0
    kernels_ns: Sequence[int] = KERNELS_NS

    # --- memory -------------------------------------------------------------------------------

    def memory(self) -> list[Result]:
        """The limit is what PyTorch gets, by each of its allocators."""
        results = []
        for check, allocator in ALLOCATORS.items():
            before = smi_used_mib(self.bed)
            env = {MEMORY: f"{LIMIT_MIB}m", **allocator}
            with self.bed.start(["torch_work.py", "memory"], **env) as tenant:
                tenant.hear()
                during = smi_used_mib(self.bed)
                found = tenant.finish()
            seen = None if before is None or during is None else during - before
            results += memory_results(check, found, limit_mib=LIMIT_MIB, real_mib=seen)
        return results

    def smi(self) -> list[Result]:
        """Nvidia-smi inside the share shows the share."""
        env = {MEMORY: f"{LIMIT_MIB}m"}
        with self.bed.start(["cuda_work.py", "context"], **env) as tenant:
            held = tenant.hear()
            cells = smi(self.bed, "memory.total,memory.used", hooked=True, **env)
        if cells is None:
            if smi(self.bed, "memory.total", hooked=False) is None:
                return [Result(check="nvidia-smi", name="inside the share", value="is not there")]
            return [
                Result(
                    check="nvidia-smi",
                    name="inside the share",
                    value="says nothing",
                    wanted="what it says outside, of the share",
                    passed=False,
                )
            ]
        total, used = map(float, cells)
        return [
            Result(check="nvidia-smi", name="total inside the share", value=f"{total:.0f} MiB",
                   wanted=f"{LIMIT_MIB} MiB", passed=total == LIMIT_MIB),
            Result(check="nvidia-smi", name="used inside the share", value=f"{used:.0f} MiB",
                   wanted=f"what CUDA shows, {held['used_mib']:.0f} MiB",
                   passed=abs(used - held["used_mib"]) <= 1),
        ]  # fmt: skip

    # --- compute ------------------------------------------------------------------------------

    def rates(self, kernel_ns: int, rounds: int, caps: Sequence[dict[str, str]]) -> list[float]:
        """Kernels a second of containers with these limits that work at the same time."""
        words = ["cuda_work.py", "shares", kernel_ns, rounds, self.seconds]
        with ExitStack() as stack:
            tenants = [
                stack.enter_context(self.bed.start(words, container=f"c{next(CONTAINERS)}", **cap))
                for cap in caps
            ]
            for tenant in tenants:
                tenant.hear()
            for tenant in tenants:
                tenant.go()
            return [float(tenant.hear()["rate"]) for tenant in tenants]

    def shares(self) -> list[Result]:
        """Shares of GPU time alone and in a pair; and that the check notices when nobody limits."""
        results = []
        for kernel_ns in self.kernels_ns:
            check = f"share of GPU time, kernels of {kernel_ns / 1e6:g} ms"
            words = ["cuda_work.py", "shares", kernel_ns, 0, self.seconds]
            whole = self.bed.run(words, hooked=False)
            rounds = int(whole["rounds"])
            results += self.shares_of(check, kernel_ns, rounds, float(whole["rate"]), "force")
            disabled = self.shares_of(check, kernel_ns, rounds, float(whole["rate"]), "disable")
            results.append(control_result(check, disabled))
        return results

    def shares_of(
        self, check: str, kernel_ns: int, rounds: int, whole: float, policy: str
    ) -> list[Result]:
        """One result for each share alone, and for each of a pair."""
        if whole <= 0:
            raise TenantError(f"{check}: without a limit no kernel was finished")
        results = []
        for percents, points in (
            *(((percent,), ALONE_POINTS) for percent in ALONE_PERCENT),
            (PAIR_PERCENT, PAIR_POINTS),
        ):
            caps = [{CORES: str(percent), POLICY: policy} for percent in percents]
            rates = self.rates(kernel_ns, rounds, caps)
            where = "alone" if len(percents) == 1 else "in a pair"
            results += [
                share_result(check, f"{percent} % {where}", wanted_percent=percent,
                             got_percent=rate / whole * 100, within_points=points)
                for percent, rate in zip(percents, rates, strict=True)
            ]  # fmt: skip
        return results

    def launches(self) -> list[Result]:
        """What the hook adds to a launch, in turns with a program without it."""
        words = ["cuda_work.py", "launches"]
        kinds: dict[str, dict[str, str]] = {
            "without a limit of cores": {MEMORY: f"{LIMIT_MIB}m"},
            "with one": {MEMORY: f"{LIMIT_MIB}m", CORES: "50", POLICY: "force"},
        }
        results = []
        for kind, env in kinds.items():
            added, native = [], []
            for _ in range(5):
                native.append(float(self.bed.run(words, hooked=False)["ns"]))
                added.append(float(self.bed.run(words, **env)["ns"]) - native[-1])
            value = f"{median(added):+.0f} ns ({min(added):+.0f} to {max(added):+.0f})"
            base = f"for the record; {median(native):.0f} ns without the hook, from Python"
            results.append(Result(check="launch", name=f"added {kind}", value=value, wanted=base))
        return results

    # --- what the design relies on ------------------------------------------------------------

    def probes(self) -> list[Result]:
        """An event on an idle stream is handled at once, unless another process has the GPU."""
        check = "events on an idle stream"
        alone = self.bed.run(["cuda_work.py", "events"], hooked=False)
        watcher = self.bed.start(["cuda_work.py", "events"], hooked=False)
        with watcher, self.bed.start(["cuda_work.py", "hold", 60], hooked=False) as holder:
            watcher.hear()
            holder.hear()
            holder.go()
            watcher.go()
            beside = watcher.hear()
        near, far = alone["delays_us"], beside["delays_us"]
        late = sum(delay > HANDLED_AT_ONCE_US for delay in far) / len(far)
        early = sum(delay > HANDLED_AT_ONCE_US for delay in near) / len(near)
        return [
            Result(check=check, name="cuEventRecord", value=f"{alone['record_ns']:.0f} ns"),
            Result(check=check, name="cuEventQuery", value=f"{alone['query_ns']:.0f} ns"),
            Result(check=check, name="alone: handled late", value=f"{early:.0%}, {spread(near)}",
                   wanted=f"at most 5 % after {HANDLED_AT_ONCE_US:.0f} us", passed=early <= 0.05),
            Result(check=check, name="another process has the GPU: handled late",
                   value=f"{late:.0%}, {spread(far)}", wanted="at least half", passed=late >= 0.5),
        ]  # fmt: skip

    def contexts(self) -> list[Result]:
        """What a context takes, and what the hook charges for it."""
        before = smi_used_mib(self.bed)
        with self.bed.start(["cuda_work.py", "context"], **{MEMORY: f"{LIMIT_MIB}m"}) as tenant:
            charged = float(tenant.hear()["used_mib"])
            during = smi_used_mib(self.bed)
        results = [Result(check="context", name="charged", value=f"{charged:.0f} MiB")]
        if before is not None and during is not None:
            results.append(
                Result(check="context", name="taken of the GPU, seen from outside",
                       value=f"{during - before:.0f} MiB",
                       wanted="what is charged, within 64 MiB",
                       passed=abs(during - before - charged) <= 64)
            )  # fmt: skip
        return results

    def pools(self) -> list[Result]:
        """By how much a pool of the driver grows and shrinks, and what the hook makes of it."""
        results = []
        for where, hooked, env in (
            ("without the hook", False, {}),
            ("with a limit", True, {MEMORY: f"{LIMIT_MIB}m"}),
        ):
            found = self.bed.run(["cuda_work.py", "pools"], hooked=hooked, **env)
            steps = ", ".join(f"{count} x {mib:g} MiB" for mib, count in found["steps_mib"])
            results += [
                Result(check="pools", name=f"{where}: grows by", value=steps),
                Result(check="pools", name=f"{where}: kept of {found['top_mib']:g} MiB",
                       value=f"{found['freed_mib']:g} MiB when all is freed, "
                             f"{found['synchronized_mib']:g} after a synchronization, "
                             f"{found['trimmed_mib']:g} after a trim"),
            ]  # fmt: skip
        return results

    def training(self) -> list[Result]:
        """A training step is the same, bit for bit."""
        env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        limits = {MEMORY: f"{LIMIT_MIB}m", CORES: "50", POLICY: "force"}
        plain = self.bed.run(["torch_work.py", "train"], hooked=False, **env)
        again = self.bed.run(["torch_work.py", "train"], hooked=False, **env)
        hooked = self.bed.run(["torch_work.py", "train"], **env, **limits)
        return [
            Result(check="training", name="without the hook, twice", value=again["digest"][:16],
                   wanted=plain["digest"][:16], passed=again["digest"] == plain["digest"]),
            Result(check="training", name="with the hook, limited", value=hooked["digest"][:16],
                   wanted=plain["digest"][:16], passed=hooked["digest"] == plain["digest"]),
        ]  # fmt: skip

    def checks(self) -> dict[str, Callable[[], list[Result]]]:
        """All of them, by the name that --only takes."""
        return {
            "contexts": self.contexts, "memory": self.memory, "smi": self.smi,
            "pools": self.pools, "training": self.training, "launches": self.launches,
            "probes": self.probes, "shares": self.shares,
        }  # fmt: skip


def spread(delays_us: Sequence[float]) -> str:
    """Median and 90th percentile of sorted delays."""
    return f"median {median(delays_us):.0f} us, p90 {delays_us[len(delays_us) * 9 // 10]:.0f} us"


def smi(bed: Bed, fields: str, *, hooked: bool, **env: str) -> list[str] | None:
    """What nvidia-smi says of the bed's GPU, field by field; None without it, or if it does not say.

    Rows are known by the GPU's uuid: their order, and so their number, is not CUDA's.
    """
    program = shutil.which("nvidia-smi", path=bed.environ.get("PATH"))
    if program is None:
        return None
    command = [program, f"--query-gpu=uuid,{fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, env=bed.environment(hooked, "one", env), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=min(bed.answer_s, SMI_S), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    own = [row[1:] for row in rows if row[0] == bed.uuid]
    return own[0] if done.returncode == 0 and own else None


def smi_used_mib(bed: Bed) -> float | None:
    """Memory of the GPU that is in use, seen from outside of every container."""
    cells = smi(bed, "memory.used", hooked=False)
    try:
        return float(cells[0]) if cells else None
    except ValueError:  # "[N/A]"
        return None
