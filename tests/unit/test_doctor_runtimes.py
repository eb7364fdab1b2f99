"""What doctor says of container runtimes: of CRI-O, and of those that are to give GPUs by CDI."""

from pathlib import Path

import pytest

from agent.config import Config
from agent.doctor import runtime, runtime_below
from agent.doctor.host import Host

CRIO, CONTAINERD = "etc/crio/crio.conf.d/10-crio.conf", "etc/containerd/config.toml"
DOCKER = "etc/docker/daemon.json"
DOCKERS = (
    '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'
)
BY_CDI = ("cdi-cri",)
NVIDIA_IS_DEFAULT = (
    '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"\n'
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
    'BinaryName = "/usr/bin/nvidia-container-runtime"\n'
)
OFF = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n'


@pytest.mark.parametrize(
    ("strategies", "name", "text", "verdict", "said"),
    [
        pytest.param(BY_CDI, CRIO, "", "ok", "cri-o gives by itself", id="CRI-O"),
        pytest.param(
            ("cdi-annotations",), CRIO, "", "ok", "cri-o gives by itself", id="CRI-O, by annotation"
        ),
        pytest.param(
            BY_CDI, CRIO, '[crio.runtime]\ncdi_spec_dirs = ["/run/cdi/"]\n', "ok",
            "/run/cdi/", id="CRI-O, the same directory by another name",
        ),
        pytest.param(
            BY_CDI, CRIO, '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n', "failed",
            "cri-o looks for CDI files in /etc/cdi, and the agent writes them to /var/run/cdi",
            id="CRI-O, another directory",
        ),
        pytest.param(
            ("envvar",), CRIO, "", "failed", "no handler of NVIDIA's", id="CRI-O, not by CDI"
        ),
        pytest.param(
            ("envvar", "cdi-cri"), CRIO, "", "failed", "no handler of NVIDIA's",
            id="CRI-O, not by CDI alone",
        ),
        pytest.param(
            BY_CDI, CONTAINERD, "version = 3\n", "ok", "by itself", id="containerd 2"
        ),
        pytest.param(
            BY_CDI, CONTAINERD, OFF.replace("false", "true"), "ok", "by itself",
            id="containerd 1.7, told to",
        ),
        pytest.param(
            BY_CDI, CONTAINERD, OFF, "failed", "enable_cdi = false", id="containerd, told not to"
        ),
        pytest.param(
            BY_CDI, CONTAINERD, OFF + NVIDIA_IS_DEFAULT, "failed", "enable_cdi = false",
            id="told not to, and NVIDIA's runtime, which kubelet's CDI devices do not reach",
        ),
        pytest.param(
            ("cdi-annotations",), CONTAINERD, OFF + NVIDIA_IS_DEFAULT, "ok",
            "default runtime is nvidia", id="told not to, and NVIDIA's runtime, which reads annotations",
        ),
        pytest.param(
            BY_CDI, DOCKER, DOCKERS, "warning", "0.3.17 does not", id="Docker",
        ),
        pytest.param(
            ("cdi-annotations",), DOCKER, DOCKERS, "warning", "0.3.17 does not",
            id="Docker, by annotation",
        ),
        pytest.param(
            ("envvar",), DOCKER, DOCKERS, "ok", "default runtime is nvidia",
            id="Docker, not by CDI",
        ),
        pytest.param(
            BY_CDI, CONTAINERD, "version = 2\n", "warning", "only with enable_cdi = true",
            id="containerd, of which the file does not tell the release",
        ),
    ],
)  # fmt: skip
def test_what_becomes_of_the_agents_cdi_files(
    tmp_path: Path, strategies: tuple[str, ...], name: str, text: str, verdict: str, said: str
) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    config = Config(node_name="n", device_list_strategy=strategies)
    found = runtime.nvidia_runtime(Host(config=config, environ={}, root=tmp_path))
    assert (found.verdict, said in found.evidence) == (verdict, True), found.evidence
    assert (found.fix == "") == (verdict == "ok")


def test_what_crio_starts_containers_with_that_is_told_nothing(tmp_path: Path) -> None:
    handler = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
    (tmp_path / CRIO).parent.mkdir(parents=True)
    (tmp_path / CRIO).write_text(handler)
    found = runtime.nvidia_runtime(Host(config=Config(node_name="n"), environ={}, root=tmp_path))
    assert found.verdict == "warning"
    assert "cri-o's default runtime is crun (runc before 1.31)" in found.evidence


def test_the_command_for_crio_writes_where_it_is_read_last(tmp_path: Path) -> None:
    """After what CRI-O's packages bring, which names a default runtime, too."""
    theirs = '[crio.runtime]\ndefault_runtime = "crun"\n'
    (tmp_path / CRIO).parent.mkdir(parents=True)
    (tmp_path / CRIO).write_text(theirs)
    host = Host(config=Config(node_name="n"), environ={}, root=tmp_path)
    named = runtime.nvidia_runtime(host).fix.partition("--config=")[2].split()[0]
    written = tmp_path / named.lstrip("/")
    written.write_text(
        '[crio.runtime]\ndefault_runtime = "nvidia"\n'
        '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
    )
    assert runtime.nvidia_runtime(host).verdict == "ok"


