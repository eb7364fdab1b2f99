"""Health, readiness and metrics over real HTTP, with clients that misbehave."""

import contextlib
import http.client
import io
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from waiting import eventually

from agent import logs
from agent.adapters import endpoints, listeners
from agent.adapters.endpoints import Door, Endpoints
from agent.adapters.http_messages import Answer, Head, read_head
from agent.adapters.listeners import TcpListener, parse_address
from agent.adapters.metrics import Metrics
from agent.adapters.routes import Route, answer, objection, probes, scraped
from agent.domain.enforcement import ContainerState, Reason, State
from agent.domain.gpu import Gpu, GpuInventory
from agent.domain.ownership import Rival
from agent.errors import ConfigError
from agent.supervisor import RestartPolicy, Supervisor

GPU = Gpu(uuid="GPU-a", index=0, name="NVIDIA A40", memory_mib=46068)
SICK = Gpu(uuid="GPU-b", index=1, name="NVIDIA A40", memory_mib=None, unhealthy_reason="XID 79")


@dataclass
class World:
    """What the endpoint reads, as the test sets it."""

    gpus: GpuInventory = field(default_factory=lambda: GpuInventory.of((GPU, SICK)))
    stuck: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    broken: bool = False
    of_containers: tuple[ContainerState, ...] = ()

    def inventory(self) -> GpuInventory:
        if self.broken:
            raise RuntimeError("broken")
        return self.gpus

    def service_restarts(self) -> Mapping[str, int]:
        return {"kubelet": 2}

    def registered(self) -> Mapping[str, bool]:
        return {"nvidia.com/gpu": True}

    def rivals(self) -> tuple[Rival, ...]:
        return ()

    def cache_directories(self) -> int:
        return 3

    def containers(self) -> tuple[ContainerState, ...]:
        return self.of_containers


@dataclass
class Running:
    """An endpoint being served."""

    service: Endpoints
    listener: TcpListener
    routes: dict[str, Route]
    world: World
    metrics: Metrics
    supervisor: Supervisor

    @property
    def port(self) -> int:
        return eventually(lambda: self.listener.port, what="the endpoint is bound")

    def ask(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        ) as connection:
            connection.request(method, path, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@pytest.fixture(name="written", autouse=True)
def log_to_memory(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    sink = logs._Sink()
    sink.stream = io.StringIO()
    monkeypatch.setattr(logs, "_SINK", sink)
    return sink.stream


Start = Callable[..., Running]


@pytest.fixture(name="start")
def starter() -> Iterator[Start]:
    supervisors = []

    def start(address: str = "127.0.0.1:0") -> Running:
        world = World()
        metrics = Metrics("1.2.3", world)
        listener = TcpListener(address)
        routes = {
            **probes(lambda: world.stuck, lambda: world.missing),
            "/metrics": scraped(metrics.render),
        }
        service = Endpoints([Door(listener, routes)])
        supervisor = Supervisor([service], policy=RestartPolicy(first_s=0.01))
        supervisors.append(supervisor)
        supervisor.start()
        return Running(service, listener, routes, world, metrics, supervisor)

    yield start
    for supervisor in supervisors:
        supervisor.stop()
        assert supervisor.join(timeout_s=10) == 0


@pytest.fixture(name="running")
def one_running(start: Start) -> Running:
    return start()


def read_all(sock: socket.socket) -> bytes:
    parts = []
    while data := sock.recv(65536):
        parts.append(data)
    return b"".join(parts)


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "stuck", "missing", "status", "body"),
    [
        pytest.param("/healthz", [], ["x"], 200, "ok\n", id="alive though not ready"),
        pytest.param("/healthz", ["gpus", "pods"], [], 503, "stuck: gpus\nstuck: pods\n", id="stuck"),
        pytest.param("/readyz", ["gpus"], [], 200, "ok\n", id="ready"),
        pytest.param("/readyz", [], ["not registered", "no driver"], 503, "not registered\nno driver\n", id="not ready"),
        pytest.param("/healthz?verbose", [], [], 200, "ok\n", id="a query is ignored"),
    ],
)  # fmt: skip
def test_probes(
    running: Running, path: str, stuck: list[str], missing: list[str], status: int, body: str
) -> None:
    running.world.stuck, running.world.missing = stuck, missing
    answered, headers, text = running.ask(path)
    assert (answered, text) == (status, body)
    assert headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize("path", ["/", "/metricsx", "/healthz/x", "*", "//"])
