"""How many files the agent lets itself open."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource
from agent.adapters.open_files import allow_many
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(allow_many(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "told"),
    [
        pytest.param(64, 4096, "4096 4096 4096", id="as many as are allowed"),
        pytest.param(128, 128, "128 128 128", id="no more than that"),
    ],
)
def test_the_soft_limit_is_raised(soft: int, hard: int, told: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(soft=soft, hard=hard)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert ran.stdout.strip() == told
