"""The DaemonSet's manifests: what Kubernetes takes, what the agent understands, and no more rights."""

import copy
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from install_page import PAGE, commands, other_programs
from kube_schema import Check, schema
from manifests import (
    BASE,
    CHOICES,
    COMPONENTS,
    DAEMONSET,
    OVERLAYS,
    Manifest,
    combined,
    container_of,
    name_of,
    only,
    plain,
)
from manifests import built as kustomized
from peers.debian_archive import PeersUnavailable

from agent.adapters.routes import HEALTHZ, READYZ
from agent.app import JOIN_WITHIN_S, LEAVE_WITHIN_S
from agent.config import RULES, Config, OneOf
from agent.settings import resolve
from agent.version import VERSION

pytestmark = pytest.mark.timeout(600)  # kustomize is compiled once

CDI, EVICT, HOST_PID, RUNTIME_CLASS, SURGE, VOLUME_MOUNTS = (
    DAEMONSET / "components" / name
    for name in ("cdi", "evict", "host-pid", "runtime-class", "surge", "volume-mounts")
)
HAMI, OLDER_HAMI = (DAEMONSET / "overlays" / name for name in ("hami", "hami-2.7"))
VOLCANO, NVIDIA = (DAEMONSET / "overlays" / name for name in ("volcano", "nvidia"))
MIG = DAEMONSET / "overlays" / "mig"
SLICES = DAEMONSET / "overlays" / "slices"
TOPS = (BASE, *OVERLAYS)
CHOICE = r"`(?:packaging/daemonset/)?((?:overlays|components)/[\w.-]+)`"

Built = Callable[[tuple[Path, tuple[Path, ...]]], list[Manifest]]
Change = Callable[[Manifest], object]


@pytest.fixture(scope="module")
def check() -> Iterator[Check]:
    with schema() as found:
        yield found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    known: dict[str, list[Manifest]] = {}

    def build(choice: tuple[Path, tuple[Path, ...]]) -> list[Manifest]:
        name = name_of(choice)
        if name not in known:
            try:
                known[name] = combined(choice, tmp_path_factory.mktemp("kustomize"))
            except PeersUnavailable as error:
                pytest.skip(str(error))
        return copy.deepcopy(known[name])

    return build


def pod_of(manifests: list[Manifest]) -> Manifest:
    found: Manifest = only("DaemonSet", manifests)["spec"]["template"]["spec"]
    return found


def variables(manifests: list[Manifest]) -> dict[str, str]:
    return {v["name"]: v.get("value", "") for v in container_of(manifests)["env"]}


# --- Kubernetes takes them ----------------------------------------------------------------------


def test_the_plain_manifests_are_what_the_schema_says(check: Check) -> None:
    assert {m["kind"]: check(m) for m in plain()} == {
        "ServiceAccount": [], "ClusterRole": [], "ClusterRoleBinding": [], "DaemonSet": [],
    }  # fmt: skip


@pytest.mark.parametrize("choice", CHOICES, ids=name_of)
def test_every_choice_of_overlay_and_components_can_be_built(
    check: Check, built: Built, choice: tuple[Path, tuple[Path, ...]]
) -> None:
    manifests = built(choice)
    assert [(m["kind"], check(m)) for m in manifests if check(m)] == []
    pod = pod_of(manifests)
    volumes = [volume["name"] for volume in pod["volumes"]]
    mounts = [mount["name"] for mount in container_of(manifests)["volumeMounts"]]
    assert sorted(volumes) == sorted(mounts)
    names = [variable["name"] for variable in container_of(manifests)["env"]]
    assert len(names) == len(set(names))


def test_the_instructions_list_every_overlay_and_component_there_is() -> None:
    there = {f"overlays/{path.name}" for path in OVERLAYS}
    there |= {f"components/{path.name}" for path in COMPONENTS}
    rows = re.findall(r"^\|(?! `\S+` adds ).*$", PAGE.read_text(), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(CHOICE, row)}
    assert listed == there


def test_there_is_an_overlay_for_every_mode() -> None:
    """And one for MIG, which is divided in more than one of them."""
    mode = RULES["mode"]
    assert isinstance(mode, OneOf)
    assert {path.name for path in OVERLAYS} >= {*mode.choices, "mig"}


