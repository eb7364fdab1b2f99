"""Pins have hashes, licences are allowed; what a network would be needed for is not asked here."""

import json

import pytest

from tests.security.dependencies import (
    REQUIREMENTS,
    Advice,
    Pin,
    advice_of,
    allowed,
    licence_of,
    licences,
    locks,
    pins,
    wrong_bill,
    wrong_licences,
    wrong_pins,
)

HASH = f"--hash=sha256:{'0' * 64}"
LOCK = f"one==1.0 \\\n    {HASH} \\\n    {HASH}\nTwo_Words==2.0 \\\n    {HASH}\n"


def test_every_pin_has_its_hashes() -> None:
    found = locks()
    assert {"run", "dev", "frozen", "dist"} <= set(found)
    for name, listed in found.items():
        asked = REQUIREMENTS / f"{name}.in"
        text = asked.read_text() if asked.is_file() else ""
        assert wrong_pins(name, listed, text) == []


def test_every_licence_of_what_is_installed_is_allowed() -> None:
    told = licences()
    everything = {pin for listed in locks().values() for pin in listed}
    assert {pin.name for pin in locks()["run"]} <= set(told)
    assert wrong_licences(everything, told) == []


def test_a_lock_file_is_read() -> None:
    assert pins(f"# a comment\n{LOCK}") == [Pin("one", "1.0", 2), Pin("two-words", "2.0", 1)]


@pytest.mark.parametrize(
    ("lock", "asked", "said"),
    [
        pytest.param("one==1.0\n", "one\n", "one has no hash", id="no hash"),
        pytest.param(f"one==1.0 \\\n    --hash=md5:{'0' * 32}\n", "", "no hash", id="another hash"),
        pytest.param(LOCK + LOCK, "", "is there twice", id="twice"),
        pytest.param(LOCK, "# why\none\nthree>=2\n", "three of x.in is missing", id="not locked"),
    ],
)
def test_a_wrong_lock_file_is_told(lock: str, asked: str, said: str) -> None:
    assert said in " ".join(wrong_pins("x", pins(lock), asked))


@pytest.mark.parametrize(
    "line", ["one>=1.0", "git+https://example.com/one", "./one", "--index-url x"]
)
def test_what_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="no package with its version"):
        pins(LOCK + line + "\n")


@pytest.mark.parametrize(
    ("expression", "so"),
    [
        pytest.param("MIT", True, id="one"),
        pytest.param("Apache-2.0 AND MIT", True, id="all of them"),
        pytest.param("GPL-3.0-only OR MIT", True, id="a way out"),
        pytest.param("GPL-3.0-only", False, id="none of ours"),
        pytest.param("MIT AND GPL-3.0-only", False, id="one of them is not"),
        pytest.param("Apache-2.0 WITH LLVM-exception", False, id="an exception nobody looked at"),
        pytest.param("", False, id="nothing is told"),
    ],
)
def test_licences(expression: str, so: bool) -> None:
    assert allowed(expression) is so
    assert bool(wrong_licences([Pin("a", "1", 1)], {"a": expression})) is not so


@pytest.mark.parametrize(
    ("metadata", "classifiers", "spdx"),
    [
        pytest.param({"License-Expression": "MIT"}, [], "MIT", id="an expression"),
        pytest.param({"License": "Apache 2.0"}, [], "Apache-2.0", id="words"),
        pytest.param({}, ["License :: OSI Approved :: MIT License"], "MIT", id="a classifier"),
        pytest.param(
            {"License": "UNKNOWN"},
            ["License :: OSI Approved :: MIT License"],
            "MIT",
            id="not told twice",
        ),
        pytest.param({"Name": "Atheris"}, [], "Apache-2.0", id="its file was read"),
        pytest.param({"License": "See the file LICENSE for it"}, [], "", id="no licence"),
    ],
)
def test_what_a_package_tells(metadata: dict[str, str], classifiers: list[str], spdx: str) -> None:
    assert licence_of(metadata, classifiers) == spdx


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({}, "", id="in order"),
        pytest.param({"version": "2"}, "pinned is 1", id="another version"),
        pytest.param({"name": "b"}, "pinned is None", id="not pinned"),
        pytest.param({"licenses": [{"expression": "GPL-3.0-only"}]}, "not allowed", id="licence"),
    ],
)
def test_the_bill_of_materials(change: dict[str, object], said: str) -> None:
    part = {
        "name": "a",
        "version": "1",
        "purl": "pkg:pypi/a@1",
        "licenses": [{"license": {"id": "MIT"}}],
    }
    wrong = " ".join(wrong_bill({"components": [{**part, **change}]}, [Pin("a", "1", 1)]))
    assert said in wrong
    assert bool(wrong) is bool(said)


def test_what_is_asked_for_has_to_be_in_the_bill() -> None:
    bill: dict[str, list[object]] = {"components": []}
    assert wrong_bill(bill, [], "# why\nTwo_Words>=1\n") == [
        "two-words of run.in is missing in the bill"
    ]


def answered(*entries: dict[str, object]) -> str:
    return json.dumps({"dependencies": [{"name": "a", "version": "1", **one} for one in entries]})


@pytest.mark.parametrize(
    ("stdout", "stderr", "advice"),
    [
        pytest.param(answered({"vulns": []}), "", Advice(1, ()), id="none is known"),
        pytest.param(
            answered({"vulns": [{"id": "PYSEC-1"}]}), "", Advice(1, ("a 1: PYSEC-1",)), id="one is known"
        ),
        pytest.param(
            answered({"skip_reason": "not found"}), "No known vulnerabilities found",
            Advice(0, (), "it knows none of the packages"), id="a mirror that knows nothing",
        ),
        pytest.param("", "Traceback\nConnectionError: x", Advice(0, (), "ConnectionError: x"), id="no network"),
        pytest.param("[]", "", Advice(0, (), "pip-audit said nothing"), id="nonsense"),
    ],
)  # fmt: skip
def test_what_was_not_looked_at_is_not_called_sound(
    stdout: str, stderr: str, advice: Advice
) -> None:
    assert advice_of(stdout, stderr) == advice
