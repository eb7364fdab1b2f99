"""The journal of grants: one file per pod, lines as in `domain/grant_lines.py`.

A grant is on disk before anybody hears of it; that it was answered is written without fsync: it
only has to outlive us.

A line cut short by a crash says nothing, and is removed by the next agent that acts, or before the
next line is written. A file that says what no journal says is put aside with a log event: losing it
means that a repeated question is refused, nothing worse. One that cannot be read, as when a disk
reports an error that passes, is left where it is, and read again later (`tidy`).
"""

import contextlib
import errno
import json
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from agent import logs
from agent.adapters.safe_files import (
    check_single,
    opened_directory,
    read_small,
    refusing,
    write_all,
)
from agent.boundaries import passed
from agent.domain.grant_lines import decode_file, encode_record
from agent.domain.grants import GrantOwner, GrantRecord
from agent.domain.identities import is_identity
from agent.domain.retention import expired_journals
from agent.errors import NodeNotReady

log = logs.get(__name__)

FOLDER, SUFFIX, CORRUPT = "grants", ".jsonl", ".corrupt"
MAX_FILE_BYTES = 4 << 20
MAX_RECORDS = 10_000
PIECE_BYTES = 1 << 16

_POD_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", re.ASCII)

Key = tuple[str, str]  # pod uid, container


