"""The command line: commands, help, exit codes, and what is printed where."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from agent import logs
from agent.cli import main
from agent.command_line import settings_parser
from agent.config import Config
from agent.domain.dialect import LOCK
from agent.domain.handshake import HANDSHAKE
from agent.domain.register import REGISTER, SCORE
from agent.errors import AgentError, ConfigError
from agent.settings.table import SETTINGS
from agent.version import VERSION

ROOT = Path(__file__).parents[2]
NODE = {"NODE_NAME": "gpu-1"}


@pytest.fixture(name="started")
def app_that_records(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Replaces the daemon: what it would have been started with."""
    started: list[Config] = []

    def run(config: Config) -> int:
        started.append(config)
        if config.node_name == "refused":
            raise ConfigError("the device list is too large; use at most 3")
        return 1 if config.node_name == "gives-up" else 0

    app = ModuleType("agent.app")
    app.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agent.app", app)
    monkeypatch.setattr(logs._SINK, "stream", None)
    monkeypatch.setattr(logs._SINK, "format", "logfmt")
    monkeypatch.setattr(logs._SINK, "level", logs._SINK.level)
    return started


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"], {}) == 0
    assert capsys.readouterr().out == f"vgpu-agent {VERSION}\n"
    assert main(["--version"], {}) == 0


def test_version_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"], {}) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["version"]) == ("vgpu-agent", VERSION)
    assert told["build"] == {"kind": "source"}
    assert told["hook"] is None or len(told["hook"]["sha256"]) == 64
    assert told["protocols"]["device_plugin"] == "v1beta1"
    assert told["protocols"]["register_formats"] == ["json", "csv9", "csv7"]


@pytest.mark.parametrize("command", ["version", "--help", "config"])
def test_nothing_heavy_is_imported(command: str, tmp_path: Path) -> None:
    probe = (
        "import sys\nfrom agent.cli import main\n"
        f"code = main([{command!r}], {{'NODE_NAME': 'a'}})\n"
        "heavy = {'grpc', 'google', 'kubernetes', 'pynvml', 'prometheus_client', 'watchdog', "
        "'yaml', 'ssl'}\n"
        "print('\\nheavy:', *sorted(heavy & set(sys.modules)))\n"
        "raise SystemExit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "heavy:"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        pytest.param([], 2, id="nothing"),
        pytest.param(["--help"], 0, id="--help"),
        pytest.param(["help"], 0, id="help"),
    ],
)
def test_overview(capsys: pytest.CaptureFixture[str], argv: list[str], code: int) -> None:
    assert main(argv, {}) == code
    out = capsys.readouterr().out
    for word in ("run ", "uninstall ", "demo ", "config ", "version ", "exit codes:", "examples:"):
        assert word in out


@pytest.mark.parametrize("command", ["run", "config", "uninstall"])
def test_the_help_of_a_command_is_the_manual(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"], {})
    assert ended.value.code == 0
    out = capsys.readouterr().out
    unbroken = "".join(out.split())
    for setting in SETTINGS:
        assert f"--{setting.name}" in out
        assert all(name in unbroken for name in setting.environment)
    assert "exit codes:" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        pytest.param(["rum"], "'run' is close", id="misspelt command"),
        pytest.param(["uninstal"], "'uninstall' is close", id="misspelt uninstall"),
        pytest.param(["uninstall", "--dryrun"], "there is --dry-run", id="misspelt --dry-run"),
        pytest.param(["uninstall", "--dry-run=client"], "--dry-run", id="--dry-run as kubectl's"),
        pytest.param(["run", "--dry-run"], "no option '--dry-run'", id="--dry-run of run"),
        pytest.param(["run", "--node-nam", "x"], "there is --node-name", id="misspelt flag"),
        pytest.param(["run", "--node"], "no option '--node'", id="no abbreviations"),
        pytest.param(["run", "gpu-1"], "no option 'gpu-1'", id="a word too many"),
        pytest.param(["run", "--node-name"], "expected one argument", id="value missing"),
        pytest.param(["version", "--xml"], "--xml", id="unknown option of version"),
        pytest.param(["config", "--json", "--markdown"], "not allowed with", id="two shapes"),
        pytest.param(
            ["run", "--device-split-count=900000"],
            "--device-split-count is '900000', but it must be 1 to 65536 vGPUs per GPU; choose",
            id="value out of range",
        ),
    ],
)
def test_a_mistake_ends_with_2_and_a_sentence(
    capsys: pytest.CaptureFixture[str], started: list[Config], argv: list[str], words: str
) -> None:
    try:
        code: object = main(argv, NODE)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("vgpu-agent: ")
    assert words in last
    assert not started


