"""What doctor makes of the settings of NVIDIA's container toolkit."""

from pathlib import Path
from typing import Any

import pytest

from agent.config import Config
from agent.doctor import toolkit, toolkit_settings
from agent.doctor.finding import Verdict
from agent.doctor.host import Host
from agent.doctor.toolkit_settings import places, toolkit_objection
from agent.domain.gpu import Gpu, MigDevice

NO_CGROUPS = {"nvidia-container-cli": {"no-cgroups": True}}
# Keys that `nvidia-ctk config --set` takes, of 1.17.8, 1.19.1 and 1.20.2; it refuses any other.
KEYS = {
    "accept-nvidia-visible-devices-as-volume-mounts",
    "accept-nvidia-visible-devices-envvar-when-unprivileged",
    "nvidia-container-cli.no-cgroups",
    "nvidia-container-runtime.log-level",
    "nvidia-container-runtime.mode",
}


def with_mode(mode: str, **more: Any) -> dict[str, Any]:
    return {"nvidia-container-runtime": {"mode": mode, **more}}


@pytest.mark.parametrize(
    ("document", "version", "said"),
    [
        pytest.param(NO_CGROUPS, (1, 17, 8), "no-cgroups is true", id="its program, by default"),
        pytest.param(NO_CGROUPS, None, "no-cgroups is true", id="of no known version"),
        pytest.param(NO_CGROUPS, (1, 18, 0), "", id="the runtime names the nodes itself"),
        pytest.param(
            NO_CGROUPS | with_mode("legacy"), (1, 20, 2), "no-cgroups is true", id="asked for"
        ),
        pytest.param(NO_CGROUPS | with_mode("cdi"), (1, 17, 8), "", id="specs name the nodes"),
        pytest.param(with_mode("csv"), (1, 20, 2), "mode is csv", id="the mode of Tegra"),
    ],
)
def test_what_keeps_containers_from_their_gpu(
    document: dict[str, Any], version: tuple[int, int, int] | None, said: str
) -> None:
    """With a spec the runtime itself allows the nodes, and that setting is another program's."""
    problem = toolkit_objection(document, ("envvar",), version)
    assert (said in problem[0]) if said and problem else (problem is None and not said)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(with_mode("csv"), id="the mode of Tegra"),
        # As is advised for Podman without root.
        pytest.param(NO_CGROUPS | with_mode("legacy"), id="its program allows nothing"),
    ],
)
def test_what_does_not_matter_where_the_agent_describes_gpus(document: dict[str, Any]) -> None:
    """What CDI files name the container's own runtime allows; NVIDIA's is told of no GPU."""
    assert toolkit_objection(document, ("cdi-cri",)) is None


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("=", id="no TOML"),
        pytest.param("[nvidia-container-cli]\nno-cgroups = true\n", id="no cgroups"),
        pytest.param('[nvidia-container-runtime]\nmode = "csv"\n', id="the mode of Tegra"),
        pytest.param(
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n", id="by no variable"
        ),
    ],
)
def test_the_command_sets_what_the_toolkit_has(tmp_path: Path, content: str) -> None:
    file = tmp_path / toolkit_settings.TOOLKIT.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text(content)
    found = toolkit_settings.toolkit_config(Host(config=Config(node_name="n"), root=tmp_path))
    _, _, setting = found.fix.partition("nvidia-ctk config --in-place --set ")
    assert setting.partition("=")[0] in KEYS


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        pytest.param("\x7fELF", 0o755, id="of another machine"),
        pytest.param("#!/bin/sh\n", 0o644, id="nobody may run it"),
        pytest.param("#!/bin/sh\nexit 127\n", 0o755, id="it says nothing"),
    ],
)
def test_a_program_that_cannot_be_run_tells_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, mode: int
) -> None:
    """Then the next one is asked; what else is wrong with the toolkit is said all the same."""
    programs = [tmp_path / "bad", tmp_path / "good"]
    for program, text in zip(programs, (content, "#!/bin/sh\necho version 1.20.2\n"), strict=True):
        program.write_text(text)
        program.chmod(0o755)
    programs[0].chmod(mode)
    monkeypatch.setattr(toolkit, "DPKG", str(tmp_path / "none"))
    monkeypatch.setattr(toolkit, "PROGRAMS", tuple(map(str, programs)))
    found = toolkit.installed(Host(config=Config(node_name="n")))
    assert found == ((1, 20, 2), f"`{programs[1]} --version`")


@pytest.mark.parametrize(
    ("cdi", "kind", "folders"),
    [
        pytest.param({}, "nvidia.com/gpu", ("/etc/cdi", "/run/cdi"), id="nothing said"),
        pytest.param(
            {"default-kind": "management.nvidia.com/gpu", "spec-dirs": ["/var/run/cdi", "/a"]},
            "management.nvidia.com/gpu",
            ("/run/cdi", "/a"),
            id="of its own",
        ),
        pytest.param(
            {"spec-dirs": ["", 1]}, "nvidia.com/gpu", ("/etc/cdi", "/run/cdi"), id="no places"
        ),
    ],
)
def test_where_specs_are_looked_for(cdi: dict[str, Any], kind: str, folders: tuple[str]) -> None:
    assert places(with_mode("cdi", modes={"cdi": cdi})) == (kind, folders)


MIG = MigDevice(
    uuid="MIG-a", profile="1g.5gb", memory_mib=1, gpu_instance=1, compute_instance=0
)  # fmt: skip
GPU = Gpu(uuid="GPU-a", index=3, name="A", memory_mib=1, minor=0, mig_devices=(MIG,))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        pytest.param({"mig_strategy": "single"}, "MIG-a", id="by uuid"),
        pytest.param(
            {"mig_strategy": "single", "device_id_strategy": "index"}, "3:0", id="by index"
        ),
        pytest.param({"mig_strategy": "none"}, "GPU-a", id="the whole GPU is granted"),
    ],
)
def test_specs_have_to_have_a_mig_device_as_the_agent_names_it(
    tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    for name, content in {
        toolkit_settings.TOOLKIT: '[nvidia-container-runtime]\nmode = "cdi"\n',
        "/etc/cdi/nvidia.yaml": "",
    }.items():
        file = tmp_path / name.lstrip("/")
        file.parent.mkdir(parents=True)
        file.write_text(content)
    host = Host(config=Config(node_name="n", mode="nvidia", **settings), root=tmp_path)
    host.gpus = (GPU,)
    assert f"nvidia.com/gpu={named}: containers" in toolkit_settings.cdi_names(host).evidence
    file.write_text(
        f'{{cdiVersion: "0.6.0", kind: nvidia.com/gpu, devices: [{{name: "{named}"}}]}}'
    )
    assert toolkit_settings.cdi_names(host).verdict is Verdict.OK
