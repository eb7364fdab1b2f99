"""One event per outcome: `event key=value`, or JSON, with journald priorities.

`log = logs.get(__name__)`, then `log.info("allocated", pod="ns/name", took_ms=12)`. The event is
a constant in the past tense; data goes into fields with their unit in the name. A failure that is
met again and again (same event, same `about`) is written once for each of its reasons and then
hourly, with a count; its end is written once. If it ends all the time, it goes on for the log.

Thread-safe. Within `unblocked` nobody waits for the log's reader either, see `log_queue`. No
secrets: callers pass names and numbers, never headers or tokens.
"""

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from agent.log_queue import LineQueue

FLUSH_WITHIN_S = 0.3  # at the end, when nobody may be reading
REPEAT_EVERY_S = 3600.0
MAX_VALUE_CHARS = 2000
MAX_FAILING = 1000  # bounded: `about` may name pods
MAX_ENDS = 20  # within REPEAT_EVERY_S: what comes and goes like this goes on, for the log
MAX_REASONS = 8  # of one failure; some texts differ every time, by a port or an address
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:+@%,")


def _quoted(value: object) -> str:
    """As JSON; nothing in it acts on a terminal, as marks of the direction of writing would."""
    line = json.dumps(value, default=str, ensure_ascii=False)
    return line if line.isprintable() else json.dumps(value, default=str)


def _text(value: object) -> str:
    """One value in logfmt: bare when it can be, otherwise a JSON string on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if len(text) > MAX_VALUE_CHARS:
        text = text[:MAX_VALUE_CHARS] + "..."
    return text if text and _BARE.issuperset(text) else _quoted(text)


def logfmt(level: str, event: str, fields: Mapping[str, object]) -> str:
    """Give `level event key=value ...` on one line."""
    head = [f"{level:<5}", event.replace(" ", "_")]
    return " ".join(head + [f"{key}={_text(value)}" for key, value in fields.items()])


def json_line(level: str, event: str, fields: Mapping[str, object], now_s: float) -> str:
    """Give one JSON object on one line; values JSON does not know become strings."""
    stamp = (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s * 1000) % 1000:03}Z"
    )
    record = {"time": stamp, "level": level.strip(), "event": event, **fields}
    return _quoted(record)


@dataclass(slots=True)
class _Failing:
    """A failure that is not over: one event about one thing, for whatever reasons."""

    since_s: float
    told_s: float  # when the count was told last, or the failure began
    failures: int = 0
    held: int = 0  # of them since `told_s` were not written
    reasons: set[str] = field(default_factory=set)


class _Sink:
    """Where lines go; shared by all loggers of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the failures
        self._writing = threading.Lock()
        self._failing: dict[tuple[str, str], _Failing] = {}
        self._ends: dict[tuple[str, str], tuple[float, int]] = {}  # counted since when, how many
        self.stream: TextIO | None = None
        self.queue: LineQueue | None = None  # instead of the stream
        self.format = "logfmt"
        self.level = logging.INFO
        self.clock: Callable[[], float] = time.time

    def write(self, level: int, event: str, fields: dict[str, object], trace: str = "") -> None:
        if level < self.level:
            return
        line = self.rendered(level, event, fields, trace)
        if self.queue is not None:
            self.queue.put(line)
            return
        stream = self.stream or sys.stderr
        with self._writing:
            try:
                stream.write(line + "\n")
                stream.flush()
            except (OSError, ValueError, AttributeError):  # no stderr at all: it is None
                return  # a closed log must not take the node's GPUs down

    def rendered(self, level: int, event: str, fields: dict[str, object], trace: str = "") -> str:
        """The line, or with a traceback the lines, without the last line feed."""
        name = logging.getLevelName(level).lower().replace("warning", "warn")
        now_s = self.clock()
        if self.format == "json":
            return json_line(name, event, fields | ({"trace": trace} if trace else {}), now_s)
        line = logfmt(name, event, fields) + ("\n" + trace.rstrip() if trace else "")
        if self.format == "journal":  # every line needs the prefix, traces too
            return "\n".join(f"<{_PRIORITIES[level]}>{part}" for part in line.split("\n"))
        return time.strftime("%H:%M:%S ", time.localtime(now_s)) + line

    def failed(self, event: str, about: str, reason: str) -> int | None:
        """How many records were held back since the count was told; None: hold this one back."""
        now_s = self.clock()
        with self._lock:
            known = self._failing.get((event, about))
            if known is None:
                if len(self._failing) >= MAX_FAILING:
                    del self._failing[next(iter(self._failing))]
                known = self._failing[event, about] = _Failing(now_s, now_s)
            known.failures += 1
            news = reason not in known.reasons and len(known.reasons) < MAX_REASONS
            if news:
                known.reasons.add(reason)
            if now_s - known.told_s >= REPEAT_EVERY_S:
                held, known.held, known.told_s = known.held, 0, now_s
                return held
            known.held += not news
            return 0 if news else None

    def over(self, event: str, about: str) -> tuple[int, float] | None:
        """Forget a failure: how often it was met, and for how many seconds.

        None: there is none, or it ends too often for each end to be told.
        """
        now_s, key = self.clock(), (event, about)
        with self._lock:
            if key not in self._failing:
                return None
            since_s, ends = self._ends.pop(key, (now_s, 0))
            if now_s - since_s >= REPEAT_EVERY_S:
                since_s, ends = now_s, 0
            if len(self._ends) >= MAX_FAILING:
                del self._ends[next(iter(self._ends))]
            self._ends[key] = since_s, ends + 1
            if ends >= MAX_ENDS:
                return None
            known = self._failing.pop(key)
        return known.failures, max(0.0, now_s - known.since_s)