@pytest.mark.parametrize(
    ("argv", "split_count"),
    [
        pytest.param(["run", "--device-split-count=4"], 4, id="run"),
        pytest.param(["--device-split-count=4"], 4, id="HAMi's plugin has no command"),
        pytest.param(["run", "--device-split-count", "3", "--device-split-count", "4"], 4, id="the last one counts"),
        pytest.param(["run", "-v", "4"], 10, id="-v 4"),
        pytest.param(["run", "-v=4"], 10, id="-v=4"),
    ],
)  # fmt: skip
def test_run(started: list[Config], argv: list[str], split_count: int) -> None:
    assert main(argv, NODE) == 0
    assert [config.sharing.split_count for config in started] == [split_count]


def test_hami_s_own_command_line(started: list[Config], tmp_path: Path) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text("nvidia:\n  deviceSplitCount: 5\n  deviceMemoryScaling: 1.5\n")
    environ = {
        "NODE_NAME": "gpu-1",
        "NVIDIA_MIG_MONITOR_DEVICES": "all",
        "DEVICE_LIST_STRATEGY": "envvar",
        "HOOK_PATH": "/usr/local",
    }
    argv = [f"--config-file={path}", "--mig-strategy=none", "--disable-core-limit=false"]
    assert main(argv, environ) == 0
    (config,) = started
    assert config.sharing.split_count == 5
    assert config.sharing.memory_scaling == 1.5
    assert not config.disable_core_limit


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        pytest.param([], False, id="not given"),
        pytest.param(["--clean-exit"], True, id="alone"),
        pytest.param(["--clean-exit=true"], True, id="with a value"),
        pytest.param(["--clean-exit", "false"], False, id="with a value of its own"),
        pytest.param(["--clean-exit", "--pass-device-specs"], True, id="before another flag"),
    ],
)
def test_switches(started: list[Config], argv: list[str], value: bool) -> None:
    assert main(["run", *argv], NODE) == 0
    assert started[0].clean_exit is value


@pytest.mark.parametrize(
    ("node_name", "code"),
    [
        pytest.param("fine", 0, id="stopped"),
        pytest.param("gives-up", 1, id="gave up"),
        pytest.param("refused", 2, id="refused by the daemon itself"),
    ],
)
def test_exit_code_of_run(started: list[Config], node_name: str, code: int) -> None:
    assert main(["run", f"--node-name={node_name}"], {}) == code


@pytest.fixture(name="uninstalled")
def uninstall_that_records(
    monkeypatch: pytest.MonkeyPatch, started: list[Config]
) -> list[tuple[str, bool]]:
    """Replaces what `uninstall` does: the node and --dry-run it was called with."""
    called: list[tuple[str, bool]] = []
    errors: dict[str, BaseException] = {
        "left": AgentError("an agent runs here; stop it first"),
        "keyless": ConfigError("there is no kubeconfig; name one"),
        "impatient": KeyboardInterrupt(),
    }

    def uninstall(
        config: Config, *, dry_run: bool, say: Callable[[str], None], **_: object
    ) -> None:
        called.append((config.node_name, dry_run))
        if error := errors.get(config.node_name):
            raise error
        say("removed")

    module = ModuleType("agent.uninstall")
    module.uninstall = uninstall  # type: ignore[attr-defined]
    module.what_stays = lambda config, root: f"stays: {config.state_dir}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agent.uninstall", module)
    monkeypatch.setattr("agent.hostinstall.removal.removal", lambda asked, say: None)
    return called


