"""CDI files: what is found of a driver on a host, what is written, and that it is what CDI asks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.adapters.cdi_files import HostCdiFiles
from agent.adapters.driver_files import HostDriverFiles
from agent.domain.cdi import (
    CdiHook,
    CdiMount,
    CdiNode,
    CdiSpec,
    Edits,
    encode,
    nameable,
    with_every,
)
from agent.domain.gpu import Gpu, GpuInventory, MigDevice
from agent.domain.grant_plan import GrantPolicy, Named, base_grant
from agent.errors import NodeNotReady
from agent.services.cdi_specs import CdiSpecs
from agent.services.published import Published
from tests.cdi_schema import check_cdi

LIB = "usr/lib/x86_64-linux-gnu"
VERSION = "570.86.15"
FILES = (
    f"{LIB}/libcuda.so.{VERSION}",
    f"{LIB}/libnvidia-ml.so.{VERSION}",
    f"{LIB}/libfoo.so.1.2.3",
    "usr/bin/nvidia-smi",
    "run/nvidia-persistenced/socket",
    f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
    *(f"dev/{name}" for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "gdrdrv", "nvidia-fs0")),
    *("dev/infiniband/uverbs0", "dev/infiniband/rdma_cm", "dev/dri/card1", "dev/dri/renderD128"),
)
GPU = Gpu(uuid="GPU-a", index=0, name="A", memory_mib=1, minor=0, pci_bus_id="00000000:17:00.0")
MIG = MigDevice(
    uuid="MIG-a", profile="1g.5gb", memory_mib=1, gpu_instance=1, compute_instance=0,
    device_nodes=("/dev/nvidia-caps/nvidia-cap3",),
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a driver."""
    root = tmp_path / "host"
    for name in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (root / LIB / "libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    (root / LIB / "libcuda.so").symlink_to("libcuda.so.1")
    (root / LIB / "libfoo.so").symlink_to("libfoo.so.1.2.3")
    (root / LIB / "libevil.so").symlink_to("/etc/passwd")
    drm = root / "sys/bus/pci/devices/0000:17:00.0/drm"
    for name in ("card1", "renderD128", "controlD64"):
        (drm / name).mkdir(parents=True)
    return root


def files(root: Path, **more: Any) -> HostDriverFiles:
    return HostDriverFiles(driver_root=root, sysfs=root / "sys", **more)


def mounted(edits: Edits) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def test_libraries_have_all_their_names_where_no_hook_makes_links(root: Path) -> None:
    found = mounted(files(root).driver())
    cuda = f"{root}/{LIB}/libcuda.so.{VERSION}"
    assert found[f"/{LIB}/libcuda.so.{VERSION}"] == cuda
    assert found[f"/{LIB}/libcuda.so.1"] == found[f"/{LIB}/libcuda.so"] == cuda
    assert not [path for path in found if "foo" in path or "evil" in path], "not the driver's"
    assert {"/usr/bin/nvidia-smi", "/run/nvidia-persistenced/socket"} <= set(found)
    assert f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin" in found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"{LIB}/libnvidia-nvvm70.so.4", id="a library with no version in its name"),
        pytest.param(f"{LIB}/libnvidia-egl-gbm.so.1.1.2", id="a library with a version of its own"),
        pytest.param(f"{LIB}/vdpau/libvdpau_nvidia.so.{VERSION}", id="a module of VDPAU"),
        pytest.param(f"{LIB}/xorg/modules/drivers/nvidia_drv.so", id="a module of X"),
        pytest.param(
            "usr/lib/xorg/modules/drivers/nvidia_drv.so", id="a module of X, Debian's place"
        ),
        pytest.param("usr/lib64/xorg/modules/updates/drivers/nvidia_drv.so", id="a newer one"),
        pytest.param(f"{LIB}/nvidia/xorg/nvidia_drv.so", id="a module of X, Ubuntu's place"),
        pytest.param(f"{LIB}/xorg/modules/updates/drivers/nvidia_drv.so", id="beside libraries"),
        pytest.param("etc/OpenCL/vendors/nvidia.icd", id="OpenCL"),
        pytest.param(f"lib/firmware/nvidia/{VERSION}/ucodes_x.bin", id="firmware of r615"),
        pytest.param("usr/share/vulkan/icd.d/nvidia_icd.json", id="Vulkan"),
        pytest.param("etc/vulkan/icd.d/nvidia_icd.json", id="Vulkan, of an administrator"),
        pytest.param("usr/share/glvnd/egl_vendor.d/10_nvidia.json", id="EGL"),
        pytest.param("usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json", id="GBM"),
        pytest.param("usr/share/nvidia/nvoptix.bin", id="ray tracing"),
        pytest.param("usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf", id="X"),
        pytest.param("run/nvidia-fabricmanager/socket", id="fabric manager"),
        pytest.param("usr/bin/nvidia-cuda-mps-control", id="MPS"),
    ],
)
def test_what_else_is_the_drivers(root: Path, name: str) -> None:
    assert f"/{name}" not in mounted(files(root).driver())
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(b"")
    for hook in (None, Path("/usr/bin/nvidia-cdi-hook")):
        assert mounted(files(root, hook=hook).driver())[f"/{name}"] == f"{root}/{name}"


