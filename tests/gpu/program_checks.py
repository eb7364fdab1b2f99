"""Checks of programs as people have them: the same results with the hook; and one that does wrong."""

from collections.abc import Iterator, Mapping

from tests.gpu.memory_checks import ALLOCATORS
from tests.gpu.page import Result, same_results
from tests.gpu.smi import smi_used_mib
from tests.gpu.tenants import CORES, MEMORY, POLICY, Bed

LIMITS = {MEMORY: "4096m", CORES: "50", POLICY: "force"}
ALWAYS_THE_SAME = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_FLAGS": "--xla_gpu_deterministic_ops=true",
                   "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # fmt: skip
ILLEGAL_ADDRESS, LAUNCH_FAILED = 700, 719
LEFT_MIB = 64


def same(
    bed: Bed, check: str, words: list[str], env: Mapping[str, str], *, twice: bool = True
) -> Iterator[Result]:
    """Whether what comes out is the same, bit for bit, with the hook and a limit.

    With `twice` it is seen first whether it is the same without the hook at all.
    """
    env = {**ALWAYS_THE_SAME, **env}
    hooked = bed.run(words, container=f"same {check}", **env, **LIMITS)
    plain = bed.run(words, hooked=False, **env)
    again = bed.run(words, hooked=False, **env) if twice else plain
    yield from same_results(check, plain["digest"], again["digest"], hooked["digest"], twice=twice)


def training(bed: Bed) -> Iterator[Result]:
    """A PyTorch training step is the same, bit for bit, with each of PyTorch's allocators."""
    for name, settings in ALLOCATORS.items():
        yield from same(
            bed, f"training, {name}", ["torch_work.py", "train"], settings,
            twice=not settings,
        )  # fmt: skip


def compiled(bed: Bed) -> Iterator[Result]:
    """A step that torch.compile has compiled is the same; it is compiled under the hook."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(bed.scratch / "inductor")}
    yield from same(bed, "torch.compile", ["torch_work.py", "compile"], cache, twice=False)


def loader(bed: Bed) -> Iterator[Result]:
    """Training fed by workers that are forked after CUDA was used is the same."""
    yield from same(
        bed, "DataLoader, 4 forked workers", ["torch_work.py", "loader"], {}, twice=False
    )


def jax(bed: Bed) -> Iterator[Result]:
    """JAX computes the same."""
    yield from same(bed, "JAX", ["array_work.py", "jax"], {})


def cupy(bed: Bed) -> Iterator[Result]:
    """CuPy computes the same."""
    yield from same(bed, "CuPy", ["array_work.py", "cupy"], {})


def illegal(bed: Bed) -> Iterator[Result]:
    """A kernel that writes where nothing is ends its own process' context, and nobody else's."""
    check = "illegal access"
    before = smi_used_mib(bed)
    with bed.start(["load_work.py", "small"], container="neighbour", **LIMITS) as neighbour:
        neighbour.hear()
        with bed.start(["cuda_work.py", "illegal"], container="culprit", **LIMITS) as culprit:
            culprit.hear()
            neighbour.go("rate", 1.5, 0.5)
            result = int(culprit.ask()["result"])
        rate = float(neighbour.hear()["rate"])
        rate_after = float(neighbour.ask("rate", 0.8, 0.2)["rate"])
    yield Result(
        check=check,
        name="what the process is told",
        value=f"CUresult {result}",
        wanted=f"{ILLEGAL_ADDRESS} or {LAUNCH_FAILED}",
        passed=result in (ILLEGAL_ADDRESS, LAUNCH_FAILED),
    )
    yield Result(
        check=check,
        name="another container meanwhile, and afterwards",
        value=f"{rate:.1f} and {rate_after:.1f} pieces a second",
        wanted="goes on working",
        passed=rate > 0 and rate_after > 0,
    )
    with bed.start(["cuda_work.py", "context"], container="culprit", **LIMITS) as again:
        fresh = again.hear()
    yield Result(check=check, name="the same container starts CUDA again",
                 value=f"{fresh['used_mib']:.0f} MiB in use", wanted="what a context takes",
                 passed=0 <= fresh["used_mib"] < 4096 / 2)  # fmt: skip
    after = smi_used_mib(bed)
    if before is not None and after is not None:
        yield Result(check=check, name="the GPU's memory afterwards",
                     value=f"{after - before:+.0f} MiB", wanted=f"within {LEFT_MIB} MiB of before",
                     passed=abs(after - before) <= LEFT_MIB)  # fmt: skip