_SINK = _Sink()


class Logger:
    """Writes events; `bind` gives a logger whose events all carry the fields."""

    def __init__(self, name: str) -> None:
        self._service = name.removeprefix("agent.").rsplit(".", 1)[-1]

    def debug(self, event: str, **fields: object) -> None:
        _SINK.write(logging.DEBUG, event, {"in": self._service, **fields})

    def info(self, event: str, **fields: object) -> None:
        _SINK.write(logging.INFO, event, {"in": self._service, **fields})

    def warning(self, event: str, **fields: object) -> None:
        _SINK.write(logging.WARNING, event, {"in": self._service, **fields})

    def error(self, event: str, *, trace: str = "", **fields: object) -> None:
        _SINK.write(logging.ERROR, event, {"in": self._service, **fields}, trace)

    def failing(self, event: str, *, about: str = "", error: object, **fields: object) -> None:
        """Warn of a failure that a loop meets again and again, until it has `recovered`.

        Each reason once, then hourly with a count.
        """
        held = _SINK.failed(event, about, str(error))
        if held is None:
            return
        if held:
            fields["repeated"] = held
        if about:
            fields["about"] = about
        self.warning(event, error=error, **fields)

    def recovered(self, event: str, *, about: str = "") -> None:
        """Tell that the failure logged under `event` is over, if there was one."""
        over = _SINK.over(event, about)
        if over is None:
            return
        fields: dict[str, object] = {"about": about} if about else {}
        failures, lasted_s = over
        self.info("recovered", failure=event, **fields, failures=failures, lasted_s=lasted_s)


def get(name: str) -> Logger:
    """The logger of a module: `logs.get(__name__)`."""
    return Logger(name)


def _is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the stream is the one systemd connected; children inherit the variable, too.

    Source: systemd.exec(5), $JOURNAL_STREAM: device and inode of the stream.
    """
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return environ.get("JOURNAL_STREAM", "") == f"{found.st_dev}:{found.st_ino}"


def configure(
    *,
    form: str = "auto",
    level: str = "info",
    environ: Mapping[str, str] = os.environ,
    stream: TextIO | None = None,
) -> None:
    """Choose the shape of the lines: `logfmt`, `json`, `journal`, or `auto`.

    `auto` is `journal` when systemd connected our stderr to the journal, otherwise `logfmt`.
    """
    if form == "auto":
        form = "journal" if _is_journal(stream or sys.stderr, environ) else "logfmt"
    _SINK.format = form
    _SINK.level = getattr(logging, level.upper())
    _SINK.stream = stream


@contextmanager
def unblocked() -> Iterator[None]:
    """Meanwhile no thread waits for whoever reads stderr, and libraries' warnings go this way too.

    At the end what is not written yet is waited for, at most FLUSH_WITHIN_S. For one caller at a
    time.
    """
    try:
        fd = (_SINK.stream or sys.stderr).fileno()
    except (OSError, ValueError, AttributeError):  # not a file, closed, or none at all
        yield
        return
    queue = LineQueue(fd, _lost_line)
    before = logging.lastResort, threading.excepthook
    _SINK.queue = queue
    logging.lastResort, threading.excepthook = _Libraries(logging.WARNING), _thread_crashed
    try:
        yield
    finally:
        logging.lastResort, threading.excepthook = before
        _SINK.queue = None
        queue.close(within_s=FLUSH_WITHIN_S)


def _lost_line(lines: int) -> str:
    why = "nobody read the log, or it could not be written"
    return _SINK.rendered(logging.WARNING, "lines lost", {"in": "logs", "lines": lines, "why": why})


class _Libraries(logging.Handler):
    """What libraries log and nobody else takes; Python would write it to stderr and wait."""

    def emit(self, record: logging.LogRecord) -> None:
        level = logging.ERROR if record.levelno >= logging.ERROR else logging.WARNING
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        fields: dict[str, object] = {"in": record.name, "text": record.getMessage()}
        _SINK.write(level, "library warned", fields, trace)


def _thread_crashed(crash: threading.ExceptHookArgs) -> None:
    """What Python does with an exception that ends a thread, without waiting for stderr."""
    error = crash.exc_value or crash.exc_type()
    _SINK.write(
        logging.ERROR,
        "thread crashed",
        {"in": crash.thread.name if crash.thread else "", "error": repr(error)},
        "".join(traceback.format_exception(error)),
    )
