"""The stand-in runtime: a process has exactly the env and mounts it was given."""

import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from built_hook import built, sim_libraries
from waiting import eventually

from agent.sim.container import (
    Container,
    ContainerError,
    SimMount,
    decode_answer,
    host_environment,
    host_path,
    namespaces_allowed,
)
from agent.sim.driver import SimDriver, made_up_uuid

GPU = made_up_uuid(0)
HOOK_DIR = "/usr/local/vgpu"


@pytest.fixture
def driver(tmp_path: Path) -> SimDriver:
    sim = SimDriver(tmp_path, libraries=sim_libraries())
    sim.add_gpu()
    return sim


@pytest.fixture(params=["namespaces", "host"])
def isolated(request: pytest.FixtureRequest) -> bool:
    if request.param == "namespaces" and not namespaces_allowed(sim_libraries() / "sim-container"):
        pytest.skip("this user may not make namespaces here")
    return bool(request.param == "namespaces")


@pytest.fixture
def start(driver: SimDriver, isolated: bool) -> Iterator[Callable[..., Container]]:
    """Starts containers and ends them with the test."""
    started: list[Container] = []

    def start_one(**what: object) -> Container:
        what = {"driver": driver, "env": {}, "isolated": isolated, **what}
        started.append(Container.start("main", **what))  # type: ignore[arg-type]
        return started[-1]

    yield start_one
    for container in started:
        container.stop()


def granted(tmp_path: Path, limit: str = "1000m") -> dict[str, object]:
    """Env and mounts as an Allocate answers them."""
    cache = tmp_path / "containers" / "uid_main"
    cache.mkdir(parents=True, exist_ok=True)
    preload = tmp_path / "ld.so.preload"
    preload.write_text(f"{HOOK_DIR}/libvgpu.so\n")
    return {
        "env": {
            "NVIDIA_VISIBLE_DEVICES": GPU,
            "CUDA_DEVICE_MEMORY_LIMIT_0": limit,
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{HOOK_DIR}/some.cache",
        },
        "mounts": [
            SimMount(f"{HOOK_DIR}/libvgpu.so", str(built() / "libvgpu.so")),
            SimMount(HOOK_DIR, str(cache), read_only=False),
            SimMount("/etc/ld.so.preload", str(preload)),
        ],
    }


def test_a_granted_container_is_limited(
    start: Callable[..., Container], tmp_path: Path, isolated: bool
) -> None:
    container = start(**granted(tmp_path))
    assert container.isolated is isolated
    assert container.ready is not None
    (device,) = container.ready.devices
    assert (device.uuid, device.total_mib, device.total_mem_mib) == (GPU, 1000, 1000)
    assert container.ask("alloc 900").ok
    refused = container.ask("alloc 200")
    assert (refused.ok, refused.result, refused.refused, refused.held_mib) == (False, 2, 1, 900)
    assert (tmp_path / "containers" / "uid_main" / "some.cache").exists()
    assert container.ask("free").held_mib == 0


def test_without_a_grant_there_is_no_limit(start: Callable[..., Container]) -> None:
    container = start()
    assert container.ask("alloc 46068").ok


def test_the_pid_is_the_one_the_driver_lists(
    start: Callable[..., Container], driver: SimDriver
) -> None:
    container = start()
    container.ask("alloc 7")
    state = (driver.config_path.parent / "node.conf.state").read_bytes()
    assert container.pid.to_bytes(4, "little") in state
    assert Path(f"/proc/{container.pid}").exists()


@pytest.mark.parametrize("end", [Container.kill, Container.stop], ids=["killed", "stopped"])
def test_a_container_that_ends_gives_its_memory_back(
    start: Callable[..., Container], tmp_path: Path, end: Callable[[Container], None]
) -> None:
    first, second = start(**granted(tmp_path)), start(**granted(tmp_path))
    assert first.ask("alloc 1000").ok
    assert not second.ask("alloc 1").ok
    end(first)
    assert not first.running
    assert second.ask("alloc 1000").ok
    end(first)  # harmless