def test_other_paths_are_told_what_there_is(running: Running, path: str) -> None:
    status, _, text = running.ask(path)
    assert status == 404
    assert text.splitlines()[1:] == ["/healthz", "/readyz", "/metrics"]


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/nothing"])
def test_head_is_get_without_the_body(running: Running, path: str) -> None:
    status, headers, _ = running.ask(path)
    head_status, head_headers, body = running.ask(path, "HEAD")
    assert (head_status, body) == (status, "")
    assert headers["Content-Type"] == head_headers["Content-Type"]
    assert int(head_headers["Content-Length"]) > 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(running: Running, method: str) -> None:
    status, headers, _ = running.ask("/healthz", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def headed(size_bytes: int) -> bytes:
    """A request whose header has this size, without the empty line at its end."""
    start = b"GET /healthz HTTP/1.1\r\nX: "
    return start + b"x" * (size_bytes - len(start)) + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(b"GET /healthz HTTP/1.0\r\n\r\n", b"200", id="HTTP/1.0"),
        pytest.param(b"GET /healthz\r\n\r\n", b"400", id="HTTP/0.9"),
        pytest.param(b"GET  /healthz HTTP/1.1\r\n\r\n", b"400", id="two blanks"),
        pytest.param(b"\r\n\r\n", b"400", id="nothing"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400", id="TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400", id="HTTP/2"),
        pytest.param(b"GET /\xff\xfe HTTP/1.1\r\n\r\n", b"404", id="bytes that are no text"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000, b"431", id="endless header"),
        pytest.param(headed(8192), b"200", id="as long a header as may be"),
        pytest.param(headed(8193), b"431", id="a byte more"),
    ],
)
def test_odd_requests(running: Running, request_bytes: bytes, status: bytes) -> None:
    with running.connect() as sock:
        sock.sendall(request_bytes)
        assert read_all(sock).split(b" ")[1] == status


def test_a_request_may_come_byte_by_byte(running: Running) -> None:
    with running.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n":
            sock.sendall(bytes((byte,)))
        assert read_all(sock).endswith(b"\r\n\r\nok\n")


@settings(max_examples=60)
@given(head=st.binary(max_size=200))
def test_any_request_gets_an_answer(head: bytes) -> None:
    routes = probes(list, list)
    read = read_head(head)
    if isinstance(read, Head):
        read = objection(routes, read) or answer(routes, read, b"")
    assert isinstance(read, Answer)
    assert read.encode(head_only=False).startswith(b"HTTP/1.1 ")


def test_a_broken_collector_does_not_end_the_probes(running: Running, written: io.StringIO) -> None:
    running.world.broken = True
    assert running.ask("/metrics")[0] == 500
    assert running.ask("/healthz")[0] == 200
    assert "RuntimeError" in written.getvalue()
    assert running.supervisor.restarts() == {"endpoints": 0}


def test_no_access_log(running: Running, written: io.StringIO) -> None:
    running.ask("/healthz")
    running.ask("/nothing")
    assert [line.split()[2] for line in written.getvalue().splitlines()] == ["endpoint_bound"]


# --- clients that misbehave ----------------------------------------------------------------------


def test_silent_clients_block_nobody(running: Running) -> None:
    with contextlib.ExitStack() as open_sockets:
        for _ in range(endpoints.MAX_CONNECTIONS + 20):
            sock = open_sockets.enter_context(running.connect())
            sock.sendall(b"GET /heal")
        assert running.ask("/healthz")[0] == 200
        assert len(running.service._talks) <= endpoints.MAX_CONNECTIONS
    assert threading.active_count() < 20, "clients cost no threads"


def test_a_silent_client_is_let_go(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "TALK_WITHIN_S", 0.05)
    running = start()
    with running.connect() as sock:
        assert read_all(sock) == b""
    eventually(lambda: not running.service._talks)


def test_a_client_that_does_not_read_blocks_nobody(running: Running) -> None:
    running.routes["/metrics"] = scraped(lambda _: (b"x" * 50_000_000, "text/plain"))
    with running.connect() as deaf:
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert running.ask("/healthz")[0] == 200
        assert len(read_all(deaf)) > 50_000_000, "and it still gets everything when it reads"


def test_a_client_that_goes_away_harms_nobody(running: Running) -> None:
    for part in (b"", b"GET /metrics", b"GET /metrics HTTP/1.1\r\n\r\n"):
        sock = running.connect()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # end by reset
        sock.sendall(part)
        sock.close()
    assert running.ask("/healthz")[0] == 200
    assert running.supervisor.restarts() == {"endpoints": 0}


