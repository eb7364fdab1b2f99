"""Run as a program: PyTorch under test, one JSON object per line.

torch_work.py probe           whether PyTorch sees the GPU
torch_work.py memory          fill what there is, give it back, fill it again
torch_work.py train           a few steps of training; a digest of all that came out
"""

import hashlib
import json
import sys
from typing import Any

MIB = 1 << 20
CHUNKS_MIB = (64, 20)  # the caching allocator takes segments of 20 MiB and more as they are


def say(**answer: Any) -> None:
    """One line."""
    print(json.dumps(answer), flush=True)  # noqa: T201 - how it speaks


def probe() -> None:
    import torch

    if not torch.cuda.is_available():
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


def train() -> None:
    import torch
    from torch import nn

    torch.manual_seed(7)
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 32 * 32, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, labels = torch.randn(64, 3, 32, 32).cuda(), torch.randint(10, (64,)).cuda()
    digest = hashlib.sha256()
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        digest.update(loss.detach().cpu().numpy().tobytes())
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    say(digest=digest.hexdigest(), loss=float(loss))


if __name__ == "__main__":
    {"probe": probe, "memory": memory, "train": train}[sys.argv[1]]()
