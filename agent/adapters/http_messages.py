"""What does a client ask, and how is it answered? HTTP/1 as bytes; no sockets here.

Heads and bodies come from anybody who can connect: reading them is total and bounded.
"""

from dataclasses import dataclass
from http import HTTPStatus

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
MAX_HEAD_BYTES = 8192
MAX_BODY_BYTES = 65_536
MAX_LENGTH_DIGITS = 9
GOES_ON = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, content type and body of a response."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, *, head_only: bool) -> bytes:
        """The bytes on the wire."""
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("ascii", "replace")
        return head if head_only else head + self.body


def plain(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Answer:
    """An answer in words."""
    return Answer(status, text.encode(), headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The request line and what of the headers matters here."""

    method: str
    path: str  # without the query
    accept: str
    lengths: tuple[str, ...]  # Content-Length as often as it was sent
    encoded: bool  # there is a Transfer-Encoding
    asks_to_go_on: bool  # the client waits for leave to send its body

    def body_bytes(self) -> int | Answer:
        """How long the body is, or why none is taken."""
        if self.encoded or not self.lengths:
            return plain(
                HTTPStatus.LENGTH_REQUIRED, "send the body with a Content-Length, not in chunks\n"
            )
        length = self.lengths[0]
        if len(set(self.lengths)) > 1 or not (length.isascii() and length.isdigit()):
            return plain(HTTPStatus.BAD_REQUEST, "the Content-Length is not one number\n")
        if len(length) > MAX_LENGTH_DIGITS or int(length) > MAX_BODY_BYTES:
            return plain(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body is longer than {MAX_BODY_BYTES} bytes\n",
            )
        return int(length)


def read_head(head: bytes) -> Head | Answer:
    """A complete head, without the empty line that ends it; whatever is in it."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 - method path version
        return plain(HTTPStatus.BAD_REQUEST, "not an HTTP/1 request\n")
    method, target, _ = words
    fields: dict[str, list[str]] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        fields.setdefault(name.lower(), []).append(value.strip(" \t"))
    return Head(
        method=method,
        path=target.partition("?")[0],
        accept=",".join(fields.get("accept", ())),
        lengths=tuple(fields.get("content-length", ())),
        encoded="transfer-encoding" in fields,
        asks_to_go_on=any(value.lower() == "100-continue" for value in fields.get("expect", ())),
    )
