"""Whom do we trust? As kubectl does, which goes by Go's rules.

Where a kubeconfig names no authority, those of the host, wherever they lie. OpenSSL looks where it
was built to look, and what is shipped with us was built elsewhere: on hosts of Red Hat's family it
found none, and an API server with a certificate of a public or a company's own authority was
trusted by kubectl alone.

An authority need not have every extension that RFC 5280 asks for. Python 3.13 and later refuse one
without key usage or key identifiers; those of MicroK8s and of clusters on EKS that are some years
old have none, and there the agent that is shipped reached no API server.
Sources: kubernetes-client/python, issue 2394; canonical/microk8s, issue 4864.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl

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


def context_of(connection: Any) -> "ssl.SSLContext":
    """What urllib3 makes for a connection of its HTTPSConnection, less the strictness.

    The authorities that the connection is told of it loads itself.
    """
    import ssl

    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context(cert_reqs=connection.cert_reqs)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not (connection.ca_certs or connection.ca_cert_dir or connection.ca_cert_data):
        context.load_default_certs()
    return context


def context_with_authorities(connection: Any) -> "ssl.SSLContext":
    """The same with the authorities, for the proxy before it, to which no more is told of them."""
    context = context_of(connection)
    files = connection.ca_certs, connection.ca_cert_dir, connection.ca_cert_data
    if any(files):
        context.load_verify_locations(*files)
    return context