@pytest.mark.parametrize(
    ("spoil", "objection"),
    [
        pytest.param(
            lambda d: d["spec"]["template"]["spec"].update(hostPid=True),
            "spec.template.spec.hostPid: Extra inputs are not permitted",
            id="misspelt field",
        ),
        pytest.param(
            lambda d: d["spec"]["template"]["spec"]["containers"][0]["env"][1].update(vlaue="x"),
            "spec.template.spec.containers.0.env.1.vlaue: Extra inputs are not permitted",
            id="misspelt field in a list",
        ),
        pytest.param(
            lambda d: d["spec"].pop("selector"), "spec.selector: Field required", id="no selector"
        ),
        pytest.param(
            lambda d: d["spec"]["template"]["spec"].update(terminationGracePeriodSeconds="15"),
            "spec.template.spec.terminationGracePeriodSeconds: Input should be a valid integer",
            id="wrong type",
        ),
        pytest.param(
            lambda d: d["metadata"].update(labels=["a"]),
            "metadata.labels: Input should be a valid dictionary",
            id="list where a table belongs",
        ),
        pytest.param(
            lambda d: d.update(apiVersion="extensions/v1beta1"),
            "nobody knows DaemonSet of extensions/v1beta1",
            id="version that is gone",
        ),
    ],
)
def test_a_broken_manifest_does_not_pass(check: Check, spoil: Change, objection: str) -> None:
    manifest = copy.deepcopy(only("DaemonSet", plain()))
    spoil(manifest)
    assert check(manifest) == [objection]


# --- the agent understands them -----------------------------------------------------------------


def configured(manifests: list[Manifest], **more: str) -> Config:
    """The agent's own reading of the container's variables."""
    environ = variables(manifests) | {"NODE_NAME": "node-1"} | more
    resolution = resolve({}, environ)
    assert not [note for note in resolution.notes if note.warning]
    return resolution.config


@pytest.fixture
def any_file(tmp_path: Path) -> Path:
    """A configuration file that sets nothing, for overlays that name one."""
    (file := tmp_path / "device-config.yaml").write_text("nvidia: {}\n")
    return file


@pytest.mark.parametrize("top", TOPS, ids=lambda path: path.name)
def test_what_the_agent_is_told_is_mounted(built: Built, any_file: Path, top: Path) -> None:
    manifests = built((top, ()))
    named = (
        {"VGPU_CONFIG_FILE": str(any_file)} if "VGPU_CONFIG_FILE" in variables(manifests) else {}
    )
    config = configured(manifests, **named)
    mounted = {mount["mountPath"] for mount in container_of(manifests)["volumeMounts"]}
    assert str(config.kubelet_socket.parent) in mounted
    assert str(config.pod_resources_socket.parent) in mounted
    assert str(config.host_vgpu_dir) in mounted
    assert str(config.state_dir) in mounted
    assert str(config.runtime_dir) in mounted
    assert str(config.host_proc) in mounted
    assert str(config.lock_dir.parent) in mounted
    assert config.kubeconfig is None
    assert container_of(manifests)["args"] == ["run"]
    file = variables(manifests).get("VGPU_CONFIG_FILE", "/hami/none")
    assert not named or str(Path(file).parent) in mounted


@pytest.mark.parametrize("top", OVERLAYS, ids=lambda path: path.name)
def test_an_overlay_with_the_name_of_a_mode_is_for_it(
    built: Built, any_file: Path, top: Path
) -> None:
    """`hami-2.7` is for mode hami; a name that is no mode's may be for any."""
    mode = RULES["mode"]
    assert isinstance(mode, OneOf)
    if (name := top.name.partition("-")[0]) in mode.choices:
        assert configured(built((top, ())), VGPU_CONFIG_FILE=str(any_file)).mode == name


def test_what_is_told_to_kubelet_is_at_the_same_path_on_the_host() -> None:
    volumes = {v["name"]: v["hostPath"]["path"] for v in pod_of(plain())["volumes"]}
    places = {m["mountPath"]: volumes[m["name"]] for m in container_of(plain())["volumeMounts"]}
    assert places["/usr/local/vgpu"] == "/usr/local/vgpu"