# --- where it listens ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        pytest.param(":9394", ("", 9394), id="every address"),
        pytest.param("127.0.0.1:0", ("127.0.0.1", 0), id="IPv4"),
        pytest.param("[::1]:80", ("::1", 80), id="IPv6"),
        pytest.param("localhost:1", ("localhost", 1), id="localhost"),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "9394", ":", ":x", ":-1", ":65536", "::1:80", "[127.0.0.1]:80", "example.com:80", "[::1]"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="such as :9394"):
        parse_address(text)


@given(text=st.text(max_size=30))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        _, port = parse_address(text)
    except ConfigError:
        return
    assert 0 <= port <= 65535


def has_ipv6() -> bool:
    try:
        listeners.listen("::1", 0).close()
    except listeners.EndpointUnavailable:
        return False
    return True


@pytest.mark.parametrize(
    ("address", "client"),
    [
        pytest.param("localhost:0", "127.0.0.1", id="localhost"),
        pytest.param(
            "[::1]:0",
            "::1",
            id="IPv6",
            marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6"),
        ),
    ],
)
def test_listening(start: Start, address: str, client: str) -> None:
    port = start(address).port
    with contextlib.closing(http.client.HTTPConnection(client, port, timeout=60)) as connection:
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200


def test_a_port_in_use_is_told_and_tried_again(
    start: Start, monkeypatch: pytest.MonkeyPatch, written: io.StringIO
) -> None:
    monkeypatch.setattr(endpoints, "REBIND_EVERY_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as other:
        running = start(f"127.0.0.1:{other.getsockname()[1]}")
        eventually(lambda: "endpoint_not_bound" in written.getvalue())
        assert running.listener.port == 0
    assert running.ask("/healthz")[0] == 200
    line = next(row for row in written.getvalue().splitlines() if "endpoint_not_bound" in row)
    assert "set --metrics-bind-address" in line
    assert running.supervisor.restarts() == {"endpoints": 0}, "no crash, so no giving up"


def test_after_a_stop_the_port_is_free(start: Start) -> None:
    running = start()
    port = running.port
    running.supervisor.stop()
    running.supervisor.join(timeout_s=10)
    assert running.listener.port == 0
    socket.create_server(("127.0.0.1", port)).close()


# --- metrics -------------------------------------------------------------------------------------


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def bump(metrics: Metrics) -> None:
    metrics.api_request("patch", "pods", 200)
    metrics.api_request("patch", "pods", 200)
    metrics.api_request("watch", "nodes", 0)
    metrics.allocation("granted", 0.004)
    metrics.allocation("no_pending_pod", 3.0)
    metrics.registration("nvidia.com/gpu", "ok")
    metrics.gpu_found("GPU-a")
    metrics.health_transition("GPU-b", "unhealthy")
    metrics.xid_error("GPU-b", 79)
    metrics.register_write("ok")
    metrics.grant_mismatch()


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        pytest.param("vgpu_agent_info", {"version": "1.2.3"}, 1, id="version"),
        pytest.param("vgpu_driver_up", {}, 1, id="driver"),
        pytest.param("vgpu_gpu_healthy", {"gpu": "GPU-a", "index": "0"}, 1, id="healthy GPU"),
        pytest.param("vgpu_gpu_healthy", {"gpu": "GPU-b", "index": "1"}, 0, id="unhealthy GPU"),
        pytest.param("vgpu_gpu_memory_bytes", {"gpu": "GPU-a"}, 46068 * 2**20, id="memory"),
        pytest.param("vgpu_service_restarts_total", {"service": "kubelet"}, 2, id="restarts"),
        pytest.param("vgpu_kubelet_registered", {"resource": "nvidia.com/gpu"}, 1, id="registered"),
        pytest.param("vgpu_cache_directories", {}, 3, id="cache directories"),
        pytest.param("vgpu_api_requests_total", {"verb": "patch", "resource": "pods", "code": "200"}, 2, id="API requests"),
        pytest.param("vgpu_api_requests_total", {"verb": "watch", "resource": "nodes", "code": "none"}, 1, id="no answer"),
        pytest.param("vgpu_allocations_total", {"outcome": "granted"}, 1, id="granted"),
        pytest.param("vgpu_allocations_total", {"outcome": "no_pending_pod"}, 1, id="refused"),
        pytest.param("vgpu_allocate_seconds_bucket", {"le": "0.005"}, 1, id="a quick Allocate"),
        pytest.param("vgpu_allocate_seconds_bucket", {"le": "2.5"}, 1, id="a slow one is above"),
        pytest.param("vgpu_allocate_seconds_count", {}, 2, id="Allocates"),
        pytest.param("vgpu_kubelet_registrations_total", {"resource": "nvidia.com/gpu", "outcome": "ok"}, 1, id="registrations"),
        pytest.param("vgpu_gpu_health_transitions_total", {"gpu": "GPU-b", "to": "unhealthy"}, 1, id="transitions"),
        pytest.param("vgpu_gpu_health_transitions_total", {"gpu": "GPU-a", "to": "unhealthy"}, 0, id="none yet"),
        pytest.param("vgpu_xid_errors_total", {"gpu": "GPU-b", "xid": "79"}, 1, id="XIDs"),
        pytest.param("vgpu_node_register_writes_total", {"outcome": "ok"}, 1, id="node writes"),
        pytest.param("vgpu_node_register_writes_total", {"outcome": "failed"}, 0, id="a zero to begin with"),
        pytest.param("vgpu_grant_mismatches_total", {}, 1, id="mismatches"),
    ],
)  # fmt: skip
def test_metrics(name: str, labels: dict[str, str], value: float) -> None:
    metrics = Metrics("1.2.3", World())
    bump(metrics)
    body, _ = metrics.render("")
    assert samples(body.decode())[name, tuple(sorted(labels.items()))] == value