@pytest.mark.parametrize(
    ("argv", "dry_run"),
    [
        pytest.param([], False, id="in earnest"),
        pytest.param(["--dry-run"], True, id="--dry-run"),
        pytest.param(["-dry-run"], True, id="-dry-run, as Go takes it"),
    ],
)
def test_uninstall(
    uninstalled: list[tuple[str, bool]],
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    dry_run: bool,
) -> None:
    assert main(["uninstall", "--clean-exit", "--v=2", *argv], NODE) == 0
    assert uninstalled == [("gpu-1", dry_run)]
    assert capsys.readouterr().out == "removed\nstays: /var/lib/vgpu-agent\n"


@pytest.mark.parametrize(
    ("node_name", "code", "words"),
    [
        pytest.param("left", 1, "vgpu-agent: an agent runs here; stop it first", id="not removed"),
        pytest.param("keyless", 2, "vgpu-agent: there is no kubeconfig; name one", id="wrong setting"),
        pytest.param("impatient", 130, "can be run again", id="Ctrl-C"),
    ],
)  # fmt: skip
def test_exit_code_of_uninstall(
    uninstalled: list[tuple[str, bool]],
    capsys: pytest.CaptureFixture[str],
    node_name: str,
    code: int,
    words: str,
) -> None:
    assert main(["uninstall", f"--node-name={node_name}"], {}) == code
    said = capsys.readouterr()
    assert words in said.err.splitlines()[-1]
    assert said.out == ""


def test_the_manual_of_uninstall_says_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["uninstall", "--help"], {})
    out = capsys.readouterr().out
    for words in (
        "--dry-run",
        REGISTER,
        SCORE,
        HANDSHAKE,
        LOCK,
        "systemctl stop",
        "directories below",
    ):
        assert words in out


def test_notes_are_logged_at_start(
    capsys: pytest.CaptureFixture[str], started: list[Config]
) -> None:
    main(["run", "--log-format=logfmt"], {**NODE, "HOOK_PATH": "/usr/local/vgpu"})
    assert "setting_noted" in capsys.readouterr().err


def test_demo_gets_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def demo(argv: list[str]) -> int:
        seen.append(argv)
        return 3

    module = ModuleType("agent.demo")
    module.main = demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agent.demo", module)
    assert main(["demo", "--json", "--help"], {}) == 3
    assert seen == [["--json", "--help"]]


def test_config_prints_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--device-split-count", "4"], NODE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(SETTINGS)
    assert "device-split-count 4 flag --device-split-count" in [" ".join(x.split()) for x in lines]


def test_config_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json"], NODE) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in printed["settings"]}
    assert rows["node-name"]["value"] == "gpu-1"
    assert rows["node-name"]["origin"] == "environment NODE_NAME"


