"""Where the API server is and who we are: the official client's configuration, loaded lightly.

Two roads: the service account of a pod, and a kubeconfig. Both are the `kubernetes` package's own
loaders; what is ours is that they are imported without the rest of the package.
"""

import importlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from agent import logs
from agent.adapters import authorities, exec_plugin, proxies
from agent.adapters.embedded_files import EmbeddedFiles
from agent.errors import ConfigError

log = logs.get(__name__)

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Packages whose `__init__` imports everything below it. An empty module with the same search path
# in their place lets single submodules be imported.
_EAGER = ("kubernetes", "kubernetes.config", "kubernetes.utils")
_MARK = "_shell_of_vgpu_agent"
_IMPORTING = threading.Lock()  # another thread must not see the placeholders
_EMBEDDED = EmbeddedFiles()
# What kubeconfig support imports for `auth-provider: oidc` alone.
_OIDC_ONLY = ("oauthlib", "oauthlib.oauth2", "requests_oauthlib")


@dataclass(frozen=True, slots=True)
class ClientPackage:
    """The three parts of the `kubernetes` package that are used."""

    configuration: ModuleType  # kubernetes.client.configuration
    rest: ModuleType  # kubernetes.client.rest
    loader: ModuleType  # kubernetes.config.incluster_config or .kube_config
    light: bool  # False: the whole package had to be imported


def import_client(loader: str, *, oidc: bool = False) -> ClientPackage:
    """Import configuration, transport and one loader (`incluster_config` or `kube_config`).

    A plain `import kubernetes` runs an eager `__init__`: watch, stream, websockets, informers,
    models with pydantic, requests. None of it is used here, and all of it would stay in memory on
    every node and delay every start. What remains is mostly urllib3 and ssl.

    So the eager packages are replaced by empty ones while we import; the OAuth libraries, which
    only `auth-provider: oidc` needs, by placeholders, unless `oidc` is set. Should another version
    of the package not bear it, everything is imported the plain way and a warning says so.
    """
    with _IMPORTING:
        return _import_client(loader, oidc=oidc)


def _import_client(loader: str, *, oidc: bool) -> ClientPackage:
    present = sys.modules.get("kubernetes")
    if oidc or (present is not None and not hasattr(present, _MARK)):
        if oidc and hasattr(present, _MARK):
            _forget()
        return _import(loader, light=False)
    try:
        with _shells(), _placeholders(loader):
            return _import(loader, light=True)
    except Exception as error:  # noqa: BLE001 - whatever a later version trips over
        log.warning("kubernetes imported as a whole", why=f"{type(error).__name__}: {error}")
        _forget()
        return _import(loader, light=False)


def _import(loader: str, *, light: bool) -> ClientPackage:
    return ClientPackage(
        configuration=importlib.import_module("kubernetes.client.configuration"),
        rest=importlib.import_module("kubernetes.client.rest"),
        loader=importlib.import_module(f"kubernetes.config.{loader}"),
        light=light,
    )


def _forget() -> None:
    """Undo a light import: a plain one must not find what is half-made."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "kubernetes":
            del sys.modules[name]


@contextmanager
def _shells() -> Iterator[None]:
    """Put empty modules in place of the eager packages."""
    for name in _EAGER:
        if hasattr(sys.modules.get(name), _MARK):
            continue
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ImportError(f"no package {name}")
        shell = importlib.util.module_from_spec(spec)
        setattr(shell, _MARK, True)
        sys.modules[name] = shell
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, shell)
    yield


@contextmanager
def _placeholders(loader: str) -> Iterator[None]:
    """Let `kube_config` be imported without the libraries that only OIDC logins use."""
    if loader != "kube_config":
        yield
        return
    absent = [name for name in _OIDC_ONLY if name not in sys.modules]
    for name in absent:
        sys.modules[name] = ModuleType(name)
        parent, _, child = name.rpartition(".")
        if parent in absent:
            setattr(sys.modules[parent], child, sys.modules[name])
    if "requests_oauthlib" in absent:
        sys.modules["requests_oauthlib"].OAuth2Session = None  # type: ignore[attr-defined]
    client: Any = importlib.import_module("kubernetes.client")
    client.ApiClient = None  # brings all models and pydantic; used for the OIDC discovery alone
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
        del client.ApiClient


def in_a_pod_with_credentials(
    service_account_dir: Path = SERVICE_ACCOUNT_DIR, environ: Mapping[str, str] = os.environ
) -> bool:
    """Whether a service account's token is mounted here, and it is told where the API server is."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (service_account_dir / "token").exists()


