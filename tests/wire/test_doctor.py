"""Doctor on a node in which exactly one thing is broken: it names that, and only that."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from doctor_breaks import BREAKS, MODE_CDI, RESERVING
from doctor_node import CDI, CONTAINERD_NVIDIA, DPKG, DRIVER, UUID, DoctorNode, stamp
from doctor_ways import Break, deny, effects, makes_cgroups, settings

from agent.doctor import hook
from agent.doctor.checks import CHECKS
from agent.doctor.finding import Verdict
from agent.doctor.modes import in_mode
from agent.domain.gpu import Sharing
from agent.domain.nvidia_config import Replicas, Replication
from agent.domain.slices import SliceSize
from agent.sim.driver import SimGpu, made_up_uuid

A100 = "NVIDIA A100-SXM4-40GB"
BY_NAME = {check.name: check for check in CHECKS}


@pytest.fixture
def node(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DoctorNode]:
    with ExitStack() as stack:
        yield DoctorNode(tmp_path_factory.mktemp("d"), stack, monkeypatch)


def needing(name: str) -> set[str]:
    """The checks that need this one, by whatever way; what is needed comes before."""
    found = {name}
    for check in CHECKS:
        if found & set(check.needs):
            found.add(check.name)
    return found - {name}


def test_nothing_is_wrong_with_a_healthy_node(node: DoctorNode) -> None:
    found = node.look()
    assert {name: str(f) for name, f in found.items() if f.verdict is not Verdict.OK} == {}
    assert list(found) == [check.name for check in CHECKS]


def test_every_check_has_something_that_it_alone_names() -> None:
    assert {one.check for one in BREAKS} == set(BY_NAME)


def test_a_reload_that_would_take_gpus_away_is_named(node: DoctorNode) -> None:
    """Without links in /dev/char systemd forgets devices; who passes them to kubelet is not told."""
    (broken,) = [one for one in BREAKS if one.check == "device-links"]
    broken.do(node)
    found = node.look()["device-links"]
    assert found.verdict is Verdict.WARNING
    assert "systemctl daemon-reload" in found.evidence
    assert found.fix.startswith("nvidia-ctk system create-dev-char-symlinks")
    settings(pass_device_specs=True)(node)
    assert node.look()["device-links"].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("spec", "changes", "verdict"),
    [
        pytest.param(CDI.replace('"0"', UUID), {}, Verdict.OK, id="by uuid"),
        pytest.param(CDI, {"device_id_strategy": "index"}, Verdict.OK, id="by index"),
        pytest.param(CDI, {"device_list_strategy": ("cdi-cri",)}, Verdict.OK, id="by our own spec"),
        pytest.param(
            CDI, {"sharing": Sharing(excluded_indices=frozenset([0]))}, Verdict.OK, id="left out"
        ),
        pytest.param(
            CDI.replace('"0"', UUID).replace("nvidia.com/gpu", "nvidia.com/pgpu"),
            {},
            Verdict.FAILED,
            id="of another kind",
        ),
        pytest.param(
            CDI.replace('"0"', UUID),
            {"sharing": Sharing(mode="mig")},
            Verdict.FAILED,
            id="MIG devices that are made later",
        ),
    ],
)
def test_in_mode_cdi_specs_have_to_name_what_is_granted(
    node: DoctorNode, spec: str, changes: dict[str, Any], verdict: Verdict
) -> None:
    """NVIDIA's runtime then makes no container whose GPU no spec names."""
    node.write("etc/nvidia-container-runtime/config.toml", MODE_CDI)
    node.write("etc/cdi/nvidia.yaml", spec)
    settings(**changes)(node)
    found = node.look()["cdi-names"]
    assert found.verdict is verdict, found


@pytest.mark.parametrize(
    ("runtime", "verdict"),
    [
        pytest.param("systemd", Verdict.OK, id="kubelet goes by its runtime"),
        pytest.param("", Verdict.WARNING, id="which does not say"),
    ],
)
def test_kubelets_own_file_counts_where_the_runtime_says_nothing(
    node: DoctorNode, runtime: str, verdict: Verdict
) -> None:
    """Kubelet 1.37.2 was seen to go by containerd 2.4.2, whatever its file said."""
    node.write("var/lib/kubelet/config.yaml", "cgroupDriver: cgroupfs\n")
    makes_cgroups(runtime)(node)
    assert node.look()["cgroups"].verdict is verdict