MODULE_LINKS = {  # what loads it asks for the link
    f"{LIB}/vdpau/libvdpau_nvidia.so.1": "libvdpau_nvidia.so",
    "usr/lib/xorg/modules/extensions/libglxserver_nvidia.so": "libglxserver_nvidia.so",
    f"{LIB}/nvidia/xorg/libglxserver_nvidia.so": "libglxserver_nvidia.so",
}


@pytest.mark.parametrize("link", MODULE_LINKS)
def test_modules_have_the_name_by_which_they_are_loaded(root: Path, link: str) -> None:
    folder, _, name = link.rpartition("/")
    file = f"{MODULE_LINKS[link]}.{VERSION}"
    (root / folder).mkdir(parents=True)
    (root / folder / file).write_bytes(b"")
    (root / link).symlink_to(file)
    assert mounted(files(root).driver())[f"/{link}"] == f"{root}/{folder}/{file}"
    hooked = files(root, hook=Path("/usr/bin/nvidia-cdi-hook")).driver()
    assert f"/{link}" not in mounted(hooked)
    assert f"{file}::/{folder}/{name}" in [word for hook in hooked.hooks for word in hook.args]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("usr/lib/xorg/modules/drivers/nvidia_drv.so", id="a module of X"),
        pytest.param(f"lib/firmware/nvidia/{VERSION}/gsp_x.bin", id="firmware"),
        pytest.param("etc/OpenCL/vendors/nvidia.icd", id="OpenCL"),
    ],
)
def test_what_leads_out_of_the_drivers_place_is_left_out(root: Path, name: str) -> None:
    """The node has nothing there, and its runtime makes no container with what is missing."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).symlink_to("/nowhere/of-the-driver")
    assert f"/{name}" not in mounted(files(root).driver())


def test_usual_names_are_there_without_development_files(root: Path) -> None:
    """Programs ask for libcuda.so, which some distributions put into a package of its own."""
    (root / LIB / "libcuda.so").unlink()
    cuda = f"libcuda.so.{VERSION}"
    assert mounted(files(root).driver())[f"/{LIB}/libcuda.so"] == f"{root}/{LIB}/{cuda}"
    links, _cache = files(root, hook=Path("/usr/bin/nvidia-cdi-hook")).driver().hooks
    assert f"{cuda}::/{LIB}/libcuda.so" in links.args


def test_gbms_link_is_the_library_that_it_leads_to(root: Path) -> None:
    library = root / LIB / f"libnvidia-allocator.so.{VERSION}"
    library.write_bytes(b"")
    (root / LIB / "gbm").mkdir()
    (root / LIB / "gbm/nvidia-drm_gbm.so").symlink_to("../libnvidia-allocator.so.1")
    assert mounted(files(root).driver())[f"/{LIB}/gbm/nvidia-drm_gbm.so"] == str(library)


def test_debians_own_place_is_seen_where_loaders_look(root: Path) -> None:
    current = root / LIB / "nvidia/current"
    current.mkdir(parents=True)
    for name in (f"libcuda.so.{VERSION}", "libcuda.so.1", "libcuda.so"):
        (root / LIB / name).rename(current / name)
    (root / LIB / "libcuda.so.1").symlink_to("/etc/alternatives/glx--libcuda.so.1-x86_64-linux-gnu")
    found = mounted(files(root).driver())
    assert found[f"/{LIB}/libcuda.so.1"] == f"{current}/libcuda.so.{VERSION}"
    hooked = files(root, hook=Path("/usr/bin/nvidia-cdi-hook")).driver()
    assert f"/{LIB}/nvidia/current/libcuda.so.{VERSION}" in mounted(hooked)
    assert any(f"/{LIB}/nvidia/current" in hook.args for hook in hooked.hooks)


def test_a_hook_makes_links_and_refreshes_the_cache(root: Path) -> None:
    edits = files(root, hook=Path("/usr/bin/nvidia-ctk")).driver()
    assert f"/{LIB}/libcuda.so.1" not in mounted(edits)
    links, cache = edits.hooks
    assert links.args[:3] == ("nvidia-ctk", "hook", "create-symlinks")
    assert f"libcuda.so.{VERSION}::/{LIB}/libcuda.so.1" in links.args
    assert cache.args == ("nvidia-ctk", "hook", "update-ldcache", "--folder", f"/{LIB}")
    own = files(root, hook=Path("/opt/nvidia-cdi-hook"), disabled_hooks=["update-ldcache"]).driver()
    assert [hook.args[:2] for hook in own.hooks] == [("nvidia-cdi-hook", "create-symlinks")]
    assert not files(root, hook=Path("/opt/x"), disabled_hooks=["all"]).driver().hooks


def test_the_drivers_root_may_be_mounted_elsewhere(root: Path) -> None:
    seen = HostDriverFiles(driver_root=Path("/run/nvidia/driver"), container_driver_root=root)
    host = f"/run/nvidia/driver/{LIB}/libcuda.so.{VERSION}"
    assert mounted(seen.driver())[f"/{LIB}/libcuda.so.1"] == host
    assert seen.common_nodes() == ("/dev/nvidiactl", "/dev/nvidia-uvm")


@pytest.mark.parametrize(
    ("place", "libraries"),
    [
        pytest.param("usr/local", "lib", id="Talos with r595"),
        pytest.param("usr/local/glibc", "usr/lib", id="Talos before"),
        pytest.param("home/kubernetes/bin/nvidia", "lib64", id="Google's COS"),
        pytest.param("run/nvidia/driver", LIB, id="the GPU Operator's"),
    ],
)
def test_a_driver_that_is_elsewhere_comes_where_loaders_look(
    tmp_path: Path, place: str, libraries: str
) -> None:
    (folder := tmp_path / place / libraries).mkdir(parents=True)
    (folder / f"libcuda.so.{VERSION}").write_text("")
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    found = mounted(files(tmp_path / place).driver())
    assert found[f"/{libraries}/libcuda.so.1"] == f"{folder}/libcuda.so.{VERSION}"


def test_no_driver_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NodeNotReady, match="--nvidia-driver-root"):
        files(tmp_path).driver()


def test_nodes(root: Path) -> None:
    found = files(root)
    assert found.drm_nodes(GPU) == ("/dev/dri/card1", "/dev/dri/renderD128")
    assert found.extra_nodes("gdrcopy") == ("/dev/gdrdrv",)
    assert found.extra_nodes("gds") == ("/dev/nvidia-fs0",)
    assert found.extra_nodes("mofed") == ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0")


def test_imex_channels(root: Path) -> None:
    assert files(root, imex=[0]).imex_channels() == ()
    with pytest.raises(NodeNotReady, match="--imex-required=false"):
        files(root, imex=[0], imex_required=True).imex_channels()
    channel = root / "dev/nvidia-caps-imex-channels/channel0"
    channel.parent.mkdir()
    channel.write_bytes(b"")
    assert files(root, imex=[0], imex_required=True).imex_channels() == (0,)


def specs(
    root: Path,
    out: Path,
    *gpus: Gpu,
    strategies: tuple[str, ...] = ("cdi-cri",),
    hook: Path | None = None,
    **policy: Any,
) -> CdiSpecs:
    return CdiSpecs(
        Published(GpuInventory.of(gpus)),
        HostCdiFiles(out),
        files(root, imex=[0], hook=hook),
        GrantPolicy(device_list_strategy=strategies, dev_root=str(root), **policy),
    )


VOID = "/var/run/nvidia-container-devices/void"


@pytest.mark.parametrize(
    ("strategies", "hook", "asked"),
    [
        pytest.param(("volume-mounts", "cdi-cri"), None, True, id="mounts name GPUs as well"),
        # Runtimes before 1.20.2 take it for the name of a GPU, and make no container.
        pytest.param(("cdi-cri",), None, False, id="nothing else does"),
        pytest.param(("envvar", "cdi-annotations"), None, False, id="the variable does"),
        pytest.param(
            ("volume-mounts", "cdi-cri"),
            Path("/usr/bin/nvidia-cdi-hook"),
            False,
            id="links are made by hooks, and can be made twice",
        ),
    ],
)
def test_nvidias_runtime_is_asked_not_to_go_by_mounts_as_well(
    root: Path, tmp_path: Path, strategies: tuple[str, ...], hook: Path | None, asked: bool
) -> None:
    """It would make links where the agent has mounted them, and fail."""
    (spec,) = specs(root, tmp_path / "out", GPU, strategies=strategies, hook=hook).specs()
    for edits in spec.devices.values():
        assert edits.envs == {"NVIDIA_VISIBLE_DEVICES": "void"}
        assert (mounted(edits).get(VOID) == "/dev/null") is asked


def test_what_is_written_is_what_the_schema_says(root: Path, tmp_path: Path) -> None:
    channel = root / "dev/nvidia-caps-imex-channels/channel0"
    channel.parent.mkdir()
    channel.write_bytes(b"")
    divided = Gpu(
        uuid="GPU-b", index=1, name="A", memory_mib=1, minor=1, mig_enabled=True, mig_devices=(MIG,)
    )
    written = specs(
        root, tmp_path / "cdi", GPU, divided,
        gds_enabled=True, mofed_enabled=True, gdrcopy_enabled=True,
    )  # fmt: skip
    assert not written.tried(0)
    assert written.write_once()
    assert written.tried(0)
    assert not written.problem.now()
    found = {path.name: check_cdi(path.read_text()) for path in (tmp_path / "cdi").iterdir()}
    kinds = {document["kind"].rpartition("/")[2] for document in found.values()}
    assert kinds == {"gpu", "imex-channel", "gds", "mofed", "gdrcopy"}
    gpu = found["k8s.device-plugin.nvidia.com-gpu.json"]
    devices = {device["name"]: device["containerEdits"] for device in gpu["devices"]}
    assert set(devices) == {"GPU-a", "GPU-b", "MIG-a", "all"}
    nodes = [node["path"] for node in devices["MIG-a"]["deviceNodes"]]
    assert nodes[:2] == ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap3"]
    assert devices["GPU-a"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    policy = GrantPolicy(device_list_strategy=("cdi-cri",), imex_channels=(0,), gds_enabled=True)
    for name in base_grant([Named.of(GPU)], policy, response_id="x").cdi_devices:
        kind, _, device = name.partition("=")
        file = found[f"{kind.replace('/', '-')}.json"]
        assert device in [one["name"] for one in file["devices"]], "what is told is there"


def test_sockets_are_not_read_only_as_a_container_inside_could_not_mount_them(
    root: Path, tmp_path: Path
) -> None:
    assert specs(root, tmp_path / "cdi", GPU).write_once()
    document = json.loads((tmp_path / "cdi/k8s.device-plugin.nvidia.com-gpu.json").read_text())
    mounts = document["devices"][0]["containerEdits"]["mounts"]
    writable = {m["containerPath"]: m["options"] for m in mounts if "ro" not in m["options"]}
    as_the_toolkit = ["nosuid", "nodev", "rbind", "rprivate", "noexec"]
    assert writable == {"/run/nvidia-persistenced/socket": as_the_toolkit}
    assert len(mounts) > 1


def test_a_channel_is_named_when_a_file_has_it(root: Path, tmp_path: Path) -> None:
    """It may come at any time, and the file a minute later: runtimes refuse what no file has."""
    written = specs(root, tmp_path / "cdi", GPU)
    assert written.write_once()
    channel = root / "dev/nvidia-caps-imex-channels/channel0"
    channel.parent.mkdir()
    channel.write_bytes(b"")
    assert written.channels() == ()
    assert written.write_once()
    assert written.channels() == (0,)
    channel.unlink()
    assert written.channels() == ()


def test_devices_by_index(root: Path, tmp_path: Path) -> None:
    assert specs(root, tmp_path / "cdi", GPU, device_id_strategy="index").write_once()
    document = json.loads((tmp_path / "cdi/k8s.device-plugin.nvidia.com-gpu.json").read_text())
    assert [device["name"] for device in document["devices"]] == ["0", "all"]


def test_a_file_that_is_right_is_left_alone(root: Path, tmp_path: Path) -> None:
    one = specs(root, tmp_path / "cdi", GPU)
    assert one.write_once()
    path = tmp_path / "cdi/k8s.device-plugin.nvidia.com-gpu.json"
    before = path.stat()
    assert one.write_once()
    assert (path.stat().st_ino, path.stat().st_mode & 0o777) == (before.st_ino, 0o644)
    path.unlink()
    assert one.write_once()
    assert path.exists(), "written again"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda d: d.write_bytes(b""), "a file where a directory belongs", id="a file"),
        pytest.param(lambda d: d.symlink_to("/tmp"), "a link", id="a link"),
        pytest.param(lambda d: (d.mkdir(), d.chmod(0o777)), "can be written by others", id="open"),
    ],
)
def test_a_directory_that_cannot_be_trusted_is_told(
    root: Path, tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    spoil(tmp_path / "cdi")
    one = specs(root, tmp_path / "cdi", GPU)
    assert not one.write_once()
    assert words in one.problem.now()


NAMES = st.text(alphabet="aA0._:-/ ", max_size=6)
EDITS = st.builds(
    Edits,
    nodes=st.lists(st.builds(CdiNode, st.just("/dev/x"), st.sampled_from(["", "/host/dev/x"]))).map(
        tuple
    ),
    mounts=st.lists(st.builds(CdiMount, st.just("/a"), st.just("/b"))).map(tuple),
    envs=st.dictionaries(st.sampled_from(["A", "B"]), st.text(max_size=3)),
    hooks=st.lists(st.builds(CdiHook, st.just("/bin/x"), st.just(("x", "y")))).map(tuple),
)


@given(devices=st.dictionaries(NAMES, EDITS, max_size=4))
def test_any_file_is_one_that_runtimes_take(devices: dict[str, Edits]) -> None:
    document = check_cdi(encode(CdiSpec(class_name="gpu", devices=with_every(devices))).decode())
    wanted = {name for name, edits in devices.items() if nameable(name) and not edits.empty}
    found = {device["name"] for device in document["devices"]}
    assert found - {"all"} == wanted - {"all"}
