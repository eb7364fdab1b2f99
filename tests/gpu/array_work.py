"""Run as a program: other libraries of arrays under test, one JSON object per line.

array_work.py probe     which libraries this Python has, PyTorch too; nothing of them is loaded
array_work.py jax       a few steps of training; a digest of all that came out
array_work.py cupy      multiplications, a sort and sums; likewise
"""

import hashlib
import json
import sys
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from typing import Any

LIBRARIES = ("torch", "jax", "cupy")
STEPS, SIDE = 20, 512


def say(**answer: Any) -> None:
    """One line."""
    print(json.dumps(answer), flush=True)  # noqa: T201 - how it speaks


def release(library: str) -> str:
    """Which release it is; CuPy's package has CUDA's in its name."""
    try:
        return version(library)
    except PackageNotFoundError:
        names = {str(one.metadata["Name"]): one.version for one in distributions()}
        return next((v for n, v in names.items() if n.startswith(f"{library}-")), "version unknown")


def probe() -> None:
    say(found={name: release(name) for name in LIBRARIES if find_spec(name) is not None})


def jax() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    def loss(weights: Any, inputs: Any, wanted: Any) -> Any:
        hidden = jnp.tanh(inputs @ weights[0])
        return jnp.mean((hidden @ weights[1] - wanted) ** 2)

    keys = jax.random.split(jax.random.PRNGKey(7), 4)
    weights = [0.05 * jax.random.normal(key, (SIDE, SIDE)) for key in keys[:2]]
    inputs, wanted = (jax.random.normal(key, (SIDE, SIDE)) for key in keys[2:])
    step = jax.jit(jax.value_and_grad(loss))
    digest = hashlib.sha256()
    for _ in range(STEPS):
        value, slopes = step(weights, inputs, wanted)
        weights = [weight - 0.1 * slope for weight, slope in zip(weights, slopes, strict=True)]
        digest.update(np.asarray(value).tobytes())
    for weight in weights:
        digest.update(np.asarray(weight).tobytes())
    say(digest=digest.hexdigest(), device=jax.devices()[0].platform)


def cupy() -> None:
    import cupy

    numbers = cupy.random.RandomState(7).standard_normal((SIDE, SIDE)).astype(cupy.float32)
    digest = hashlib.sha256()
    for _ in range(STEPS):
        numbers = cupy.tanh(numbers @ numbers.T / SIDE) + cupy.sort(numbers, axis=1)
        digest.update(cupy.asnumpy(numbers).tobytes())
    say(digest=digest.hexdigest(), device="gpu")


if __name__ == "__main__":
    {"probe": probe, "jax": jax, "cupy": cupy}[sys.argv[1]]()