def test_a_directory_that_is_named_as_a_spec_is_none(node: DoctorNode) -> None:
    """Runtimes pass it over; a link that leads to nothing they report."""
    (node.tree / "etc/cdi/nvidia.json").mkdir()
    assert node.look()["cdi-specs"].verdict is Verdict.OK
    (node.tree / "etc/cdi/old.json").symlink_to("gone")
    assert "etc/cdi/old.json is no CDI spec" in node.look()["cdi-specs"].evidence


TOOLKIT = "etc/nvidia-container-runtime/config.toml"
JIT = "[nvidia-container-runtime.modes.jit-cdi]\nnvcdi-disable-hooks = "
RESERVES = "apply-cuda-memory-limits"


CLAIM = CDI.replace("kind: nvidia.com/gpu", "kind: k8s.gpu.nvidia.com/claim") + f"# {RESERVES}\n"


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        pytest.param({}, f"disable-hooks={RESERVES}", id="by default"),
        pytest.param({TOOLKIT: f'{JIT}["chmod"]'}, f"disable-hooks=chmod:{RESERVES}", id="another"),
        pytest.param({TOOLKIT: f'{JIT}["{RESERVES}"]'}, "", id="left out"),
        pytest.param({TOOLKIT: f'{JIT}["all"]'}, "", id="all are left out"),
        pytest.param(
            {TOOLKIT: MODE_CDI, "etc/cdi/nvidia.yaml": CDI.replace('"0"', UUID) + f"# {RESERVES}"},
            f"nvidia.yaml --disable-hook {RESERVES}",
            id="in a spec",
        ),
        pytest.param(
            {TOOLKIT: MODE_CDI, "etc/cdi/nvidia.yaml": CDI.replace('"0"', UUID)}, "", id="in none"
        ),
        pytest.param(
            {
                TOOLKIT: MODE_CDI,
                "etc/cdi/nvidia.yaml": CDI.replace('"0"', UUID),
                "run/cdi/k8s.gpu.nvidia.com-claim.yaml": CLAIM,
            },
            "",
            id="in a spec of another kind, as of a resource claim",
        ),
        pytest.param({TOOLKIT: MODE_CDI.replace("cdi", "legacy")}, "", id="another program's work"),
        pytest.param(
            {TOOLKIT: MODE_CDI.replace("cdi", "jit-cdi")},
            f"disable-hooks={RESERVES}",
            id="asked for",
        ),
        pytest.param({"var/lib/dpkg/status": DPKG}, "", id="before 1.20.1"),
        pytest.param({"sys/fs/cgroup/cgroup.controllers": None}, "", id="cgroups of version 1"),
    ],
)
def test_who_can_reserve_memory_of_a_shared_gpu(
    node: DoctorNode, changes: dict[str, str | None], fix: str
) -> None:
    RESERVING(node)
    for name, content in changes.items():
        if content is None:
            node.remove(name)
        else:
            node.write(name, content)
    found = node.look()["reservations"]
    assert found.verdict is (Verdict.WARNING if fix else Verdict.OK), found
    assert found.fix.endswith(fix)


def test_a_directory_in_the_place_of_the_settings_is_named(node: DoctorNode) -> None:
    """As a bind mount of a file that is not there makes one: NVIDIA's runtime then ends at once."""
    node.remove(TOOLKIT)
    (node.tree / TOOLKIT).mkdir()
    assert "cannot be understood" in node.look()["toolkit-config"].evidence


OPERATORS = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"