def _read_file(name: str, folder: int) -> list[GrantRecord]:
    """What a journal says, oldest first. Raises ValueError, OSError."""
    try:
        content = read_small(name, MAX_FILE_BYTES, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:  # not a failure that passes
            raise ValueError("it is a link") from error
        raise
    if content is None:
        raise ValueError("it is no file of a size that we write")
    records = list(decode_file(content.decode()).values())
    if any(is_identity(record.pod_uid) for record in records):
        records = records[-1:]  # it is one container's, under whichever of its names
    if any(name != _file_of(record) for record in records):
        raise ValueError("it speaks of another pod")
    return records


def told_by_cdi(state_dir: Path) -> int:
    """How many containers of a journal know their devices by CDI. Changes nothing.

    What cannot be read counts as one. Raises NodeNotReady.
    """
    count, folder = 0, state_dir / FOLDER
    with refusing("read the agent's journal", folder):
        try:
            with opened_directory(folder) as fd:
                for name in os.listdir(fd):  # noqa: PTH208 - of a descriptor
                    if name.endswith(SUFFIX):
                        count += _told_by_cdi(name, fd)
        except FileNotFoundError:
            return 0
    return count


def _told_by_cdi(name: str, folder: int) -> int:
    try:
        records = _read_file(name, folder)
    except ValueError:
        return 1
    return sum(bool(one.grant.cdi_devices or one.grant.annotations) for one in records)


# --- the journal ---------------------------------------------------------------------------------


class FileGrantLog:
    """Implements `GrantLog` in `<state dir>/grants`. Thread-safe."""

    def __init__(self, state_dir: Path) -> None:
        """Read what is there; a directory that cannot be read counts as empty."""
        self._folder = state_dir / FOLDER
        self._lock = threading.Lock()
        self._records: dict[Key, GrantRecord] = {}
        self._all: tuple[GrantRecord, ...] = ()
        self._listed = False  # the directory could be read
        self._unread: frozenset[str] = frozenset()  # files that could not
        self.reload()

    def reload(self) -> None:
        """Read the directory anew: another agent may have written until now. Never raises.

        Of what cannot be read, that counts which was known before.
        """
        with self._lock:
            try:
                with self._opened() as folder:
                    loaded = self._load(folder, os.listdir(folder))  # noqa: PTH208 - of a descriptor
            except NodeNotReady as error:
                log.failing("grants unreadable", error=error)
                self._listed = False
                return
            kept = [record for record in self._all if _file_of(record) in self._unread]
            self._change(lambda _: _by_age([*kept, *loaded]))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        with refusing("write the agent's journal", self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with opened_directory(self._folder) as fd:
                yield fd

    def _load(self, folder: int, names: Iterable[str]) -> list[GrantRecord]:
        """The records of these files; which of them could not be read is noted."""
        self._listed, self._unread = True, frozenset()
        log.recovered("grants unreadable")
        journals = sorted(name for name in names if name.endswith(SUFFIX))
        return [record for name in journals for record in self._load_file(name, folder)]

    def _load_file(self, name: str, folder: int) -> list[GrantRecord]:
        try:
            with refusing("read the agent's journal", self._folder / name):
                records = _read_file(name, folder)
        except NodeNotReady as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return []  # its pod was forgotten meanwhile
            log.failing("grants of a pod unreadable", about=name, error=error)
            self._unread |= {name}
            return []
        except ValueError as error:
            log.error("grants put aside", file=name, error=error)
            with contextlib.suppress(OSError):
                os.rename(name, name + CORRUPT, src_dir_fd=folder, dst_dir_fd=folder)
                passed("grants-put-aside")
            return []
        log.recovered("grants of a pod unreadable", about=name)
        return records

    def sweep(self) -> None:
        """Take away what was begun and never written; after `reload`, alone on the node.

        Of a line cut short nothing is left, nor of a file without a line: no grant stands in it, so
        nobody would ever forget it. Never raises; what cannot be changed does no harm.
        """
        with contextlib.suppress(NodeNotReady), self._lock, self._opened() as folder:
            for name in os.listdir(folder):  # noqa: PTH208 - of a descriptor
                if name.endswith(SUFFIX):
                    with contextlib.suppress(OSError):
                        self._sweep_file(name, folder)

    def _sweep_file(self, name: str, folder: int) -> None:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            check_single(fd, name, dir_fd=folder)
            size_bytes = _whole_lines(fd)
        finally:
            os.close(fd)
        if not size_bytes:
            os.unlink(name, dir_fd=folder)
            passed("grants-swept")

    # --- GrantLog

    def tidy(self, live_uids: Collection[str], *, now_s: float) -> None:
        """Read again what could not be read; take away what was put aside long ago."""
        try:
            with self._lock, self._opened() as folder:
                names = os.listdir(folder)  # noqa: PTH208 - of a descriptor
                self._load_again(folder, names)
                self._remove_aside(folder, names, live_uids, now_s)
        except NodeNotReady as error:
            log.failing("grants not tidied", error=error)
        else:
            log.recovered("grants not tidied")

    def records(self) -> tuple[GrantRecord, ...]:
        """All remembered grants, oldest first."""
        return self._all

    def record(self, record: GrantRecord) -> None:
        """Remember, on disk before returning. Raises NodeNotReady when the disk refuses."""
        with self._lock:
            self._append(record.pod_uid, encode_record(record), durable=True)
            self._change(lambda records: {**_without(records, record), _key(record): record})
            if len(self._records) > MAX_RECORDS:
                self._forget(frozenset({self._all[0].pod_uid}))

    def own(self, record: GrantRecord, owner: GrantOwner) -> GrantRecord | None:
        """Write down whose a grant turned out to be; None: it is not remembered any more.

        Not synced: kubelet says it again. An older agent reads these lines, too. Never raises.
        """
        with self._lock:
            known = self._records.get(_key(record))
            if known is None:
                return None
            named = replace(
                known,
                namespace=owner.namespace,
                pod_name=owner.pod_name,
                container=owner.container,
                owner_uid=owner.pod_uid,
            )
            self._change(
                lambda records: {
                    (_key(named) if key == _key(known) else key): named if held is known else held
                    for key, held in records.items()
                }
            )
            lines = [encode_record(named)]
            lines += [json.dumps({"answered": named.container})] if named.answered else []
            if named.container != known.container:  # last: cut short, the newer one counts
                lines.append(json.dumps({"dropped": known.container}))
            try:
                self._append(named.pod_uid, "\n".join(lines), durable=False)
            except NodeNotReady as error:
                log.failing("grant not noted", about=named.pod_uid, error=error)
            return named

    def answered(self, record: GrantRecord) -> None:
        """Remember that kubelet gets the answer; never raises."""
        with self._lock:
            if _key(record) not in self._records:
                return
            answered = replace(record, answered=True)
            self._change(lambda records: {**records, _key(record): answered})
            self._note(record, {"answered": record.container})

    def drop(self, record: GrantRecord) -> None:
        """Forget one container's grant; never raises."""
        with self._lock:
            self._change(lambda records: _without(records, record))
            others = any(uid == record.pod_uid for uid, _ in self._records)
            if others or _file_of(record) in self._unread:  # which may speak of others
                self._note(record, {"dropped": record.container})
            else:
                self._forget(frozenset({record.pod_uid}))

    def forget(self, pod_uids: frozenset[str]) -> None:
        """Drop all grants of these pods; never raises."""
        with self._lock:
            self._forget(pod_uids)

    # --- under the lock

    def _change(self, change: Callable[[dict[Key, GrantRecord]], dict[Key, GrantRecord]]) -> None:
        self._records = change(self._records)
        self._all = tuple(self._records.values())

    def _load_again(self, folder: int, names: Collection[str]) -> None:
        """What was written since counts beside it, and is younger."""
        wanted = self._unread.intersection(names) if self._listed else names
        if wanted or not self._listed:
            loaded = self._load(folder, wanted)
            self._change(lambda known: _by_age([*loaded, *known.values()]))

    def _remove_aside(
        self, folder: int, names: Iterable[str], live_uids: Collection[str], now_s: float
    ) -> None:
        ending, aside = SUFFIX + CORRUPT, []
        for name in names:
            if name.endswith(ending):
                with contextlib.suppress(FileNotFoundError):
                    moved_at_s = os.lstat(name, dir_fd=folder).st_ctime
                    aside.append((name.removesuffix(ending), moved_at_s))
        for uid in expired_journals(aside, live_uids, now_s=now_s):
            with contextlib.suppress(OSError):  # e.g. a directory, which is none of ours
                os.unlink(uid + ending, dir_fd=folder)
                passed("grants-aside-removed")

    def _forget(self, pod_uids: frozenset[str]) -> None:
        self._change(lambda records: {k: r for k, r in records.items() if k[0] not in pod_uids})
        try:
            with self._opened() as folder:
                for uid in filter(_POD_UID.fullmatch, pod_uids):
                    for name in (uid + SUFFIX, uid + SUFFIX + CORRUPT):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(name, dir_fd=folder)
                            passed("grants-forgotten")
        except NodeNotReady as error:
            log.failing("grants not forgotten", error=error)

    def _note(self, record: GrantRecord, entry: Mapping[str, str]) -> None:
        try:
            self._append(record.pod_uid, json.dumps(entry), durable=False)
        except NodeNotReady as error:
            log.failing("grant not noted", about=record.pod_uid, error=error)

    def _append(self, pod_uid: str, line: str, *, durable: bool) -> None:
        if not _POD_UID.fullmatch(pod_uid):
            raise NodeNotReady(f"the pod's uid {pod_uid[:80]!a} cannot be the name of a file")
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._opened() as folder:
            name = pod_uid + SUFFIX
            fd = os.open(name, flags, 0o600, dir_fd=folder)
            passed("grants-opened")
            size_bytes = 1  # what cannot even be looked at is not taken away
            try:
                check_single(fd, name, dir_fd=folder)
                size_bytes = _whole_lines(fd)
                self._append_line(fd, line, size_bytes, durable=durable)
            except OSError:
                if not size_bytes:
                    os.unlink(name, dir_fd=folder)
                raise
            finally:
                os.close(fd)
            if durable and not size_bytes:
                os.fsync(folder)

    def _append_line(self, fd: int, line: str, size_bytes: int, *, durable: bool) -> None:
        try:
            write_all(fd, line.encode() + b"\n")
            passed("grant-written")
            if durable:
                os.fsync(fd)
                passed("grant-synced")
        except OSError:
            os.ftruncate(fd, size_bytes)
            raise


def _whole_lines(fd: int) -> int:
    """Remove what a crash cut short: the next line must not continue it. Gives the size then."""
    size_bytes = whole_bytes = os.fstat(fd).st_size
    while whole_bytes:
        begin = max(0, whole_bytes - PIECE_BYTES)
        ends_at = os.pread(fd, whole_bytes - begin, begin).rfind(b"\n") + 1
        whole_bytes = begin + ends_at
        if ends_at:
            break
    if whole_bytes < size_bytes:
        os.ftruncate(fd, whole_bytes)
        passed("grants-cut")
    return whole_bytes


def _file_of(record: GrantRecord) -> str:
    return record.pod_uid + SUFFIX


def _by_age(records: Iterable[GrantRecord]) -> dict[Key, GrantRecord]:
    """By container, pods with the oldest grants first; of one container the last one counts."""
    newest = {_key(record): record for record in records}
    first_s: dict[str, float] = {}
    for record in newest.values():
        first_s.setdefault(record.pod_uid, record.granted_at_s)
    ordered = sorted(newest.items(), key=lambda item: (first_s[item[0][0]], item[0][0]))
    return dict(ordered[-MAX_RECORDS:])


def _key(record: GrantRecord) -> Key:
    return record.pod_uid, record.container


def _without(records: dict[Key, GrantRecord], record: GrantRecord) -> dict[Key, GrantRecord]:
    return {key: known for key, known in records.items() if key != _key(record)}
