"""Python's own check of certificates, as strict as Python 3.13 and later have it."""

import ssl
from collections.abc import Callable
from typing import Any

import pytest
from urllib3.util.ssl_ import create_urllib3_context

STRICT = ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT


def be_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this Python check as much, whichever it is: the agent is shipped with such a one."""
    make: Callable[..., ssl.SSLContext] = create_urllib3_context

    def strict(*words: Any, **named: Any) -> ssl.SSLContext:
        context = make(*words, **named)
        context.verify_flags |= STRICT
        return context

    monkeypatch.setattr("urllib3.connection.create_urllib3_context", strict)
    monkeypatch.setattr("urllib3.util.ssl_.create_urllib3_context", strict)