@pytest.mark.parametrize(
    ("check", "content"),
    [
        pytest.param("toolkit-config", MODE_CDI.replace("cdi", "csv"), id="its mode"),
        pytest.param(
            "cdi-names",
            f'{MODE_CDI}modes.cdi.default-kind = "management.nvidia.com/gpu"\n',
            id="its kind",
        ),
    ],
)
def test_the_operators_toolkit_has_its_settings_beside_its_programs(
    node: DoctorNode, check: str, content: str
) -> None:
    """The file in /etc, which is in order, is then nobody's."""
    node.write(OPERATORS[1:], content)
    assert node.look()[check].verdict is Verdict.OK  # of a toolkit that is not started
    program = f"{OPERATORS.partition('.config')[0]}nvidia-container-runtime"
    node.write(program[1:], "#!/bin/sh\n").chmod(0o755)
    section = CONTAINERD_NVIDIA.splitlines()[-2].replace(".nvidia.", ".operators.")
    node.write(
        "etc/containerd/conf.d/99-nvidia.toml",  # of two, the one that containers have by default
        CONTAINERD_NVIDIA.replace('"nvidia"', '"operators"')
        + f'{section}\nBinaryName = "{program}"\n',
    )
    found = node.look()[check]
    assert found.verdict is Verdict.FAILED
    assert OPERATORS in found.evidence
    assert (
        f"--config-file={OPERATORS} --in-place --set nvidia-container-runtime.mode=auto"
        in found.fix
    )
    assert ("--vendor=management.nvidia.com --class=gpu" in found.fix) is (check == "cdi-names")


def test_copies_of_a_gpu_share_it(node: DoctorNode) -> None:
    RESERVING(node)
    copies = Replication(resources=(Replicas(name="nvidia.com/gpu", replicas=2),))
    settings(mode="nvidia", time_slicing=copies)(node)
    assert node.look()["reservations"].verdict is Verdict.WARNING


def test_a_driver_before_r615_reserves_nothing(node: DoctorNode) -> None:
    node.write("var/lib/dpkg/status", DPKG.replace("1.18.2", "1.20.1"))
    found = node.look()["reservations"]
    assert found.verdict is Verdict.OK
    assert DRIVER in found.evidence


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"mode": "nvidia"}, id="whole GPUs"),
        pytest.param({"sharing": Sharing(mode="mig")}, id="MIG devices"),
    ],
)
def test_of_a_gpu_that_is_not_shared_anything_may_be_reserved(
    node: DoctorNode, changes: dict[str, Any]
) -> None:
    RESERVING(node)
    settings(**changes)(node)
    assert node.look()["reservations"].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("sharing", "verdict"),
    [
        pytest.param({"excluded_indices": frozenset([0])}, Verdict.OK, id="one is left out"),
        pytest.param({"excluded_indices": frozenset([0, 1])}, Verdict.SKIPPED, id="all are"),
        pytest.param({"mode": "mig"}, Verdict.SKIPPED, id="all are divided as is decided"),
    ],
)
def test_limits_are_tried_on_a_gpu_that_the_hook_shares(
    node: DoctorNode, sharing: dict[str, Any], verdict: Verdict
) -> None:
    """On one that is divided by MIG and has no instance yet CUDA does not start."""
    node.driver.change_gpu(0, SimGpu(uuid=UUID, name=A100, compute_capability="8.0", mig=True))
    node.driver.add_gpu(1, SimGpu(uuid=made_up_uuid(1), name=A100, compute_capability="8.0"))
    settings(sharing=Sharing(**sharing))(node)
    found = node.look()["hook-limits"]
    assert found.verdict is verdict, found


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        pytest.param("container_file_t", Verdict.OK, id="containers read and write"),
        pytest.param("container_ro_file_t", Verdict.WARNING, id="they only read"),
        pytest.param("usr_t", Verdict.WARNING, id="as /usr/local is labelled"),
    ],
)
def test_under_selinux_containers_have_to_write_where_they_count(
    node: DoctorNode, monkeypatch: pytest.MonkeyPatch, kind: str, verdict: Verdict
) -> None:
    node.write("sys/fs/selinux/enforce", "1")
    label = f"system_u:object_r:{kind}:s0\0".encode()
    monkeypatch.setattr(os, "getxattr", lambda _path, _name: label)
    found = node.look()["security-modules"]
    assert found.verdict is verdict, found


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("environ", "there", "said"),
    [
        pytest.param(POD, False, "no /dev/nvidia-caps/nvidia-cap1 (mig/config)", id="a pod"),
        pytest.param(POD, True, "is in MIG mode", id="a pod that has it"),
        pytest.param({}, False, "is in MIG mode", id="a service of the host"),
    ],
)
def test_a_pod_that_may_divide_no_gpu_is_told(
    node: DoctorNode, environ: dict[str, str], *, there: bool, said: str
) -> None:
    """NVIDIA's toolkit has not given the capability to anybody for some releases."""
    node.write("proc/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\ngpu0/gi0/access 3\n")
    node.driver.change_gpu(0, SimGpu(uuid=UUID, name=A100, compute_capability="8.0", mig=True))
    if there:
        node.write("dev/nvidia-caps/nvidia-cap1", "")
    effects(environ=environ)(node)
    settings(sharing=Sharing(mode="mig"))(node)
    found = node.look()["mig"]
    assert said in found.evidence
    assert found.verdict is (Verdict.OK if "MIG mode" in said else Verdict.WARNING)


