"""What the pages name is there: command lines parse; metrics, log lines, Events, checks exist.

What counts as a name of which kind is said by `KINDS` and `commands_in`: a page that is to be
held by this writes names that way, e.g. "the log says `gpu_unhealthy`", "Event `VgpuBypass`".
"""

import argparse
import ast
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from metrics_docs import exposed

from agent import cli
from agent.command_line import SUMMARIES
from agent.doctor.checks import CHECKS
from agent.domain.enforcement import Reason
from agent.settings import resolve
from agent.settings.table import SETTINGS
from build import TASKS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROGRAM = r"(?:\S*/)?(?:vgpu-agent(?:-[\d.]+-linux-x86_64)?|agent\.py)"
COMMAND = re.compile(rf"(?:^|sudo |-- |python3? |: ){PROGRAM} ((?:-|[a-z]).*)")
IN_YAML = re.compile(r"args: \[(.*)\]")
NO_COMMAND = ("ssh-ed25519 AAAA...",)  # a line of an allowed_signers file
FILES = ("config-file", "node-config-file", "config-file-srcdir")  # which are the reader's


def code_of(text: str) -> Iterator[str]:
    """The lines and the words of a page that are set as code."""
    fenced = re.compile(r"^```.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for block in fenced.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    rest = fenced.sub("", text)
    yield from re.findall(r"^ {4}(\S.*)", rest, re.MULTILINE)
    yield from (" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", rest))


def commands_in(text: str) -> list[str]:
    """The command lines of this program, from its command on; a bare name among them."""
    found = []
    for line in code_of(text):
        if match := IN_YAML.search(line):
            words = [str(word) for word in yaml.safe_load(f"[{match[1]}]")]
            found += [shlex.join(words)] if words[0] in SUMMARIES else []
        if match := COMMAND.search(line):
            found.append(re.split(r" [|<>;&#]", match[1])[0].strip())
    return [line for line in dict.fromkeys(found) if line not in NO_COMMAND]


class Taken(Exception):
    """The command line was understood; nothing is to be done."""


def understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a command line to the program's own parser, and settings to what reads them."""
    parse = argparse.ArgumentParser.parse_known_args

    def parse_only(self: argparse.ArgumentParser, *args: Any, **named: Any) -> Any:
        namespace, unknown = parse(self, *args, **named)
        assert not unknown, f"{unknown} of: {line}"
        raise Taken(vars(namespace))

    words = shlex.split(re.sub(r"\$\(\w+\)", "here", line.replace("$PWD", "/here")))
    if words[0] in (*SUMMARIES, "guard-blocks") and words[1:] in ([], ["--help"]):
        return  # it is named, not typed
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_only)
    with pytest.raises(Taken) as taken:
        cli.main(words, {})
    if words[0] == "demo":
        return  # its --mode is another one
    given = {name: raw for name, raw in taken.value.args[0].items() if name not in FILES}
    known = {setting.name for setting in SETTINGS}
    resolve({name: raw for name, raw in given.items() if name in known}, {"NODE_NAME": "n"})


def id_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


COMMANDS = [(page, line) for page in PAGES for line in commands_in(page.read_text())]