def test_hamis_configuration_is_read(built: Built, tmp_path: Path) -> None:
    manifests = built((HAMI, ()))
    container = container_of(manifests)
    sources = {v["name"]: v.get("configMap", {}).get("name") for v in pod_of(manifests)["volumes"]}
    places = {m["mountPath"]: sources[m["name"]] for m in container["volumeMounts"]}
    assert places["/hami"] == "hami-scheduler-device"
    assert places["/config"] == "hami-device-plugin"
    assert variables(manifests)["VGPU_CONFIG_FILE"] == "/hami/device-config.yaml"
    file = tmp_path / "device-config.yaml"
    file.write_text("nvidia:\n  deviceSplitCount: 7\n")
    config = configured(manifests, VGPU_CONFIG_FILE=str(file))
    assert (config.sharing.split_count, config.register_format) == (7, "json")


def test_volcanos_configuration_is_read(built: Built, tmp_path: Path) -> None:
    """As volcano-vgpu-device-plugin's ConfigMaps have it."""
    manifests = built((VOLCANO, ()))
    sources = {v["name"]: v.get("configMap", {}).get("name") for v in pod_of(manifests)["volumes"]}
    mounts = container_of(manifests)["volumeMounts"]
    places = {mount["mountPath"]: sources[mount["name"]] for mount in mounts}
    assert places["/volcano"] == "volcano-vgpu-device-config"
    assert places["/config"] == "volcano-vgpu-node-config"
    file = tmp_path / "device-config.yaml"
    file.write_text(
        "nvidia:\n  resourceCountName: volcano.sh/vgpu-number\n"
        "  resourceMemoryName: volcano.sh/vgpu-memory\n  resourceCoreName: volcano.sh/vgpu-cores\n"
        "  deviceSplitCount: 7\n  deviceCoreScaling: 1\n  gpuMemoryFactor: 10\n"
    )
    config = configured(manifests, VGPU_CONFIG_FILE=str(file))
    assert (config.mode, config.resource_name) == ("volcano", "volcano.sh/vgpu-number")
    assert (config.sharing.split_count, config.memory_factor) == (7, 10)
    assert config.answers_handshake


def test_the_form_for_older_schedulers(built: Built, any_file: Path) -> None:
    config = configured(built((OLDER_HAMI, ())), VGPU_CONFIG_FILE=str(any_file))
    assert (config.register_format, config.answers_handshake) == ("csv9", True)


def test_gpus_are_divided_where_that_is_chosen(built: Built, any_file: Path) -> None:
    manifests = built((MIG, ()))
    config = configured(manifests, VGPU_CONFIG_FILE=str(any_file))
    assert (config.mode, config.sharing.mode) == ("hami", "mig")
    assert variables(manifests)["NVIDIA_MIG_CONFIG_DEVICES"] == "all"
    places = {mount["mountPath"]: mount for mount in container_of(manifests)["volumeMounts"]}
    assert not places[str(config.mig_apply_lock.parent)].get("readOnly")
    assert rights(manifests) - rights(built((HAMI, ()))) == {"SYS_ADMIN", "/hami-tmp"}
    assert not container_of(manifests)["securityContext"]["privileged"]