def test_the_memory_of_a_gpu_in_mig_mode_need_not_be_told(node: DoctorNode) -> None:
    """It is not to a pod that may not monitor all of it, and nobody has to configure it."""
    node.driver.change_gpu(0, SimGpu(uuid=UUID, name=A100, compute_capability="8.0", mig=True))
    node.driver.fail("nvmlDeviceGetMemoryInfo", 4, 0)
    found = node.look()["gpu-memory"]
    assert (found.verdict, found.evidence) == (Verdict.OK, "GPU 0: in MIG mode")


def test_what_the_driver_keeps_of_a_gpus_memory_is_told(node: DoctorNode) -> None:
    node.driver.change_gpu(0, SimGpu(uuid=UUID, memory_mib=15360, reserved_mib=450))
    found = node.look()["gpu-memory"]
    assert found.verdict is Verdict.OK
    assert found.evidence == "GPU 0: 15360 MiB (450 of them the driver's own)"


ONE_PROCESS, NO_PROCESS = 3, 2
SLICED = Replication(resources=(Replicas(name="nvidia.com/gpu", replicas=4),))


@pytest.mark.parametrize(
    ("mode", "changes", "said"),
    [
        pytest.param(ONE_PROCESS, {"mode": "slices"}, "one process in", id="slices"),
        pytest.param(ONE_PROCESS, {"sharing": Sharing(split_count=1)}, "", id="one of each"),
        pytest.param(ONE_PROCESS, {"sharing": Sharing(split_count=1), "mode": "slices",
            "slice_sizes": (SliceSize(name="s", memory_mib=1, core_percent=1),)},
            "one process in", id="sizes"),
        pytest.param(ONE_PROCESS, {"sharing": Sharing(excluded_indices=frozenset({0}))}, "",
                     id="a GPU that is left out"),
        pytest.param(NO_PROCESS, {"sharing": Sharing(excluded_indices=frozenset({0}))}, "",
                     id="one for a screen, which is left out"),
        pytest.param(ONE_PROCESS, {"mode": "nvidia"}, "", id="whole GPUs, or MPS"),
        pytest.param(ONE_PROCESS, {"mode": "nvidia", "time_slicing": SLICED}, "one process in",
                     id="time slices"),
        pytest.param(NO_PROCESS, {"mode": "nvidia"}, "no process in", id="whole GPUs, none let in"),
    ],
)  # fmt: skip
def test_who_minds_a_gpu_that_is_kept_to_one_process(
    node: DoctorNode, mode: int, changes: dict[str, object], said: str
) -> None:
    node.driver.change_gpu(0, SimGpu(uuid=UUID, compute_mode=mode))
    settings(**changes)(node)
    found = node.look()["compute-mode"]
    assert found.verdict is (Verdict.FAILED if said else Verdict.OK), found
    assert said in found.evidence


