"""Programs that run on a GPU as tenants: each container has limits and a usage region of its own."""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent
ANSWER_S = 300.0
END_S = 10.0
READ_BYTES = 1 << 16
COMPLAINT_BYTES = 400
OVER = "the time for this check is over"
MEMORY, CORES, POLICY = (
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_SM_LIMIT",
    "GPU_CORE_UTILIZATION_POLICY",
)
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # of the hardware, for all streams of a program


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
    answer_s: float = ANSWER_S  # after which a program that says nothing has failed
    until_s: float = math.inf  # monotonic; nothing is started or waited for after that

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
        """Start a program of this folder. Raises TenantError."""
        script, *arguments = map(str, words)
        return self.tenant(
            [self.python, str(HERE / script), *arguments], self.environment(hooked, container, env)
        )

    def tenant(self, command: Sequence[str], environ: Mapping[str, str]) -> "Tenant":
        """Start any program with this environment. Raises TenantError."""
        if time.monotonic() >= self.until_s:
            raise TenantError(f"{Path(command[1]).name} was not started: {OVER}")
        return Tenant(command, environ, self.answer_s, self.until_s)

    def run(
        self, words: Sequence[str | int | float], *, hooked: bool = True, container: str = "one",
        **env: str,
    ) -> dict[str, Any]:  # fmt: skip
        """Run one to its end, telling it to go on whenever it waits; its last line."""
        with self.start(words, hooked=hooked, container=container, **env) as tenant:
            return tenant.finish()


class Tenant:
    """A program that speaks one JSON object per line, in a process group of its own.

    What it complains of goes to a file, so that a long complaint stops nobody.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], answer_s: float, until_s: float
    ) -> None:
        """Start it. `answer_s`: how long it may take for each thing that it says."""
        self._name = " ".join(Path(word).name for word in command[1:])
        self._answer_s, self._until_s = answer_s, until_s
        self._unread = b""
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - until __exit__
        try:
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._complaints, start_new_session=True, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            self._complaints.close()
            raise TenantError(f"{self._name} does not start: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and what it has started. One that the driver does not let go is left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout, self._complaints):
            if stream is not None:
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)

    def hear(self) -> dict[str, Any]:
        """Its next line. Raises TenantError when there is none in time, or it is a complaint."""
        answer = self._next(self._deadline_s())
        if answer is None:
            raise TenantError(f"{self._name} ended with {self._code()}: {self._complaint()}")
        return answer

    def ask(self, *words: object) -> dict[str, Any]:
        """Tell it something, and hear what it says to that. Raises TenantError."""
        self.go(*words)
        return self.hear()

    def go(self, *words: object) -> None:
        """Let it go on, with these words if any. Raises TenantError if it has ended."""
        self._tell(f"{' '.join(map(str, words)) or 'go'}\n".encode())

    def finish(self) -> dict[str, Any]:
        """Let it come to its end; the last that it said. Raises TenantError."""
        with contextlib.suppress(TenantError):  # it may have ended, having said all
            self._tell(b"go\n" * 4)
        until_s = self._deadline_s()
        last: dict[str, Any] | None = None
        while (answer := self._next(until_s)) is not None:
            last = answer
        code = self._code()
        if code or last is None:
            raise TenantError(f"{self._name} ended with {code}: {self._complaint()}")
        return last

    def text(self, until_s: float) -> tuple[int | None, list[str]]:
        """Its exit code and all its lines, of a program that speaks no JSON. Raises TenantError."""
        lines = []
        while (line := self._line(min(until_s, self._deadline_s()))) is not None:
            lines.append(line.decode(errors="replace"))
        return self._code(), lines

    def _deadline_s(self) -> float:
        return min(time.monotonic() + self._answer_s, self._until_s)

    def _next(self, until_s: float) -> dict[str, Any] | None:
        """The next object that it says; None at its end."""
        while (line := self._line(until_s)) is not None:
            if not line.startswith(b"{"):  # a warning of some library
                continue
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                raise TenantError(f"{self._name}: {answer['error']}")
            return answer
        return None

    def _line(self, until_s: float) -> bytes | None:
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([out], [], [], left_s)[0]:
                why = f"within {self._answer_s:g} s" if until_s < self._until_s else f"and {OVER}"
                raise TenantError(f"{self._name} did not answer {why}: {self._complaint()}")
            read = os.read(out, READ_BYTES)
            if not read:
                return None
            self._unread = self._unread[-READ_BYTES:] + read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _tell(self, words: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(words)
        except BrokenPipeError:
            raise TenantError(
                f"{self._name} ended with {self._code()}: {self._complaint()}"
            ) from None

    def _code(self) -> int | None:
        """Its exit code; None if it has closed its output and does not end."""
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return None

    def _complaint(self) -> str:
        """The end of what it wrote to stderr."""
        end = self._complaints.seek(0, os.SEEK_END)
        self._complaints.seek(max(0, end - COMPLAINT_BYTES))
        return self._complaints.read().decode(errors="replace").strip()