def test_gpus_by_mounts(built: Built) -> None:
    manifests = built((BASE, (VOLUME_MOUNTS,)))
    assert configured(manifests).device_list_strategy == ("volume-mounts",)
    assert variables(manifests)["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"


def test_gpus_by_cdi(built: Built) -> None:
    manifests = built((NVIDIA, (CDI,)))
    config = configured(manifests)
    assert (config.mode, config.device_list_strategy) == ("nvidia", ("cdi-cri",))
    places = {mount["mountPath"]: mount for mount in container_of(manifests)["volumeMounts"]}
    assert not places[str(config.cdi_spec_dir)].get("readOnly")
    assert places[str(config.container_driver_root)]["readOnly"]


def test_the_runtime_class(built: Built) -> None:
    assert pod_of(built((BASE, (RUNTIME_CLASS,))))["runtimeClassName"] == "nvidia"


@pytest.mark.parametrize("top", TOPS, ids=lambda top: str(top.name))
def test_a_roll_out_with_surge_starts_the_new_agent_first(built: Built, top: Path) -> None:
    """And that one is ready while it stands by, or the roll-out would wait for ever."""
    manifests = built((top, (SURGE,)))
    strategy = only("DaemonSet", manifests)["spec"]["updateStrategy"]
    rolling = {"maxSurge": "10%", "maxUnavailable": 0}
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": rolling}
    assert {"name": "VGPU_READY_STANDING_BY", "value": "true"} in container_of(manifests)["env"]


def test_who_stands_by_is_ready_only_where_that_is_chosen(built: Built) -> None:
    assert configured(built((BASE, (SURGE,)))).ready_standing_by
    assert not configured(plain()).ready_standing_by


def test_what_gets_past_its_grant_is_evicted_where_that_is_chosen(built: Built) -> None:
    assert configured(plain()).on_bypass == "report"
    assert configured(built((BASE, (EVICT,)))).on_bypass == "evict"


@pytest.mark.parametrize("top", TOPS, ids=lambda top: str(top.name))
def test_who_may_evict_may_say_so(built: Built, top: Path) -> None:
    """Without the Event a tenant sees a pod vanish, and nobody tells why."""
    manifests = built((top, (EVICT,)))
    rules = only("ClusterRole", manifests)["rules"]
    allowed = {
        (what, verb) for rule in rules for what in rule["resources"] for verb in rule["verbs"]
    }
    assert allowed >= {("pods/eviction", "create"), ("events", "create")}
    assert pod_of(manifests).get("automountServiceAccountToken") is not False


def test_the_hosts_pids_are_shared_where_that_is_chosen(built: Built) -> None:
    assert pod_of(built((BASE, (HOST_PID,))))["hostPID"] is True


def test_probes_ask_what_the_agent_answers() -> None:
    container, config = container_of(plain()), configured(plain())
    [port] = container["ports"]
    assert config.metrics_address == f":{port['containerPort']}"
    probes = [container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
    assert [probe["path"] for probe in probes] == [HEALTHZ, READYZ]
    assert {probe["port"] for probe in probes} == {port["name"]}


def test_it_has_time_to_stop() -> None:
    assert pod_of(plain())["terminationGracePeriodSeconds"] > 2 * (JOIN_WITHIN_S + LEAVE_WITHIN_S)


def test_the_image_is_that_of_this_version() -> None:
    container = container_of(plain())
    labels = only("DaemonSet", plain())["spec"]["template"]["metadata"]["labels"]
    assert container["image"] == f"localhost/vgpu-agent:{VERSION}"
    assert labels["app.kubernetes.io/version"] == VERSION


# --- no more rights than it needs ---------------------------------------------------------------


def rights(manifests: list[Manifest]) -> set[str]:
    """Directories it may write, capabilities, `<verb> <resource>[.<group>]`, host namespaces."""
    pod, container = pod_of(manifests), container_of(manifests)
    mounts = container["volumeMounts"]
    found = {mount["mountPath"] for mount in mounts if not mount.get("readOnly")}
    found |= set(container["securityContext"]["capabilities"]["add"])
    found |= {name for name in ("hostPID", "hostIPC", "hostNetwork") if pod.get(name)}
    for role in (m for m in manifests if m["kind"] in ("ClusterRole", "Role")):
        for rule in role["rules"]:
            assert set(rule) == {"apiGroups", "resources", "verbs"}, "of any name"
            groups = [f".{group}" if group else "" for group in rule["apiGroups"]]
            found |= {
                f"{verb} {resource}{group}"
                for verb in rule["verbs"]
                for resource in rule["resources"]
                for group in groups
            }
    return found


BASE_RIGHTS = {
    *("/var/lib/kubelet/device-plugins", "/usr/local/vgpu", "/var/lib/vgpu-agent"),
    *("/run/vgpu-agent", "DAC_OVERRIDE", "FOWNER", "SYS_PTRACE"),
    *("get nodes", "watch nodes", "patch nodes"),
    *("get pods", "list pods", "watch pods", "patch pods", "create events"),
}


def test_what_the_base_may_do() -> None:
    assert rights(plain()) == BASE_RIGHTS


def test_slices_need_nothing_of_the_cluster(built: Built) -> None:
    manifests = built((SLICES, ()))
    assert only("ClusterRole", manifests)["rules"] == []
    assert pod_of(manifests)["automountServiceAccountToken"] is False
    assert pod_of(built((SLICES, (EVICT,))))["automountServiceAccountToken"] is True


def added(choice: tuple[Path, tuple[Path, ...]]) -> set[str]:
    """What the instructions say that it may do besides, in the table of what a choice adds."""
    told: dict[str, set[str]] = {}
    for name, things in re.findall(r"^\| `(\S+)` adds \|(.*?)\|", PAGE.read_text(), re.MULTILINE):
        told[name] = set(re.findall(r"`([^`]+)`", things))
    top, chosen = choice
    parts = [*(built_of(top) if top != BASE else ()), *chosen]
    return {thing for part in parts for thing in told.get(f"{part.parent.name}/{part.name}", ())}


def built_of(overlay: Path) -> Iterator[Path]:
    """An overlay, and the overlays and components in this tree that it is made of."""
    yield overlay
    text = yaml.safe_load((overlay / "kustomization.yaml").read_text())
    for name in (*text.get("resources", ()), *text.get("components", ())):
        if (part := (overlay / name).resolve()) in (*OVERLAYS, *COMPONENTS):
            yield from built_of(part)


@pytest.mark.parametrize("choice", CHOICES, ids=name_of)
def test_a_choice_gives_it_the_rights_that_the_instructions_say(
    built: Built, choice: tuple[Path, tuple[Path, ...]]
) -> None:
    manifests = built(choice)
    assert rights(manifests) - BASE_RIGHTS == added(choice)
    security = container_of(manifests)["securityContext"]
    assert (security["privileged"], security["allowPrivilegeEscalation"]) == (False, False)
    assert security["readOnlyRootFilesystem"]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["capabilities"]["drop"] == ["ALL"]


@pytest.mark.parametrize("choice", CHOICES, ids=name_of)
def test_a_role_is_bound_to_its_account_alone(
    built: Built, choice: tuple[Path, tuple[Path, ...]]
) -> None:
    manifests = built(choice)
    account = only("ServiceAccount", manifests)["metadata"]
    assert pod_of(manifests)["serviceAccountName"] == account["name"]
    kinds = [m["kind"] for m in manifests]
    assert not {"Role", "RoleBinding"} & set(kinds)
    assert kinds.count("ClusterRole") == kinds.count("ClusterRoleBinding") <= 1
    for binding in (m for m in manifests if m["kind"] == "ClusterRoleBinding"):
        assert binding["roleRef"]["name"] == only("ClusterRole", manifests)["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]


# --- its place among the pods of a node ---------------------------------------------------------


def at(manifest: object, path: str) -> object:
    """What is at a path of keys; None where nothing is."""
    for key in path.split("."):
        manifest = manifest.get(key) if isinstance(manifest, dict) else None
    return manifest


@pytest.mark.parametrize("choice", CHOICES, ids=name_of)
def test_every_choice_keeps_its_place(
    built: Built, choice: tuple[Path, tuple[Path, ...]], subtests: pytest.Subtests
) -> None:
    manifests = built(choice)
    pod, container = pod_of(manifests), container_of(manifests)
    strategy = only("DaemonSet", manifests)["spec"]["updateStrategy"]
    rolled = "maxSurge" if SURGE in choice[1] else "maxUnavailable"
    for why, found, wanted in (
        ("evicted last", pod["priorityClassName"], "system-node-critical"),
        ("on GPU nodes that are kept for GPU pods",
         sorted(one["key"] for one in pod["tolerations"] if one["operator"] == "Exists"),
         ["CriticalAddonsOnly", "nvidia.com/gpu"]),
        ("not on nodes that others drain", [one for one in pod["tolerations"] if "key" not in one], []),
        ("a node at a time, or a tenth", at(strategy, f"rollingUpdate.{rolled}"), "10%"),
        ("replaced by a new version", at(strategy, "type"), "RollingUpdate"),
        ("three times what it may need", at(container, "resources.limits"), {"memory": "256Mi"}),
        ("what it may need", at(container, "resources.requests"), {"cpu": "20m", "memory": "80Mi"}),
        ("on GPU nodes only", pod["nodeSelector"],
         {"gpu": "on", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}),
        ("taken from the node when it is there", container["imagePullPolicy"], "IfNotPresent"),
        ("its last words are told of it", container.get("terminationMessagePolicy"),
         "FallbackToLogsOnError"),
    ):  # fmt: skip
        with subtests.test(why):
            assert found == wanted


# --- the instructions ---------------------------------------------------------------------------


def test_every_command_of_the_instructions_is_run_by_a_test() -> None:
    """Kubectl's in tests/cluster/test_install_page.py, ctr's and our own in tests/bundle."""
    own = f"./vgpu-agent-{VERSION}-linux-x86_64"
    assert other_programs("kubectl", "ctr", own) == set()
    assert len(commands(own)) == 1
    assert len(commands("ctr")) == 1
    assert f"vgpu-agent-{VERSION}-linux-x86_64.oci.tar" in commands("ctr")[0][-1]


def test_every_path_that_the_instructions_name_is_there() -> None:
    page = PAGE.read_text()
    named = re.findall(r"(?:packaging/daemonset|overlays|components|tests)/[\w./-]+\w", page)
    assert len(named) > 10
    tops = (DAEMONSET, DAEMONSET.parents[1])
    assert not [name for name in named if not any((top / name).exists() for top in tops)]


# --- what the pages tell readers to write and type ----------------------------------------------

SLICES_PAGE = PAGE.parents[1] / "modes" / "slices.md"
NVIDIA_PAGE = PAGE.parents[1] / "modes" / "nvidia.md"


def examples(page: Path) -> list[str]:
    """Kustomizations of a reader's own, as a page shows them, whole."""
    fenced = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for text in fenced if text.startswith("resources: [") and "packaging/" in text]


@pytest.mark.parametrize(
    ("page", "has", "variable"),
    [
        pytest.param(PAGE, "tolerations", ("VGPU_LOG_LEVEL", "debug"), id="a setting and a taint"),
        pytest.param(PAGE, "components", None, id="a component"),
        pytest.param(PAGE, "gpu.deploy", None, id="the GPU Operator's label"),
        pytest.param(PAGE, "spc_t", None, id="under SELinux"),
        pytest.param(PAGE, "nameSuffix", ("VGPU_MODE", "slices"), id="a mode for some nodes"),
        pytest.param(SLICES_PAGE, "patches", ("VGPU_DEVICE_SPLIT_COUNT", "4"), id="a split count"),
        pytest.param(
            NVIDIA_PAGE, "mps", ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"), id="MPS"
        ),
    ],
)
def test_an_example_of_a_kustomization_is_built(
    check: Check,
    tmp_path: Path,
    any_file: Path,
    page: Path,
    has: str,
    variable: tuple[str, str] | None,
) -> None:
    [text] = [example for example in examples(page) if has in example]
    (here := tmp_path / "slices").mkdir()
    path = os.path.relpath(DAEMONSET, here.resolve())
    (here / "kustomization.yaml").write_text(
        re.sub(r"(?:\.\./)?packaging/daemonset", path, text), encoding="utf-8"
    )
    try:
        manifests = kustomized(here)
    except PeersUnavailable as error:
        pytest.skip(str(error))
    assert [check(manifest) for manifest in manifests if check(manifest)] == []
    if variable is not None:
        assert variable in variables(manifests).items()
        configured(manifests, VGPU_CONFIG_FILE=str(any_file))
    if has == "tolerations":
        assert "dedicated" in [one["key"] for one in pod_of(manifests)["tolerations"]]
    if has == "gpu.deploy":
        label = "nvidia.com/gpu.deploy.client"
        assert {"gpu": "on", label: "true"}.items() <= pod_of(manifests)["nodeSelector"].items()
    if has == "mps":
        container = container_of(manifests)
        assert "SYS_ADMIN" in container["securityContext"]["capabilities"]["add"]
        assert "limits" not in container["resources"], "the daemon's servers count there, too"


def test_the_library_lies_elsewhere_where_usr_is_read_only(tmp_path: Path, any_file: Path) -> None:
    [text] = [example for example in examples(PAGE) if "VGPU_HOST_HOOK_PATH" in example]
    path = os.path.relpath(DAEMONSET, tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(text.replace("packaging/daemonset", path))
    try:
        manifests = kustomized(tmp_path)
    except PeersUnavailable as error:
        pytest.skip(str(error))
    config = configured(manifests, VGPU_CONFIG_FILE=str(any_file))
    there, usual = str(config.host_vgpu_dir), str(configured(plain()).host_vgpu_dir)
    assert there != usual
    assert str(config.lock_dir).startswith(f"{there}/")
    volumes = {one["name"]: one.get("hostPath", {}) for one in pod_of(manifests)["volumes"]}
    places = {one["mountPath"]: one["name"] for one in container_of(manifests)["volumeMounts"]}
    assert volumes[places[there]] == {"path": there, "type": "DirectoryOrCreate"}
    assert usual not in json.dumps(pod_of(manifests)), "nothing of it lies in /usr any more"


def test_two_modes_have_nothing_in_common_but_the_name_that_commands_go_by(tmp_path: Path) -> None:
    """With the suffix no object of the one takes the place of the other's."""
    [text] = [example for example in examples(PAGE) if "nameSuffix" in example]
    path = os.path.relpath(DAEMONSET, tmp_path.resolve() / "x")
    made: dict[str, list[Manifest]] = {}
    for mode in ("slices", "nvidia"):
        (here := tmp_path / mode).mkdir()
        (here / "kustomization.yaml").write_text(
            text.replace("slices", mode).replace("../packaging/daemonset", path)
        )
        try:
            made[mode] = kustomized(here)
        except PeersUnavailable as error:
            pytest.skip(str(error))
    named = {mode: {(m["kind"], m["metadata"]["name"]) for m in of} for mode, of in made.items()}
    assert not named["slices"] & named["nvidia"]
    for mode, manifests in made.items():
        binding, daemonset = only("ClusterRoleBinding", manifests), only("DaemonSet", manifests)
        account = only("ServiceAccount", manifests)["metadata"]["name"]
        assert binding["roleRef"]["name"] == only("ClusterRole", manifests)["metadata"]["name"]
        assert [subject["name"] for subject in binding["subjects"]] == [account]
        pod = daemonset["spec"]["template"]
        assert pod["spec"]["serviceAccountName"] == account
        assert pod["spec"]["nodeSelector"]["vgpu-mode"] == mode
        assert daemonset["spec"]["selector"]["matchLabels"] == {
            "app.kubernetes.io/name": "vgpu-agent", "vgpu-mode": mode,
        }  # fmt: skip
        assert (
            daemonset["spec"]["selector"]["matchLabels"].items()
            <= pod["metadata"]["labels"].items()
        )


def test_commands_on_one_node_find_what_the_manifests_make() -> None:
    section = PAGE.read_text().partition("## Commands on one node")[2].partition("\n## ")[0]
    pod, container = only("DaemonSet", plain())["spec"]["template"], container_of(plain())
    [label] = re.findall(r"get pod -l (\S+)=(\S+) ", section)
    assert pod["metadata"]["labels"][label[0]] == label[1]
    assert set(re.findall(r"-n (\S+) ", section)) == {
        only("DaemonSet", plain())["metadata"]["namespace"]
    }
    [port] = container["ports"]
    assert set(re.findall(r'port-forward "\$POD" (\d+)', section)) == {str(port["containerPort"])}
    assert set(re.findall(r"localhost:(\d+)", section)) == {str(port["containerPort"])}
    assert set(re.findall(r'exec (?:-it )?"\$POD" -- (\S+) (\S+)', section)) == {
        ("vgpu-agent", "top"), ("vgpu-agent", "limit"), ("vgpu-agent", "doctor"),
    }  # fmt: skip