def test_metrics_over_http(running: Running) -> None:
    status, headers, text = running.ask("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    names = {name for name, _ in samples(text)}
    assert {"vgpu_agent_info", "process_resident_memory_bytes", "process_open_fds"} <= names
    assert not any(name.endswith("_created") for name in names)


def test_openmetrics_on_request(running: Running) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"
    _, headers, text = running.ask("/metrics", headers={"Accept": accept})
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")


def test_a_vanished_gpu_vanishes(running: Running) -> None:
    assert 'gpu="GPU-b"' in running.ask("/metrics")[2]
    running.world.gpus = GpuInventory.of((GPU,))
    assert 'gpu="GPU-b"' not in running.ask("/metrics")[2]


@pytest.mark.parametrize(
    ("state", "reason", "value"),
    [
        pytest.param(State.ENFORCED, Reason.NONE, 1, id="enforced"),
        pytest.param(State.IDLE, Reason.IDLE, 1, id="idle"),
        pytest.param(State.NOT_ENFORCEABLE, Reason.MUSL, 0, id="not enforceable"),
        pytest.param(State.UNLIMITED, Reason.WHOLE_GPU, 1, id="nothing to hold"),
        pytest.param(State.OFF, Reason.OFF, 0, id="switched off"),
        pytest.param(State.UNKNOWN, Reason.UNSEEN, 0, id="unknown"),
    ],
)
def test_whether_limits_hold(running: Running, state: State, reason: Reason, value: int) -> None:
    one = ContainerState(namespace="ns", pod="p", container="c", state=state, reason=reason)
    running.world.of_containers = (one,)
    labels = {"namespace": "ns", "pod": "p", "container": "c", "reason": reason.value}
    found = samples(running.ask("/metrics")[2])
    assert found["vgpu_container_enforced", tuple(sorted(labels.items()))] == value
    running.world.of_containers = ()
    assert "vgpu_container_enforced{" not in running.ask("/metrics")[2], "gone with the container"


@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param(GpuInventory(), id="not read yet"),
        pytest.param(GpuInventory(known=True, driver_error="no driver"), id="no driver"),
    ],
)
def test_without_a_driver(running: Running, gpus: GpuInventory) -> None:
    running.world.gpus = gpus
    assert samples(running.ask("/metrics")[2])["vgpu_driver_up", ()] == 0


def test_every_metric_has_a_sentence_of_help() -> None:
    metrics = Metrics("1", World())
    bump(metrics)
    for family in text_string_to_metric_families(metrics.render("")[0].decode()):
        if family.name.startswith("vgpu_"):
            assert family.documentation.endswith("."), family.name
            assert len(family.documentation) > 40, family.name


def test_counting_from_many_threads() -> None:
    metrics = Metrics("1", World())
    threads = [
        threading.Thread(target=lambda: [metrics.xid_error("GPU-a", 31) for _ in range(500)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = samples(metrics.render("")[0].decode())
    assert found["vgpu_xid_errors_total", (("gpu", "GPU-a"), ("xid", "31"))] == 4000