def test_crio_reads_directories_of_drop_ins_where_their_names_stand(tmp_path: Path) -> None:
    folder = tmp_path / "etc/crio/crio.conf.d"
    for name in ("10-a", "20/b", "20/c/d", "30-e"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f'[crio.runtime]\ndefault_runtime = "{name}"\n')
    host = Host(config=Config(node_name="n"), environ={}, root=tmp_path)

    def default() -> str:
        return runtime.runtimes(host)[0].runtime.default

    assert default() == "30-e"
    (folder / "30-e").unlink()
    assert default() == "20/c/d"


HOOK = Path("/usr/bin/nvidia-cdi-hook")
RUNC = '[crio.runtime]\ndefault_runtime = "runc"\n'
BY_PATH = (
    '[crio.runtime]\ndefault_runtime = "own"\n'
    '[crio.runtime.runtimes.own]\nruntime_path = "/usr/libexec/crio/crun"\n'
)


@pytest.mark.parametrize(
    ("text", "hook", "disabled", "verdict"),
    [
        pytest.param("", HOOK, (), "warning", id="CRI-O's own"),
        pytest.param(BY_PATH, HOOK, (), "warning", id="crun by its path"),
        pytest.param(BY_PATH, HOOK, ("update-ldcache",), "warning", id="one hook is left"),
        pytest.param(BY_PATH, HOOK, ("all",), "ok", id="no hook is named"),
        pytest.param(
            BY_PATH, HOOK, ("create-symlinks", "update-ldcache"), "ok", id="both left out"
        ),
        pytest.param(BY_PATH, None, (), "ok", id="no program"),
        pytest.param(RUNC, HOOK, (), "ok", id="runc"),
    ],
)
def test_crun_runs_hooks_in_a_root_that_is_read_only_already(
    tmp_path: Path, text: str, hook: Path | None, disabled: tuple[str, ...], verdict: str
) -> None:
    (tmp_path / CRIO).parent.mkdir(parents=True)
    (tmp_path / CRIO).write_text(text)
    config = Config(
        node_name="n",
        device_list_strategy=BY_CDI,
        cdi_hook_path=hook,
        cdi_disabled_hooks=disabled,
    )
    found = runtime.nvidia_runtime(Host(config=config, environ={}, root=tmp_path))
    assert found.verdict == verdict
    assert ("readOnlyRootFilesystem" in found.evidence) == (verdict == "warning")


ASIDE = "/usr/libexec/crio/crun"
NVIDIAS = (
    '[crio.runtime]\ndefault_runtime = "nvidia"\n'
    f'[crio.runtime.runtimes.crun]\nruntime_path = "{ASIDE}"\n'
    '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
)
PATH_TOLD = 'monitor_env = ["X=1", "PATH=/usr/libexec/crio:/bin"]\n'
SETTINGS = "etc/nvidia-container-runtime/config.toml"


@pytest.mark.parametrize(
    ("files", "programs", "verdict"),
    [
        pytest.param({CRIO: NVIDIAS}, (ASIDE,), "failed", id="as CRI-O's packages have it"),
        pytest.param({CRIO: NVIDIAS}, (ASIDE, "/usr/bin/crun"), "ok", id="crun in its place"),
        pytest.param({CRIO: NVIDIAS}, ("/usr/sbin/runc",), "ok", id="runc"),
        pytest.param({CRIO: NVIDIAS + PATH_TOLD}, (ASIDE,), "ok", id="CRI-O gives a PATH"),
        pytest.param(
            {CRIO: NVIDIAS, SETTINGS: f'[nvidia-container-runtime]\nruntimes = ["{ASIDE}"]\n'},
            (ASIDE,), "ok", id="named by its path",
        ),
        pytest.param(
            {CRIO: NVIDIAS, SETTINGS: '[nvidia-container-runtime]\nruntimes = ["/usr/bin/crun"]\n'},
            ("/usr/bin/runc", ASIDE), "failed", id="another is named, which is not there",
        ),
        pytest.param({CRIO: ""}, (), "ok", id="no runtime of NVIDIA's"),
        pytest.param({CONTAINERD: "version = 2\n" + NVIDIA_IS_DEFAULT}, (), "ok", id="containerd"),
    ],
)  # fmt: skip
def test_nvidias_runtime_finds_the_one_below_it(
    tmp_path: Path, files: dict[str, str], programs: tuple[str, ...], verdict: str
) -> None:
    for name, content in {**files, **dict.fromkeys(programs, "")}.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    host = Host(config=Config(node_name="n"), environ={}, root=tmp_path)
    found = runtime_below.runtime_below(host)
    assert found.verdict == verdict, found.evidence
    assert found.fix.endswith(f"nvidia-container-runtime.runtimes={ASIDE}") == (verdict == "failed")