@pytest.mark.parametrize(
    ("page", "line"),
    [pytest.param(*one, id=f"{id_of(one[0])}: {one[1]}") for one in COMMANDS],
)
def test_a_command_line_is_understood(
    page: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    understood(line, monkeypatch)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("tops --once", id="no command"),
        pytest.param("top --twice", id="no flag"),
        pytest.param("limit --force", id="something is missing"),
        pytest.param("run --slice-sizes small=8Gi", id="a value that means nothing"),
        pytest.param("doctor --device-split-count many", id="a value that is no number"),
    ],
)
def test_one_that_is_not_understood_is_found(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((SystemExit, pytest.fail.Exception, Exception)) as found:
        understood(line, monkeypatch)
    assert not isinstance(found.value, Taken)


COMMIT = re.compile(r"(?<![-\w])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}(?![-\w])")
MEASURED = ROOT / "docs" / "results"  # written by commands, each with the commit that it ran at


@pytest.mark.parametrize(
    "page", [page for page in PAGES if MEASURED not in page.parents], ids=id_of
)
def test_no_page_names_a_commit(page: Path) -> None:
    """It is called otherwise once its branch is taken up, and then nobody finds it."""
    assert COMMIT.findall(page.read_text()) == []


# --- names ---------------------------------------------------------------------------------------


@cache
def trees() -> tuple[ast.Module, ...]:
    return tuple(ast.parse(path.read_text()) for path in (ROOT / "agent").rglob("*.py"))


def constants(node: ast.AST) -> set[str]:
    return {
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


@cache
def log_lines() -> frozenset[str]:
    """First words of what `log.info(...)` and the like are given, as the log spells them."""
    calls = {"debug", "info", "warning", "error", "failing"}
    return frozenset(
        text.replace(" ", "_")
        for tree in trees()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in calls
        and ast.unparse(call.func.value) in ("log", "self", "logs.get(__name__)")
        and call.args
        for text in constants(call.args[0])
    )


@cache
def event_reasons() -> frozenset[str]:
    """What is posted as an Event: by name in the call, or as a constant of the module."""
    found: set[str] = set()
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "ClusterEvent":
                for word in node.keywords:
                    found |= constants(word.value) if word.arg == "reason" else set()
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and "EVENT" in ast.unparse(statement.targets[0]):
                found |= {word for word in constants(statement.value) if word[:1].isupper()}
    return frozenset(found) | {name for name in metrics() if "_" not in name}  # MigInfo is one


@cache
def metrics() -> frozenset[str]:
    ends = ("", "_bucket", "_count", "_sum")
    return frozenset(name + end for name, _ in exposed() for end in ends)


@cache
def variables() -> frozenset[str]:
    """Variables of the environment that some program of the tree reads, by their names."""
    read = [*(ROOT / "agent").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    read += [*(ROOT / "packaging").rglob("*.py"), *(ROOT / "packaging").rglob("*.c")]
    text = "\n".join(path.read_text() for path in (*read, ROOT / "build.py"))
    found = set(re.findall(r"VGPU_[A-Z0-9_]*[A-Z0-9]", text))
    return frozenset(found | {name for setting in SETTINGS for name in setting.environment})


@cache
def said() -> str:
    """Every text in the agent's code, and what the library says of a CUDA that does not start."""
    texts = {text for tree in trees() for text in constants(tree)}
    return "\n".join((*texts, (ROOT / "hook" / "cuda_start.c").read_text()))


TICKED = r"`([^`]+)`"
# kind: where its names are in a text, the names in such a place, those that exist
KINDS: dict[str, tuple[str, str, Callable[[], frozenset[str]]]] = {
    "log lines": (
        rf"\b[Ll]og(?:s|ged)?\b[^.`|]{{0,40}}(?:{TICKED}(?:, | and | or )?)+",
        r"`(?!vgpu_)([a-z]+(?:_[a-zA-Z]+)+)`",
        log_lines,
    ),
    "Events": (TICKED, r"`((?:Gpu|Vgpu(?!Config)|Mig|Runs|Several)[A-Z]\w+)`", event_reasons),
    "metrics": (TICKED, r"`((?:vgpu|hami)_[a-z_]*[a-z])[`{]", metrics),
    "doctor's checks": (
        rf"[Dd]octor(?:'s|` \()? ?checks? (?:{TICKED}(?:, | and )?)+|doctor, --only[ ,\"]+[\w,-]+",
        r"(?:`|,|--only[ ,\"]+)([a-z]+(?:-[a-z]+)*)(?=[`,\" ]|$)",
        lambda: frozenset(check.name for check in CHECKS),
    ),
    "tasks of build.py": (
        r"build\.py [a-z][a-z-]*",
        r"build\.py ([a-z-]+)",
        lambda: frozenset(TASKS),
    ),
    "variables": (r"VGPU_[A-Z0-9_]*[A-Z0-9]", r"(VGPU_\w+)", variables),
}


def named(kind: str, text: str) -> list[str]:
    """The names of a kind that a page has."""
    place, name, _ = KINDS[kind]
    flat = re.sub(r"\s+", " ", re.sub(r"^```.*", "", text, flags=re.MULTILINE))
    return [one for found in re.finditer(place, flat) for one in re.findall(name, found[0])]


@pytest.mark.parametrize("kind", KINDS)
def test_names_exist(kind: str) -> None:
    known = KINDS[kind][2]()
    missing = {
        f"{id_of(page)}: {name}"
        for page in PAGES
        for name in named(kind, page.read_text())
        if name not in known
    }
    assert sorted(missing) == []


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        pytest.param("log lines", "the log says `gpu_vanished`", "gpu_vanished", id="log"),
        pytest.param("log lines", "Log: `a_b` and `c_d`, with", "c_d", id="log, the second"),
        pytest.param("Events", "an Event `GpuVanished` on it", "GpuVanished", id="Event"),
        pytest.param("metrics", '`vgpu_gone{x="y"}`', "vgpu_gone", id="metric"),
        pytest.param("doctor's checks", "doctor check `gone`", "gone", id="check"),
        pytest.param("doctor's checks", "Doctor checks `gpus`, `go-ne`.", "go-ne", id="checks"),
        pytest.param("doctor's checks", 'args: [doctor, --only, "gpus,gone"]', "gone", id="--only"),
        pytest.param("tasks of build.py", "`python3 build.py gone`", "gone", id="task"),
        pytest.param("variables", "set `VGPU_LO" + "ST=1`", "VGPU_LO" + "ST", id="variable"),
    ],
)
def test_a_name_that_does_not_exist_is_found(kind: str, text: str, name: str) -> None:
    assert name in named(kind, text)
    assert name not in KINDS[kind][2]()


def test_names_are_found() -> None:
    pages = [page.read_text() for page in PAGES]
    least: Sequence[tuple[str, int]] = (
        ("log lines", 8), ("Events", 10), ("metrics", 50), ("doctor's checks", 12),
        ("tasks of build.py", 12), ("variables", 8),
    )  # fmt: skip
    for kind, number in least:
        assert len({name for text in pages for name in named(kind, text)}) >= number, kind
    assert len(COMMANDS) > 40


DEFAULT = re.compile(
    r"([\d.]+ ?(?:s|ms|min|h)) \(`--([a-z-]+)`\)"
    r"|`--([a-z-]+)` \((?=default|\d)(?:default `?)?([^`,) ]+(?: s)?)"
)


def wrong_defaults(text: str) -> list[str]:
    """What a page says of defaults, `5 s (`--flag`)` or `--flag` (default `5 s`), and is otherwise."""
    known = {setting.name: setting for setting in SETTINGS}
    found = []
    for before, flag, other_flag, after in DEFAULT.findall(re.sub(r"\s+", " ", text)):
        setting = known.get(flag or other_flag)
        said = (before or after).replace(" ", "").rstrip("s")
        values = (
            [setting.default_text, *map(setting.kind.show, setting.by_mode.values())]
            if setting
            else []
        )
        if setting is None or said not in [value.rstrip("s") for value in values]:
            found.append(f"{flag or other_flag}: {said}, not {values}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_defaults_are_those_of_the_code(page: Path) -> None:
    if page.name not in ("CHANGELOG.md", "configuration.md"):
        assert wrong_defaults(page.read_text()) == []


def test_a_default_that_is_another_is_found() -> None:
    assert wrong_defaults("Every 2 s (`--process-interval`) and `--bypass-interval` (3 s)") == []
    assert wrong_defaults("Every 5 s (`--process-interval`)") != []
    assert wrong_defaults("`--mps-root` (default `/run/mps`)") != []
    assert wrong_defaults("`--metrics-bind-address` (default `:9394`, as there)") == []


@pytest.mark.parametrize("reason", [one for one in Reason if one.value and one != Reason.IDLE])
def test_every_reason_is_on_the_page_of_troubles(reason: Reason) -> None:
    assert f"`{reason.value}`" in (ROOT / "docs/troubleshooting.md").read_text()


def test_every_event_is_on_the_page_of_troubles() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    table = page.partition("## Events")[2]
    posted = event_reasons() - metrics()
    assert sorted(reason for reason in posted if f"`{reason}`" not in table) == []
    assert len(posted) > 10


@pytest.mark.parametrize(
    "words",
    [
        *("no pod on node", "is waiting", "vGPU(s), but", "scheduler has set aside"),
        *("does not share (any more)", "is unhealthy since", "the API server did not confirm"),
        *("belongs to user", "have been promised", "would run out of memory", "is not ready yet"),
        *("limits do not hold", "for a container of higher priority", "CUDA does not start"),
    ],
)
def test_what_the_page_of_troubles_quotes_is_said(words: str) -> None:
    assert words in (ROOT / "docs/troubleshooting.md").read_text()
    assert words in said()


def test_nobody_is_told_to_run_the_agent_privileged() -> None:
    """It never has to be, as docs/install/kubernetes.md says."""
    advice = re.compile(r"(?:run|start|make) \w+ privileged|and privileged(?! mode away)")
    assert [text for tree in trees() for text in constants(tree) if advice.search(text)] == []
