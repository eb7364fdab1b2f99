"""Run as a program: PyTorch under test, one JSON object per line.

torch_work.py probe           whether PyTorch sees the GPU
torch_work.py memory          fill what there is, give it back, fill it again
torch_work.py views           what PyTorch and CUDA say of the GPU's memory with 512 MiB held
torch_work.py train           a few steps of training; a digest of all that came out
torch_work.py compile         the same, compiled
torch_work.py loader          the same, fed by worker processes that are forked after CUDA was used
torch_work.py matmul [ROUNDS] large multiplications of matrices, for shares of time (see pace.py)

VGPU_TORCH_DEVICE=cpu tries all that needs no GPU without one.
"""

import ctypes
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from pace import Pieces, serve

MIB = 1 << 20
CHUNKS_MIB = (64, 20)  # the caching allocator takes segments of 20 MiB and more as they are
DEVICE = os.environ.get("VGPU_TORCH_DEVICE", "cuda")
HELD_MIB = 512
SIDE = 8192 if DEVICE == "cuda" else 256
BATCHES, BATCH, WORKERS = 20, 64, 4


def say(**answer: Any) -> None:
    """One line."""
    print(json.dumps(answer), flush=True)  # noqa: T201 - how it speaks


def probe() -> None:
    import torch

    if DEVICE == "cuda" and not torch.cuda.is_available():
        say(error=f"PyTorch {torch.__version__} sees no GPU (torch.cuda.is_available() is False)")
        return
    say(torch=torch.__version__, cuda=torch.version.cuda)


def memory() -> None:
    """How much fits, twice; what CUDA says there is, before and when it is full."""
    import torch

    def fill() -> tuple[int, list[Any], str]:
        held, kept, refusal = 0, [], ""
        for chunk in CHUNKS_MIB:
            while True:
                try:
                    kept.append(torch.empty(chunk * MIB, dtype=torch.uint8, device="cuda"))
                except torch.OutOfMemoryError as error:
                    refusal = type(error).__name__
                    break
                held += chunk
        return held, kept, refusal

    torch.cuda.init()
    room, total = torch.cuda.mem_get_info()
    first, kept, refusal = fill()
    torch.cuda.synchronize()
    full_room, _ = torch.cuda.mem_get_info()
    say(ready=True)
    sys.stdin.readline()
    kept.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    second, kept, _ = fill()
    say(
        total_mib=total / MIB, before_mib=(total - room) / MIB, held_mib=first, again_mib=second,
        room_mib=full_room / MIB, refusal=refusal, backend=torch.cuda.get_allocator_backend(),
    )  # fmt: skip


def views() -> None:
    """Waits, so that others can be asked the same."""
    import torch

    held = torch.empty(HELD_MIB * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    room, total = ctypes.c_size_t(), ctypes.c_size_t()
    result = ctypes.CDLL("libcuda.so.1").cuMemGetInfo_v2(ctypes.byref(room), ctypes.byref(total))
    if result:
        say(error=f"cuMemGetInfo answers {result}")
        return
    torch_room, torch_total = torch.cuda.mem_get_info()
    say(
        torch=[torch_room, torch_total], cuda=[room.value, total.value], held=held.numel(),
        properties=torch.cuda.get_device_properties(0).total_memory,
    )  # fmt: skip
    sys.stdin.readline()


def model() -> Any:
    """A small one that has a bit of everything; the same weights each time."""
    import torch
    from torch import nn

    torch.manual_seed(7)
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 32 * 32, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10),
    ).to(DEVICE)  # fmt: skip


def trained(network: Any, step: Any, batches: Iterable[tuple[Any, Any]]) -> None:
    """Say what came out of training the network with these batches. `step`: what computes it."""
    import torch
    from torch import nn

    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    digest, loss = hashlib.sha256(), torch.zeros(())
    for images, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(step(images.to(DEVICE)), labels.to(DEVICE))
        loss.backward()
        optimizer.step()
        digest.update(loss.detach().cpu().numpy().tobytes())
    for parameter in network.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    say(digest=digest.hexdigest(), loss=float(loss.detach()))


def one_batch() -> list[tuple[Any, Any]]:
    """The same, again and again."""
    import torch

    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    return [(images.to(DEVICE), labels.to(DEVICE))] * BATCHES


def train() -> None:
    network = model()
    trained(network, network, one_batch())


def compiled() -> None:
    import torch

    network = model()
    trained(network, torch.compile(network), one_batch())


class Pictures:
    """Numbered, each always the same; made in whichever process asks."""

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, number: int) -> tuple[Any, int]:
        import torch

        return torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(number)), number % 10


def loader() -> None:
    from torch.utils.data import DataLoader

    network = model()  # CUDA is in use before the workers are forked
    pinned = DEVICE == "cuda"
    feed: Any = DataLoader(
        Pictures(),  # type: ignore[arg-type]
        batch_size=BATCH, num_workers=WORKERS, multiprocessing_context="fork", pin_memory=pinned,
    )  # fmt: skip
    trained(network, network, feed)


def matmul(_rounds: str = "1") -> None:
    import torch

    kind = torch.float16 if DEVICE == "cuda" else torch.float32
    left, right = (torch.randn(SIDE, SIDE, device=DEVICE, dtype=kind) for _ in range(2))
    out = torch.empty_like(left)

    def mark(old: Any) -> Any:
        if DEVICE == "cpu":  # has done it already
            return None
        event = old or torch.cuda.Event()
        event.record()
        return event

    torch.matmul(left, right, out=out)  # the library is loaded and has chosen its kernel
    pieces = Pieces(
        lambda: torch.matmul(left, right, out=out),
        mark,
        lambda event: event and event.synchronize(),
    )
    serve(pieces, say, rounds=1)


PROGRAMS: dict[str, Callable[..., None]] = {
    "probe": probe, "memory": memory, "views": views, "train": train, "compile": compiled,
    "loader": loader, "matmul": matmul,
}  # fmt: skip

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
