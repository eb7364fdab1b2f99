"""Whom do we trust where a kubeconfig names no authority? Those of the host, wherever they lie.

OpenSSL looks where it was built to look, and what is shipped with us was built elsewhere: on hosts
of Red Hat's family it found none, and an API server with a certificate of a public or a company's
own authority was trusted by kubectl alone.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Source: Go's crypto/x509, whose order kubectl goes by.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian and its family
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat's family
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",  # Alpine
)
SAID_OTHERWISE = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # OpenSSL goes by them itself


def settle(configuration: Any, environ: Mapping[str, str] = os.environ) -> None:
    """Give a `kubernetes.client.Configuration` that names no authority the host's."""
    if configuration.ssl_ca_cert or any(environ.get(name) for name in SAID_OTHERWISE):
        return
    configuration.ssl_ca_cert = next((path for path in BUNDLES if Path(path).is_file()), None)
