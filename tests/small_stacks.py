"""What tests/hook/small_stack.c does, each step in a thread of its own, and is to be answered."""

SMALLEST_BYTES = 16384  # PTHREAD_STACK_MIN of x86_64
LEAST_OF_AARCH64_BYTES = 131072  # the same there
RESULTS = [
    ("start", 0), ("load", 0), ("allocate", 0), ("allocate", 2), ("allocate_in_order", 0), ("ask", 0),
    ("launch", 0), ("look_up", 0), ("monitor", 0),
]  # fmt: skip
STEPS = [name for name, _ in RESULTS]


def results(lines: list[str]) -> list[tuple[str, int]]:
    """What each step was answered."""
    return [(line.split()[0], int(line.split()[1])) for line in lines]


def most_used_bytes(lines: list[str]) -> int:
    """What the step that took most took of its stack."""
    return max(int(line.split()[2]) for line in lines)