def test_a_container_that_ended_says_so(start: Callable[..., Container]) -> None:
    container = start()
    assert container.ask("exit").ok
    eventually(lambda: not container.running)
    with pytest.raises(ContainerError, match="ended"):
        container.ask("info")


def test_no_gpu_no_cuda(start: Callable[..., Container]) -> None:
    container = start(env={"NVIDIA_VISIBLE_DEVICES": "none"})
    assert container.ready is not None
    assert not container.ready.ok
    assert container.ready.result == 100


def test_with_void_those_gpus_are_there_whose_device_nodes_are(
    start: Callable[..., Container], isolated: bool
) -> None:
    """CDI gives nodes and sets the variable, so that no other toolkit gives more."""
    void = {"NVIDIA_VISIBLE_DEVICES": "void"}
    nothing = start(env=void).ready
    assert nothing is not None
    assert (nothing.ok, nothing.result) == (False, 100)
    if isolated:  # else the nodes are the host's
        container = start(
            env=void, devices=[SimMount("/dev/nvidia0", "/dev/null", read_only=False)]
        )
        assert [gpu.uuid for gpu in container.ask("info").devices] == [GPU]


def test_a_mount_without_a_source_is_an_error_that_names_it(
    start: Callable[..., Container], tmp_path: Path
) -> None:
    with pytest.raises(ContainerError, match=str(tmp_path / "nowhere")):
        start(mounts=[SimMount("/data", str(tmp_path / "nowhere"))])


def test_a_silent_container_is_not_waited_for_for_ever(start: Callable[..., Container]) -> None:
    container = start(command=["/bin/sleep", "60"])
    with pytest.raises(ContainerError, match="silent"):
        container.ask("info", timeout_s=0.05)


def test_env_is_the_grants_and_little_else(start: Callable[..., Container]) -> None:
    container = start(env={"A": "1", "B": "two words = \n twice"}, command=["/usr/bin/env", "-0"])
    code, out, _ = container.wait()
    seen = dict(line.split("=", 1) for line in out.split("\0") if line)
    assert code == 0
    assert seen.pop("A") == "1"
    assert seen.pop("B") == "two words = \n twice"
    assert set(seen) == {"PATH", "HOSTNAME", "LD_LIBRARY_PATH", "VGPU_SIM_DRIVER"}


# --- with namespaces only ---------------------------------------------------------------------------


@pytest.fixture
def inside(driver: SimDriver) -> Callable[..., tuple[int, str, str]]:
    """Runs a shell command in a container with a root of its own."""
    if not namespaces_allowed(sim_libraries() / "sim-container"):
        pytest.skip("this user may not make namespaces here")

    def run(command: str, *mounts: SimMount) -> tuple[int, str, str]:
        container = Container.start(
            "main",
            driver=driver,
            env={},
            mounts=mounts,
            command=["/bin/sh", "-c", command],
            isolated=True,
        )
        return container.wait()

    return run


