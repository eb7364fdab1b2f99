"""Certificates for tests over TLS: self-signed, P-256, made here so that no key is in the tree.

Enough of X.509 and ECDSA for OpenSSL to accept it on 127.0.0.1, and nothing more: the arithmetic is
not constant-time. Never use it for anything but tests.
"""

import base64
import hashlib
import secrets
import ssl
import textwrap
from dataclasses import dataclass
from pathlib import Path

# NIST P-256 (FIPS 186-4, D.1.2.3)
_P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_Point = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Identity:
    """A key and the certificate of its authority, as PEM; most are their own authority."""

    certificate: str
    key: str
    issued: str = ""  # the key's own certificate, where another key has signed it

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write `<name>.crt` and `<name>.key`; give their paths."""
        paths = folder / f"{name}.crt", folder / f"{name}.key"
        for path, text in zip(paths, (self.issued or self.certificate, self.key), strict=True):
            path.write_text(text)
        return paths

    def server_context(self, folder: Path, *, trusted_clients: str = "") -> ssl.SSLContext:
        """Give the context of a TLS server with this identity."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.write(folder, f"server-{secrets.token_hex(4)}"))
        if trusted_clients:
            context.load_verify_locations(cadata=trusted_clients)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def _add(a: _Point, b: _Point) -> _Point:
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % _P == 0:
        return None
    if a == b:
        slope = (3 * a[0] * a[0] - 3) * pow(2 * a[1], -1, _P) % _P
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, _P) % _P
    x = (slope * slope - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


def _multiply(factor: int) -> tuple[int, int]:
    result: _Point = None
    power: _Point = _G
    while factor:
        if factor & 1:
            result = _add(result, power)
        power = _add(power, power)
        factor >>= 1
    assert result is not None
    return result


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _der(0x30, *parts)


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    content = [first * 40 + second]
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        content += reversed(digits)
    return _der(0x06, bytes(content))


def _extension(dotted: str, content: bytes) -> bytes:
    return _sequence(_oid(dotted), _der(0x04, content))


def _pem(label: str, content: bytes) -> str:
    lines = "\n".join(textwrap.wrap(base64.b64encode(content).decode(), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


def make_identity(name: str = "test") -> Identity:
    """Make a key and a certificate that is its own authority, valid on 127.0.0.1 until 2049."""
    secret = _secret()
    key_id = hashlib.sha1(_public(secret), usedforsecurity=False).digest()
    more = (
        _extension("2.5.29.14", _der(0x04, key_id)),  # subjectKeyIdentifier
        _extension("2.5.29.35", _sequence(_der(0x80, key_id))),  # authorityKeyIdentifier
        _extension("2.5.29.15", _der(0x03, b"\x02\x84")),  # keyUsage: sign, sign certificates
    )
    return Identity(_certificate(name, secret, name, secret, *_CA, *_HERE, *more), _key(secret))


def make_bare_identity(name: str = "test") -> Identity:
    """One of an authority without key usage and key identifiers, as older clusters have."""
    authority, secret = _secret(), _secret()
    return Identity(
        _certificate(f"{name}-ca", authority, f"{name}-ca", authority, *_CA),
        _key(secret),
        issued=_certificate(name, secret, f"{name}-ca", authority, *_HERE),
    )


_CA = (_extension("2.5.29.19", _sequence(_der(0x01, b"\xff"))),)  # basicConstraints
_HERE = (_extension("2.5.29.17", _sequence(_der(0x87, bytes([127, 0, 0, 1])))),)  # subjectAltName


def _secret() -> int:
    return secrets.randbelow(_N - 1) + 1


def _public(secret: int) -> bytes:
    return b"\x04" + b"".join(number.to_bytes(32, "big") for number in _multiply(secret))


def _certificate(
    name: str, secret: int, issuer: str, issuer_secret: int, *extensions: bytes
) -> str:
    algorithm = _sequence(_oid("1.2.840.10045.2.1"), _oid("1.2.840.10045.3.1.7"))
    signature_algorithm = _sequence(_oid("1.2.840.10045.4.3.2"))  # ecdsa-with-SHA256
    body = _sequence(
        _der(0xA0, _integer(2)),
        _integer(secrets.randbits(63) + 1),
        signature_algorithm,
        _named(issuer),
        _sequence(_der(0x17, b"200101000000Z"), _der(0x17, b"491231235959Z")),  # validity
        _named(name),
        _sequence(algorithm, _der(0x03, b"\x00" + _public(secret))),
        _der(0xA3, _sequence(*extensions)),
    )
    signature = _der(0x03, b"\x00" + _signature(issuer_secret, body))
    return _pem("CERTIFICATE", _sequence(body, signature_algorithm, signature))


def _named(name: str) -> bytes:
    common_name = _sequence(_oid("2.5.4.3"), _der(0x0C, name.encode()))
    return _sequence(_der(0x31, common_name))


def _key(secret: int) -> str:
    key = _sequence(
        _integer(1),
        _der(0x04, secret.to_bytes(32, "big")),
        _der(0xA0, _oid("1.2.840.10045.3.1.7")),
        _der(0xA1, _der(0x03, b"\x00" + _public(secret))),
    )
    return _pem("EC PRIVATE KEY", key)


def _signature(secret: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    nonce = secrets.randbelow(_N - 1) + 1
    r = _multiply(nonce)[0] % _N
    s = pow(nonce, -1, _N) * (digest + r * secret) % _N
    return _sequence(_integer(r), _integer(s))