def load_configuration(
    kubeconfig: Path | None,
    *,
    service_account_dir: Path = SERVICE_ACCOUNT_DIR,
    environ: Mapping[str, str] = os.environ,
) -> tuple[ClientPackage, Any]:
    """Read the credentials; give the package and a `kubernetes.client.Configuration`.

    Files are read anew by each call. A service account's token is also re-read by the package,
    each minute, and CA and client certificates by each new connection.

    Raises ConfigError.
    """
    if kubeconfig is not None:
        package, configuration = _from_kubeconfig(kubeconfig)
    else:
        package, configuration = _from_service_account(service_account_dir, environ)
    proxies.settle(configuration, environ)
    authorities.settle(configuration)
    _EMBEDDED.loaded()  # not before all is well: those that are in use stay in use otherwise
    configuration.retries = False  # ours know the deadline
    return package, configuration


def stamp_of(kubeconfig: Path | None) -> tuple[int, ...] | None:
    """What a kubeconfig is known by: another once it was written anew.

    None: there is none, or it cannot be seen.
    """
    try:
        seen = kubeconfig.stat() if kubeconfig else None
    except OSError:
        return None
    return (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns) if seen else None


def _from_service_account(folder: Path, environ: Mapping[str, str]) -> tuple[ClientPackage, Any]:
    package = import_client("incluster_config")
    configuration = package.configuration.Configuration()
    loader = package.loader.InClusterConfigLoader(
        token_filename=str(folder / "token"),
        cert_filename=str(folder / "ca.crt"),
        environ=environ,
    )
    try:
        loader.load_and_set(configuration)
        authorized = authorization(configuration)
    except (package.loader.ConfigException, OSError) as error:
        raise ConfigError(
            f"there is no API server to talk to: no kubeconfig is set and the service account of "
            f"a pod cannot be used ({error}); run in a pod, or set --kubeconfig to a file"
        ) from error
    if not authorized:
        raise ConfigError(
            f"the Python package kubernetes {_version()} sends no Authorization header from "
            "within a cluster (36.0.0 does not); install another version"
        )
    return package, configuration


def _from_kubeconfig(path: Path) -> tuple[ClientPackage, Any]:
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the kubeconfig {path} cannot be read ({error}); set --kubeconfig to a readable file, "
            "or to nothing in a pod with a service account"
        ) from error
    package = import_client("kube_config", oidc="auth-provider" in text)
    importlib.import_module("kubernetes.config.exec_provider").subprocess = exec_plugin  # type: ignore[attr-defined]
    loader: Any = package.loader
    loader._create_temp_file_with_content = _EMBEDDED.path_of  # noqa: SLF001 - no other way
    if not hasattr(loader.FileOrData, _MARK):
        loader.FileOrData = _as_kubectl_reads(loader.FileOrData)
    configuration = package.configuration.Configuration()
    try:
        with _root_errors() as errors:
            package.loader.load_kube_config(
                config_file=str(path), client_configuration=configuration, persist_config=False
            )
            authorized = authorization(configuration) or configuration.cert_file
    except Exception as error:  # YAML, exec plugins, missing files: each has its own exception
        raise ConfigError(
            f"the kubeconfig {path} cannot be used ({type(error).__name__}: {error}); check it "
            f"with `kubectl --kubeconfig {path} get nodes`"
        ) from error
    if errors and not authorized:  # the package only logs that an exec plugin failed
        raise ConfigError(
            f"the kubeconfig {path} gives no credentials ({errors[0]}); check its exec plugin with "
            f"`kubectl --kubeconfig {path} get nodes`"
        )
    return package, configuration


def _as_kubectl_reads(base: Any) -> Any:
    """The client's choice between a file and what is written in its place, but for two cases.

    What is empty, as templates leave it, is not there; and of a token and the file of one the file
    counts, because somebody renews it.
    """

    class FileOrData(base):  # type: ignore[misc]
        def __init__(
            self, obj: Any, file_key_name: str, data_key_name: str | None = None, **more: Any
        ) -> None:
            keys = (file_key_name, data_key_name or f"{file_key_name}-data")
            said = {key: obj[key] for key in keys if obj and key in obj and obj[key]}
            if file_key_name == "tokenFile" and file_key_name in said:
                said.pop("token", None)
            super().__init__(said, file_key_name, data_key_name, **more)

    setattr(FileOrData, _MARK, True)
    return FileOrData


class _Collector(logging.Handler):
    """Collects what the package says to nobody in particular."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def _root_errors() -> Iterator[list[str]]:
    """Collect errors logged to the root logger, instead of letting logging print them."""
    collector = _Collector()
    logging.getLogger().addHandler(collector)
    try:
        yield collector.messages
    finally:
        logging.getLogger().removeHandler(collector)


def authorization(configuration: Any) -> str:
    """Give the value of the Authorization header as of now; empty when there is none.

    Asking lets the package refresh what has expired, which may read files or run a program.
    """
    setting = configuration.auth_settings().get("BearerToken") or {}
    return str(setting.get("value") or "").strip()


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kubernetes")
    except PackageNotFoundError:
        return "(unknown version)"