def test_config_asks_about_the_service_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As doctor does: it printed the defaults of a program that does not run there."""
    monkeypatch.setattr("agent.cli.HOST", tmp_path)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/vgpu-agent").mkdir()
    unit = ROOT / "packaging" / "systemd" / "vgpu-agent.service"
    (tmp_path / "etc/systemd/system/vgpu-agent.service").write_bytes(unit.read_bytes())
    (tmp_path / "etc/vgpu-agent/vgpu-agent.env").write_text(
        "VGPU_MODE=slices\nVGPU_DEVICE_SPLIT_COUNT=4\nVGPU_METRICS_BIND_ADRESS=off\n"
    )
    assert main(["config", "--json"], {**NODE, "VGPU_DEVICE_SPLIT_COUNT": "5"}) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = {row["name"]: (row["value"], row["origin"]) for row in printed["settings"]}
    of_service = "of vgpu-agent.service"
    assert rows["mode"] == ("slices", f"environment VGPU_MODE {of_service}")
    assert rows["vgpulock-dir"][1] == f"environment VGPU_VGPULOCK_DIR {of_service}"
    assert rows["device-split-count"] == ("5", "environment VGPU_DEVICE_SPLIT_COUNT")
    assert ["VGPU_METRICS_BIND_ADRESS" in note["text"] for note in printed["notes"]] == [True]


def test_config_prints_the_manual(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--markdown"], {}) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "configuration.md").read_text()


def test_an_interrupted_command_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ^C in `vgpu-agent doctor --wait 5m`, whose checks take as long as they take."""

    def impatient(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("agent.doctor.command.main", impatient)
    assert main(["doctor"], NODE) == 130
    assert capsys.readouterr().err == "vgpu-agent: interrupted\n"


def test_a_closed_pipe_is_no_traceback() -> None:
    """As `vgpu-agent config --markdown | head -1`."""
    program = [sys.executable, "agent.py", "config", "--markdown"]
    with subprocess.Popen(
        program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
        code = process.wait(30)
    assert (code, said) == (141, b"")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["version"], id="version"),
        pytest.param(["--help"], id="--help"),
        pytest.param(["run", "--help"], id="run --help"),
        pytest.param(["config", "--node-name=n"], id="config"),
        pytest.param(["config", "--markdown"], id="config --markdown"),
        pytest.param(["demo"], id="demo"),
    ],
)
@pytest.mark.parametrize("output", ["> /dev/full", "1< /dev/null", ">&-", "<&- >&-"])
def test_an_output_that_takes_nothing_is_one_sentence(arguments: list[str], output: str) -> None:
    program = ["sh", "-c", f'exec "$@" {output}', "sh", sys.executable, "agent.py", *arguments]
    done = subprocess.run(
        program, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False, timeout=250
    )
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.startswith("vgpu-agent: the output cannot be written (")


def test_what_tells_nothing_may_have_no_output() -> None:
    """And what it opens does not come to be its output."""
    look = "import os; print(os.readlink('/proc/self/fd/1'), file=__import__('sys').stderr)"
    program = "from agent.cli import main; import agent.cli as c; c._HANDLERS = {'run': run}; exit(main(['run']))"
    words = [sys.executable, "-c", f"def run(*_):\n    {look}\n    return 0\n{program}"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words], cwd=ROOT, stderr=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"/dev/null\n")


def test_every_flag_of_the_table_is_a_flag_of_run() -> None:
    flags = {flag for action in settings_parser("run")._actions for flag in action.option_strings}
    wanted = {f"--{name}" for s in SETTINGS for name in (s.name, *s.aliases) if len(name) > 1}
    assert wanted | {"-v"} <= flags


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--device-split-count=3"], id="two dashes"),
        pytest.param(["-device-split-count=3"], id="one dash, as Go takes it"),
        pytest.param(["-device-split-count", "3"], id="one dash and a blank"),
        pytest.param(
            ["--v=4", "--device-split-count", "3"], id="the level of Go's logger with two dashes"
        ),
    ],
)
def test_flags_in_gos_spelling(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json", "--node-name", "n1", *arguments], {}) == 0
    told = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)["settings"]}
    assert str(told["device-split-count"]) == "3"


@pytest.mark.parametrize(
    ("command", "own", "others"),
    [
        pytest.param("run", "vgpu-agent run --config-file", "vgpu-agent install", id="run"),
        pytest.param("config", "0  printed", "vgpu-agent run --", id="config"),
        pytest.param("doctor", "doctor --list", "vgpu-agent run --", id="doctor"),
        pytest.param("uninstall", "uninstall --dry-run", "vgpu-agent run --", id="uninstall"),
    ],
)
def test_help_ends_with_examples_of_its_own_command(
    command: str, own: str, others: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"], {})
    end = capsys.readouterr().out.split("exit codes:", 1)[1]
    assert own in end
    assert others not in end


def test_help_says_which_defaults_are_others_in_a_mode(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"], {})
    shown = " ".join(capsys.readouterr().out.split())
    assert "default: false (mode nvidia: true)" in shown
    assert "default: 30s (mode volcano: 300s)" in shown
    assert "default: nvidia.com/gpu (mode volcano: volcano.sh/vgpu-number)" in shown


def test_mode_mig_is_told_where_mig_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--node-name", "n", "--mode", "mig"], {}) == 2
    assert "--operating-mode mig" in capsys.readouterr().err
