"""Programs that run on a GPU as tenants: each container has limits and a usage region of its own."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent
ANSWER_S = 300.0
MEMORY, CORES, POLICY = (
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_SM_LIMIT",
    "GPU_CORE_UTILIZATION_POLICY",
)


class TenantError(Exception):
    """A program did not do what it was started for; the message says which, and what it said."""


@dataclass(frozen=True)
class Bed:
    """Where tenants run: with which Python, which library, in front of which driver."""

    python: str
    hook: Path
    scratch: Path
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    uuid: str = ""  # of the GPU that they see; empty: all

    def environment(self, hooked: bool, container: str, more: Mapping[str, str]) -> dict[str, str]:
        """Env of a program in a container."""
        env = {**self.environ, **more}
        if self.uuid:
            env["CUDA_VISIBLE_DEVICES"] = env["NVIDIA_VISIBLE_DEVICES"] = self.uuid
        if hooked:
            env["LD_PRELOAD"] = str(self.hook)
            env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(self.scratch / f"{container}.cache")
        return env

    def start(
        self, words: Sequence[str | int | float], *, hooked: bool = True, container: str = "one",
        **env: str,
    ) -> "Tenant":  # fmt: skip
        """Start a program of this folder."""
        script, *arguments = map(str, words)
        return Tenant(
            [self.python, str(HERE / script), *arguments], self.environment(hooked, container, env)
        )

    def run(
        self, words: Sequence[str | int | float], *, hooked: bool = True, **env: str
    ) -> dict[str, Any]:
        """Run one to its end, telling it to go on whenever it waits; its last line."""
        with self.start(words, hooked=hooked, **env) as tenant:
            return tenant.finish()


class Tenant:
    """A program that speaks one JSON object per line."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it."""
        self._name = " ".join(Path(word).name for word in command[1:])
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def hear(self) -> dict[str, Any]:
        """Its next line. Raises TenantError when there is none, or it is a complaint."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, complaint = self._process.communicate(timeout=ANSWER_S)
            raise TenantError(
                f"{self._name} ended with {self._process.returncode}: {complaint.strip()[-400:]}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TenantError(f"{self._name}: {answer['error']}")
        return answer

    def go(self) -> None:
        """Let it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def finish(self) -> dict[str, Any]:
        """Let it come to its end; the last that it said."""
        out, err = self._process.communicate("go\n" * 4, timeout=ANSWER_S)
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if self._process.returncode or not lines or "error" in lines[-1]:
            said = lines[-1].get("error") if lines else ""
            raise TenantError(f"{self._name}: {said or err.strip()[-400:]}")
        last: dict[str, Any] = lines[-1]
        return last