def test_a_gpu_without_a_compute_mode_is_in_order(node: DoctorNode) -> None:
    node.driver.fail("nvmlDeviceGetComputeMode", 3)
    assert node.look()["compute-mode"].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("memory", "verdict"),
    [
        pytest.param("there", Verdict.OK, id="in memory"),
        pytest.param("nowhere", Verdict.SKIPPED, id="nowhere"),
    ],
)
def test_limits_are_tried_where_no_temporary_file_can_be_made(
    node: DoctorNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, memory: str, verdict: Verdict
) -> None:
    """As in the DaemonSet's pod, whose root is read-only: the check broke off."""
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setattr(hook, "MEMORY", str(tmp_path / memory))
    found = node.look()["hook-limits"]
    assert found.verdict is verdict, found
    assert not list((tmp_path / "there").iterdir())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"register_format": "csv9"}, id="HAMi 2.7"),
        pytest.param({"mode": "volcano"}, id="Volcano"),
    ],
)
def test_what_a_scheduler_misses_while_no_agent_runs_is_no_wrong_format(
    node: DoctorNode, changes: dict[str, Any]
) -> None:
    node.annotate(handshake=stamp("Requesting", ago_s=600))
    settings(**changes)(node)
    assert node.look()["scheduler-protocol"].verdict is Verdict.FAILED
    node.lock.release()
    assert node.look()["scheduler-protocol"].verdict is Verdict.SKIPPED


@pytest.mark.parametrize("mode", ["slices", "nvidia"])
def test_what_another_mode_has_left_on_the_node_is_named(node: DoctorNode, mode: str) -> None:
    """HAMi's scheduler goes on sending pods by it; they would get other shares than they asked for."""
    settings(mode=mode)(node)
    checks = in_mode(CHECKS, mode)
    found = node.look(checks)["register"]
    assert found.verdict is Verdict.WARNING
    assert "hami.io/node-nvidia-register" in found.evidence
    assert found.fix.endswith(" hami.io/node-nvidia-register-")
    node.annotate(register=None)
    assert node.look(checks)["register"].verdict is Verdict.OK
    node.api.fail(code=403, verb="get", resource="nodes")
    assert node.look(checks)["register"].verdict is Verdict.SKIPPED


def test_in_mode_nvidia_no_more_rights_are_advised_than_it_uses(node: DoctorNode) -> None:
    deny(("create", "events"))(node)
    settings(mode="nvidia")(node)
    found = node.look(in_mode(CHECKS, "nvidia"))["rights-events"]
    assert found.verdict is Verdict.FAILED
    assert "overlays/nvidia" in found.fix
    assert "base/rbac.yaml" not in found.fix


def test_a_newer_driver_is_installed_and_not_only_upgraded(node: DoctorNode) -> None:
    """Another branch is another package: apt passes over one that is to be upgraded and is not there."""
    node.driver.versions(cuda=11040)
    fix = node.look()["cuda-range"].fix
    assert fix.startswith("apt-get install nvidia-driver-")


@pytest.mark.parametrize(
    "broken", [pytest.param(one, id=f"{one.check}: {one.id}") for one in BREAKS]
)
def test_it_is_named_and_nothing_else(node: DoctorNode, broken: Break) -> None:
    if not broken.agent:
        node.lock.release()
    broken.do(node)
    found = node.look()
    mine = found.pop(broken.check)
    assert mine.verdict is broken.verdict, mine
    assert broken.says in mine.evidence
    assert mine.fix
    skipped = set() if mine.verdict is Verdict.WARNING else needing(broken.check)
    if not broken.agent:
        assert found.pop("agent").verdict is Verdict.SKIPPED
        for name in needing("agent"):
            assert found.pop(name).evidence == "needs `agent`, which is skipped"
    others = {name: (f.verdict, f.evidence) for name, f in found.items() if f.verdict != "ok"}
    assert {name: verdict for name, (verdict, _) in others.items()} == dict.fromkeys(
        skipped, Verdict.SKIPPED
    ), others
    assert all(f"`{broken.check}`" in evidence for _, evidence in others.values())