def test_mounts_are_where_they_were_asked_for(
    inside: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    shared, file = tmp_path / "shared", tmp_path / "file"
    shared.mkdir()
    file.write_text("content")
    code, out, err = inside(
        "cat /etc/some.conf /usr/bin/tool /usr/local/vgpu/inner && echo made > /usr/local/vgpu/made",
        SimMount("/usr/local/vgpu/inner", str(file)),  # before its parent, as upstream sends it
        SimMount("/usr/local/vgpu", str(shared), read_only=False),
        SimMount("/etc/some.conf", str(file)),
        SimMount("/usr/bin/tool", str(file)),
    )
    assert (code, out, err) == (0, "content" * 3, "")
    assert (shared / "made").read_text() == "made\n"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("echo x > /data/file", id="write a file"),
        pytest.param("rm /data/file", id="remove a file"),
        pytest.param("touch /data/other", id="make a file"),
        pytest.param("echo x > /bin/sh", id="write a program of the image"),
        pytest.param("touch /usr/lib/x", id="make a library of the image"),
        pytest.param("echo x > /etc/passwd", id="write the image's users"),
    ],
)
def test_read_only_is_read_only(
    inside: Callable[..., tuple[int, str, str]], tmp_path: Path, command: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_text("content")
    code, _, err = inside(command, SimMount("/data", str(data)))
    assert code != 0
    assert "Read-only" in err
    assert [entry.name for entry in data.iterdir()] == ["file"]
    assert (data / "file").read_text() == "content"


def test_the_host_is_out_of_reach(
    inside: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_text("the host's")
    code, out, _ = inside(f"cat {secret}; ls /")
    secret.unlink()
    assert code == 0
    assert "the host's" not in out
    assert {"home", "root", "boot", "sys"}.isdisjoint(out.split())


@pytest.mark.parametrize(
    ("container_path", "complaint"),
    [
        pytest.param("relative", "absolute path", id="relative"),
        pytest.param("/data/../etc", "absolute path", id="climbing"),
    ],
)
def test_odd_mount_points_are_refused(
    inside: Callable[..., tuple[int, str, str]], tmp_path: Path, container_path: str, complaint: str
) -> None:
    code, _, err = inside("true", SimMount(container_path, str(tmp_path)))
    assert code == 78
    assert complaint in err


def test_a_command_that_is_not_there(driver: SimDriver) -> None:
    if not namespaces_allowed(sim_libraries() / "sim-container"):
        pytest.skip("this user may not make namespaces here")
    container = Container.start(
        "main", driver=driver, env={}, command=["/no/such/program"], isolated=True
    )
    code, _, err = container.wait()
    assert code == 127
    assert "/no/such/program" in err


# --- without ----------------------------------------------------------------------------------------

MOUNTS = (
    SimMount("/usr/local/vgpu", "/host/dir", read_only=False),
    SimMount("/usr/local/vgpu/libvgpu.so", "/opt/libvgpu.so.1"),
    SimMount("/tmp/vgpulock", "/tmp/vgpulock"),
)


@pytest.mark.parametrize(
    ("inside_path", "on_host"),
    [
        pytest.param("/usr/local/vgpu/a.cache", "/host/dir/a.cache", id="in a mounted directory"),
        pytest.param("/usr/local/vgpu", "/host/dir", id="the directory itself"),
        pytest.param(
            "/usr/local/vgpu/libvgpu.so", "/opt/libvgpu.so.1", id="the deepest mount wins"
        ),
        pytest.param("/usr/local/vgpu2/x", "/usr/local/vgpu2/x", id="only looks like it"),
        pytest.param("/etc/passwd", "/etc/passwd", id="not mounted"),
    ],
)
def test_paths_are_translated_through_the_mounts(inside_path: str, on_host: str) -> None:
    assert host_path(inside_path, MOUNTS) == on_host


def test_the_mounted_preload_file_becomes_a_variable(tmp_path: Path) -> None:
    preload = tmp_path / "ld.so.preload"
    preload.write_text("/usr/local/vgpu/libvgpu.so\n/lib/other.so\n")
    env = host_environment(
        {"CACHE": "/usr/local/vgpu/x.cache", "PATH": "/usr/local/vgpu:/bin", "N": "3000m"},
        [*MOUNTS, SimMount("/etc/ld.so.preload", str(preload))],
    )
    assert env == {
        "CACHE": "/host/dir/x.cache",
        "PATH": "/usr/local/vgpu:/bin",
        "N": "3000m",
        "LD_PRELOAD": "/opt/libvgpu.so.1 /lib/other.so",
    }
    assert "LD_PRELOAD" not in host_environment({}, MOUNTS)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"hello", id="no JSON"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b'{"command":"x"}', id="half of it"),
    ],
)
def test_an_answer_that_is_none_is_an_error(line: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode_answer(line)


def test_this_machine_is_one_the_hook_is_built_for() -> None:
    assert platform.machine() in {"x86_64", "aarch64"}
