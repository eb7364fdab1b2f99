"""What doctor reads of a host: understood where it is in order, and never a crash where it is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.config import Config
from agent.doctor import (
    cluster,
    driver,
    hook,
    hook_probe,
    kubelet,
    place,
    runtime,
    runtime_files,
    toolkit,
    toolkit_settings,
)
from agent.doctor.finding import Finding
from agent.doctor.host import Ended, Host, writable
from agent.doctor.report import printable

ROOT = Path(__file__).parents[2]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.sampled_from(
    [
        *("plugins", "containerd", "runtimes", "options", "BinaryName", "imports", "crio"),
        *("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "default_runtime_name"),
        *("runtime", "default_runtime", "runtime_path", "nvidia", "runc", "default-runtime"),
        *("path", "kind", "devices", "name", "containerEdits", "deviceNodes", "mounts"),
        *("hostPath", "cdiVersion", "nvidia-container-cli", "no-cgroups", "metadata"),
        *("nvidia-container-runtime", "mode", "modes", "cdi", "default-kind", "spec-dirs"),
        *("jit-cdi", "nvcdi-disable-hooks", "enable_cdi", "cdi_spec_dirs", "version"),
        *("managedFields", "fieldsV1", "f:metadata", "f:annotations", "f:k", "time"),
        *("Data", "RegisteredDevices", "nvidia.com/gpu"),
    ]
)
ANY = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
)
TABLES = st.dictionaries(KEYS, ANY, max_size=5)


@given(document=TABLES, other=TABLES)
def test_any_table_can_be_a_runtimes_configuration(document: Any, other: Any) -> None:
    whole = runtime_files.merged((document, other))
    for read in (runtime_files.containerd, runtime_files.crio, runtime_files.docker):
        found = read(whole)
        assert set(found.nvidia_handlers) <= set(found.handlers)
    assert isinstance(runtime_files.imports_of(whole), list)
    kind, folders = toolkit_settings.places(whole)
    assert kind
    assert all(isinstance(one, str) and one for one in folders)
    assert all(isinstance(one, str) for one in toolkit_settings.disabled_hooks(whole))
    problem = toolkit_settings.toolkit_objection(whole, ("envvar",))
    assert problem is None or all(problem)


@given(content=st.text() | ANY.map(lambda any_: yaml.safe_dump(any_, allow_unicode=False)))
def test_any_text_can_be_a_file(content: str) -> None:
    runtime_files.toml_of(content)
    runtime_files.json_of(content)
    toolkit.spec_of(Path("x.yaml"), content)
    toolkit.spec_of(Path("x.json"), content)
    toolkit.dpkg_version(content, "nvidia-container-toolkit")
    toolkit.version_of(content)
    kubelet.registered_ids(content, "nvidia.com/gpu")
    place.mounts_of(content)
    place.cgroup_driver(content)
    driver.kernel_version(content)
    cluster.stamp_of(content)
    cluster.register_form(content)
    assert printable(content).isprintable()


@given(metadata=TABLES)
def test_any_metadata_can_be_asked_for_a_time(metadata: Any) -> None:
    cluster.written_at_s(metadata, "k")


@given(content=st.binary() | st.binary().map(lambda rest: b"\x7fELF\x02\x01" + rest))
def test_any_bytes_can_be_a_library(content: bytes) -> None:
    hook.elf_machine(content)
    hook.glibc_needed(content)


@pytest.mark.parametrize(
    ("content", "needed"),
    [
        pytest.param(b"\0GLIBC_2.2.5\0", (2, 2, 5), id="three numbers"),
        pytest.param(b"\0GLIBC_2.2.5\0GLIBC_2.3\0", (2, 3), id="the newest of two"),
        pytest.param(b"\0GLIBC_2.3\0GLIBC_2.3.4\0", (2, 3, 4), id="the newest by its third"),
        pytest.param(b"\0GLIBC_PRIVATE\0", (), id="no number"),
        pytest.param(b"", (), id="nothing"),
    ],
)
def test_the_newest_glibc_that_a_library_names(content: bytes, needed: tuple[int, ...]) -> None:
    assert hook.glibc_needed(content) == needed


@given(output=st.text() | ANY.map(lambda any_: yaml.safe_dump(any_, default_flow_style=True)))
def test_any_answer_of_the_child_is_judged(output: str) -> None:
    assert hook.judged(Ended(0, output, "")).verdict != "ok"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        pytest.param("1.17.8-1", (1, 17, 8), id="Debian"),
        pytest.param("1.18.0~rc.2-1", (1, 18, 0), id="release candidate"),
        pytest.param(
            "NVIDIA Container Toolkit CLI version 1.13.5\ncommit: x", (1, 13, 5), id="CLI"
        ),
        pytest.param("(unknown)", None, id="none"),
    ],
)
def test_versions_of_the_toolkit(said: str, version: tuple[int, int, int] | None) -> None:
    assert toolkit.version_of(said) == version


def test_a_package_that_was_removed_is_not_installed() -> None:
    removed = (
        "Package: nvidia-container-toolkit\nStatus: deinstall ok config-files\nVersion: 1.0.0\n"
    )
    assert toolkit.dpkg_version(removed, "nvidia-container-toolkit") == ""


@pytest.mark.parametrize(
    ("text", "default", "handlers"),
    [
        pytest.param(
            'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\n'
            'default_runtime_name = "nvidia"\n'
            '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
            'BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"\n',
            "nvidia",
            ("nvidia",),
            id="version 2, as the GPU Operator writes it",
        ),
        pytest.param(
            'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.gpu.options]\n'
            'BinaryName = "/usr/bin/nvidia-container-runtime"\n',
            "runc",
            ("gpu",),
            id="version 3, a handler of another name",
        ),
        pytest.param("", "runc", (), id="empty"),
    ],
)
def test_containerd(text: str, default: str, handlers: tuple[str, ...]) -> None:
    found = runtime_files.containerd(runtime_files.toml_of(text) or {})
    assert (found.default, found.nvidia_handlers) == (default, handlers)


def test_crio_and_docker() -> None:
    toml = '[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\n'
    toml += 'runtime_path = "/usr/bin/nvidia-container-runtime"\n'
    found = runtime_files.crio(runtime_files.toml_of(toml) or {})
    assert (found.default, found.nvidia_handlers) == ("nvidia", ("nvidia",))
    json = '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'
    found = runtime_files.docker(runtime_files.json_of(json) or {})
    assert (found.default, found.nvidia_handlers) == ("nvidia", ("nvidia",))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19", "535.104.05",
            id="proprietary",
        ),
        pytest.param(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
            "570.86.15",
            id="open",
        ),
        pytest.param("GCC version:  gcc version 12.2.0", "", id="none"),
    ],
)  # fmt: skip
def test_the_kernels_word_for_the_driver(text: str, version: str) -> None:
    assert driver.kernel_version(text) == version


def test_the_deepest_mount_counts_and_of_two_at_one_place_the_later() -> None:
    text = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        "2 1 8:2 / /usr/local rw,noexec - ext4 /dev/b rw\n"
        "3 2 8:3 / /usr/local rw - xfs /dev/c rw\n"
        "4 1 8:4 / /usr/lo rw,noexec - ext4 /dev/d rw\n"
    )
    found = place.mount_of(Path("/usr/local/vgpu"), place.mounts_of(text))
    assert found is not None
    assert (found.point, found.kind) == ("/usr/local", "xfs")


def test_the_rights_that_are_asked_for_are_those_that_are_given() -> None:
    objects = list(yaml.safe_load_all((ROOT / cluster.RULES_FILE).read_text()))
    rules = next(one for one in objects if one["kind"] == "ClusterRole")["rules"]
    given = {resource: tuple(rule["verbs"]) for rule in rules for resource in rule["resources"]}
    assert {name: sorted(verbs) for name, verbs in given.items()} == {
        name: sorted(verbs) for name, verbs in cluster.RIGHTS.items()
    }
    assert all(rule["apiGroups"] == [""] for rule in rules)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        pytest.param("[]", "json", id="json"),
        pytest.param("GPU-a,10,46068,100,NVIDIA-NVIDIA A40,0,true:", "csv7", id="csv7"),
        pytest.param("GPU-a,10,24576,100,NVIDIA-X,0,true,0,hami-core:", "csv9", id="csv9"),
        pytest.param("GPU-a", "", id="none"),
    ],
)
def test_forms_of_the_register_annotation(value: str, form: str) -> None:
    assert cluster.register_form(value) == form


def test_who_is_not_root_does_not_call_closed_what_root_could_write(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="Permission denied"):
        writable(tmp_path / "none", uid=1000)
    assert not writable(tmp_path / "none", uid=0)
    assert writable(tmp_path, uid=1000)


@pytest.mark.parametrize(
    ("files", "kind", "default"),
    [
        pytest.param(
            {
                "etc/crio/crio.conf": '[crio.runtime]\ndefault_runtime = "runc"\n',
                "etc/crio/crio.conf.d/99.conf": '[crio.runtime]\ndefault_runtime = "nvidia"\n'
                '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n',
            },
            "cri-o",
            "nvidia",
            id="CRI-O, by a drop-in",
        ),
        pytest.param(
            {"etc/docker/daemon.json": '{"default-runtime": "nvidia"}'},
            "docker",
            "nvidia",
            id="Docker",
        ),
        pytest.param(
            {
                "etc/containerd/config.toml": 'imports = ["/etc/containerd/more/*.toml"]\n',
                "etc/containerd/more/a.toml": "[plugins.'io.containerd.grpc.v1.cri'.containerd]\n"
                'default_runtime_name = "nvidia"\n',
            },
            "containerd",
            "nvidia",
            id="containerd, by an absolute import below another root",
        ),
        pytest.param(
            {"var/lib/rancher/k3s/agent/etc/containerd/config.toml": "version = 2\n"},
            "k3s",
            "runc",
            id="k3s",
        ),
    ],
)
def test_runtimes_are_found(tmp_path: Path, files: dict[str, str], kind: str, default: str) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    host = Host(config=Config(node_name="n"), environ={}, root=tmp_path)
    (found,) = runtime.runtimes(host)
    assert (found.kind, found.runtime.default, found.broken) == (kind, default, ())
    assert len(found.files) == len(files)


def test_in_a_pod_without_the_hosts_files_nothing_is_said_of_them() -> None:
    host = Host(config=Config(node_name="n"), environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    for check in (*runtime.CHECKS, *toolkit.CHECKS):
        if not check.needs:
            assert check.look(host).verdict == "skipped", check.name


def test_that_there_is_no_cuda_is_told_in_the_loaders_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyInstaller says of any library that is not there that it was forgotten as it froze us."""

    def frozen(name: str) -> None:
        raise OSError(f"Failed to load {name}: not found when frozen") from OSError("no such file")

    monkeypatch.setattr(hook_probe.ctypes, "CDLL", frozen)
    assert hook_probe.take(1) == {"missing": "no such file"}


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(driver.device_nodes, id="device-nodes"),
        pytest.param(driver.device_links, id="device-links"),
        pytest.param(place.security_modules, id="security-modules"),
        pytest.param(hook.host_preload, id="host-preload"),
    ],
)
def test_what_a_container_has_of_its_own_is_not_taken_for_the_hosts(
    look: Callable[[Host], Finding],
) -> None:
    """Its /dev has no links and what its runtime gave it; nor does it see SELinux."""
    host = Host(config=Config(node_name="n"), environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert look(host).verdict == "skipped"


def test_of_two_runtimes_kubelets_counts(tmp_path: Path) -> None:
    host = Host(config=Config(node_name="n"), environ={}, root=tmp_path)
    for name, content in {
        "etc/containerd/config.toml": "version = 2\n",
        "etc/crio/crio.conf": "",
        "var/lib/kubelet/config.yaml": "a: 1\ncontainerRuntimeEndpoint: unix:///run/crio/crio.sock\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert [found.kind for found in runtime.runtimes(host)] == ["cri-o", "containerd"]
    (tmp_path / "var/lib/kubelet/config.yaml").write_text("a: 1\n")
    assert [found.kind for found in runtime.runtimes(host)] == ["containerd", "cri-o"]


NVIDIA_HANDLER = (
    "[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = 'nvidia'\n"
    "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]\n"
    "BinaryName = '/usr/bin/nvidia-container-runtime'\n"
)
K3S = "var/lib/rancher/k3s/agent/etc"
RKE2 = "var/lib/rancher/rke2/agent/etc"


def host_with(root: Path, *units: str, **files: str) -> Host:
    """A host of these files, in which these systemd units are installed."""
    units_of = {f"etc/systemd/system/{unit}.service": "" for unit in units}
    for name, content in {**files, **units_of}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return Host(config=Config(node_name="n"), environ={}, root=root)


def test_dockers_containerd_says_nothing_of_k3s(tmp_path: Path) -> None:
    """On a node with Docker beside k3s there are two containerd: each has its own settings."""
    files = {"etc/containerd/config.toml": NVIDIA_HANDLER, f"{K3S}/containerd/config.toml": ""}
    host = host_with(tmp_path, "k3s", **files)
    k3s, dockers = runtime.runtimes(host)
    assert (k3s.kind, dockers.kind) == ("k3s", "containerd")
    assert runtime.nvidia_runtime(host).verdict == "failed"  # it was ok, by the other's file


@pytest.mark.parametrize(
    ("files", "units", "said"),
    [
        pytest.param(
            {f"{K3S}/containerd/config.toml": "version = 2\n"},
            ("k3s",),
            "apt-get install nvidia-container-toolkit && systemctl restart k3s ",
            id="k3s, which looks for NVIDIA's runtime by itself",
        ),
        pytest.param(
            {
                f"{K3S}/containerd/config.toml": NVIDIA_HANDLER.replace(
                    "default_runtime_name = 'nvidia'", ""
                )
            },
            ("k3s-agent",),
            "echo 'default-runtime: nvidia' >> /etc/rancher/k3s/config.yaml && "
            "systemctl restart k3s-agent ",
            id="a worker of k3s",
        ),
        pytest.param(
            {f"{RKE2}/containerd/config.toml": "version = 2\n"},
            ("rke2-server",),
            "apt-get install nvidia-container-toolkit && systemctl restart rke2-server ",
            id="RKE2",
        ),
        pytest.param(
            {"etc/containerd/config.toml": "version = 2\n"},
            ("kubelet",),
            "nvidia-ctk runtime configure --runtime=containerd --set-as-default && "
            "systemctl restart containerd",
            id="kubeadm",
        ),
    ],
)
def test_what_mends_a_runtime_is_the_nodes_own_command(
    tmp_path: Path, files: dict[str, str], units: tuple[str, ...], said: str
) -> None:
    """k3s writes its containerd's file anew at each start, and runs it in its own unit."""
    assert runtime.nvidia_runtime(host_with(tmp_path, *units, **files)).fix.startswith(said)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param(
            "var/lib/kubelet/kubeadm-flags.env",
            'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///var/run/crio/crio.sock '
            '--pod-infra-container-image=registry.k8s.io/pause:3.9"\n',
            id="kubeadm's flags",
        ),
        pytest.param(
            "var/lib/kubelet/instance-config.yaml",
            'apiVersion: kubelet.config.k8s.io/v1beta1\ncontainerRuntimeEndpoint: "unix:///run/crio/crio.sock"\n',
            id="kubeadm's file of the node",
        ),
        pytest.param(
            f"{K3S}/kubelet.conf.d/00-k3s-defaults.conf",
            "containerRuntimeEndpoint: unix:///run/crio/crio.sock\n",
            id="k3s with --container-runtime-endpoint",
        ),
    ],
)
def test_kubelets_runtime_is_found_where_it_is_set(tmp_path: Path, name: str, content: str) -> None:
    """Since kubeadm 1.24 it is in none of its KubeletConfigurations but the node's own."""
    files = {"etc/containerd/config.toml": "version = 2\n", "etc/crio/crio.conf": "", name: content}
    host = host_with(tmp_path, **{"var/lib/kubelet/config.yaml": "a: 1\n"}, **files)
    assert runtime.runtimes(host)[0].kind == "cri-o"


@pytest.mark.parametrize(
    ("units", "unit"),
    [
        pytest.param(("kubelet",), "kubelet", id="kubeadm"),
        pytest.param(("k3s",), "k3s", id="a server of k3s"),
        pytest.param(("k3s-agent",), "k3s-agent", id="a worker of k3s"),
        pytest.param(("rke2-agent",), "rke2-agent", id="a worker of RKE2"),
        pytest.param(("k0sworker",), "k0sworker", id="a worker of k0s"),
        pytest.param(
            ("snap.microk8s.daemon-kubelite",), "snap.microk8s.daemon-kubelite", id="MicroK8s"
        ),
        pytest.param((), "kubelet", id="none that is known"),
    ],
)
def test_kubelet_is_restarted_by_the_unit_that_runs_it(
    tmp_path: Path, units: tuple[str, ...], unit: str
) -> None:
    """Most distributions have no unit of kubelet's, or one of another name."""
    host = host_with(tmp_path, *units)
    host.config = Config(node_name="n", kubelet_socket=tmp_path / "kubelet.sock")
    assert f"systemctl restart {unit};" in kubelet.kubelet_socket(host).fix
