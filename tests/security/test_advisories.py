"""A file of advisories is matched with the pins: what is affected is found, what is fixed is not."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.security.advisories import advice, hits, read
from tests.security.audit import main
from tests.security.dependencies import Pin, locks


def advisory(name: str, identity: str = "PYSEC-0", **affected: Any) -> dict[str, Any]:
    package = {"ecosystem": "PyPI", "name": name}
    return {"id": identity, "affected": [{"package": package, **affected}]}


def ranged(*events: dict[str, str]) -> dict[str, Any]:
    return {"ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}


@pytest.mark.parametrize(
    ("affected", "so"),
    [
        pytest.param({"versions": ["1.9", "2.0"]}, True, id="listed"),
        pytest.param({"versions": ["2"]}, True, id="the same, written otherwise"),
        pytest.param({"versions": ["1.9", "2.0.1"]}, False, id="others are listed"),
        pytest.param({"versions": ["2.0-final", "not a version"]}, False, id="no versions"),
        pytest.param(ranged({"introduced": "0"}), True, id="every version"),
        pytest.param(ranged({"introduced": "0"}, {"fixed": "2.0.1"}), True, id="before the fix"),
        pytest.param(ranged({"introduced": "0"}, {"fixed": "2.0"}), False, id="the fix itself"),
        pytest.param(ranged({"introduced": "0"}, {"fixed": "1.10"}), False, id="after the fix"),
        pytest.param(ranged({"introduced": "2.0"}), True, id="it came with this one"),
        pytest.param(ranged({"introduced": "2.1"}), False, id="it came later"),
        pytest.param(ranged({"introduced": "1"}, {"last_affected": "2.0"}), True, id="the last"),
        pytest.param(ranged({"introduced": "1"}, {"last_affected": "1.9"}), False, id="after it"),
        pytest.param(
            ranged({"fixed": "1.5"}, {"introduced": "1.0"}, {"introduced": "1.9"}), True,
            id="came back after a fix, in any order",
        ),
        pytest.param({"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]}, False, id="git"),
        pytest.param({}, False, id="nothing"),
    ],
)  # fmt: skip
def test_which_versions_are_affected(affected: dict[str, Any], so: bool) -> None:
    assert hits(affected, "2.0") is so


def test_names_are_compared_as_indexes_do_and_other_ecosystems_left_out() -> None:
    told = [advisory("Two_Words", versions=["1"]), advisory("other", "PYSEC-1", versions=["1"])]
    told[1]["affected"][0]["package"]["ecosystem"] = "npm"
    pins = [Pin("two-words", "1", 1), Pin("other", "1", 1)]
    assert advice(told, pins).found == ("two-words 1: PYSEC-0",)
    assert advice(told, pins).asked == 2


def in_a_zip(path: Path, told: list[dict[str, Any]]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number, one in enumerate(told):
            archive.writestr(f"{number}.json", json.dumps(one))


@pytest.mark.parametrize("form", ["a zip", "a list", "one"])
def test_a_file_is_read(tmp_path: Path, form: str) -> None:
    path, one = tmp_path / "advisories", advisory("a", versions=["1"])
    withdrawn = {**one, "id": "PYSEC-9", "withdrawn": "2026-01-31T00:00:00Z"}
    if form == "a zip":
        in_a_zip(path, [one, withdrawn])
    else:
        path.write_text(json.dumps([one, withdrawn] if form == "a list" else one))
    assert read(path) == [one]


@pytest.mark.parametrize("content", ["", "[]", "{}", "no JSON", "[1]", '[{"id": ""}]'])
def test_what_is_no_export_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "advisories.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"advisories\.json"):
        read(path)


def test_an_incomparable_range_is_no_answer() -> None:
    with pytest.raises(ValueError, match="one dot two"):
        hits(ranged({"introduced": "one dot two"}), "2.0")


SHORT = "--quick"


def test_the_audit_finds_what_is_affected_and_not_what_is_fixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One invented advisory that fits a pin of ours, one that this very version has mended."""
    [grpcio] = [pin for pin in locks()["run"] if pin.name == "grpcio"]
    told = [
        advisory("grpcio", "TEST-FITS", **ranged({"introduced": "1.0"})),
        advisory("grpcio", "TEST-MENDED", **ranged({"introduced": "0"}, {"fixed": grpcio.version})),
    ]
    path, page = tmp_path / "all.zip", tmp_path / "security.md"
    in_a_zip(path, told)
    assert main(["--advisories", str(path), "--page", str(page), SHORT]) == 1
    text = page.read_text()
    assert f"- grpcio {grpcio.version}: TEST-FITS" in text
    assert "TEST-MENDED" not in text + capsys.readouterr().out
    assert "2 advisories of the file `all.zip`" in text
    in_a_zip(path, told[1:])
    assert main(["--advisories", str(path), "--page", str(page), SHORT]) == 0
    assert "| run.lock |" in page.read_text()
    assert "TEST" not in page.read_text()


def test_without_any_answer_the_page_says_that_nothing_is_known(tmp_path: Path) -> None:
    page = tmp_path / "security.md"
    assert main(["--offline", "--page", str(page), SHORT]) == 0
    assert "**Of known vulnerabilities nothing is known**" in page.read_text()
