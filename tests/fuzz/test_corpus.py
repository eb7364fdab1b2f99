"""The kept inputs of every fuzzer, given to its parser again: `build.py fuzz` looks for new ones."""

import subprocess
from pathlib import Path

import pytest

from tests.fuzz.c_targets import C_TARGETS, HERE, build_replay
from tests.fuzz.python_targets import TARGETS, Defect, refusing
from tests.sanitized import COMPILE_S

CORPUS = HERE / "corpus"
MEBIBYTE = 1 << 20
HOSTILE = {
    "nothing": b"", "a mebibyte": b"a" * MEBIBYTE, "a mebibyte of digits": b"9" * MEBIBYTE,
    "brackets": b"[" * 20_000, "braces": b'{"a":' * 20_000, "no UTF-8": bytes(range(256)) * 16,
    "control characters": b"\x1b[2J\x00\r\n\x07", "a path": b"../../../etc/passwd\n../..",
    "right to left": "p\u202eo\u0301d\U0001f4a3\n\u2028".encode(),
}  # fmt: skip


def kept(name: str) -> list[Path]:
    """The inputs of a target, of which there are some."""
    found = sorted((CORPUS / name).iterdir())
    assert found, f"no inputs are kept for {name}"
    return found


def test_every_corpus_has_its_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {*TARGETS, *(f"c-{n}" for n in C_TARGETS)}


@pytest.mark.parametrize("name", TARGETS)
def test_python_bears_every_kept_input(name: str) -> None:
    for path in kept(name):
        TARGETS[name](path.read_bytes())


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("name", TARGETS)
def test_python_bears_hostile_bytes(name: str, what: str) -> None:
    TARGETS[name](HOSTILE[what])


@pytest.mark.timeout(COMPILE_S)
@pytest.mark.parametrize("name", C_TARGETS)
def test_c_bears_every_kept_input(tmp_path: Path, name: str) -> None:
    for number, content in enumerate(HOSTILE.values()):
        (tmp_path / f"hostile-{number}").write_bytes(content)
    inputs = [*kept(f"c-{name}"), *sorted(tmp_path.iterdir())]
    build_replay(name, tmp_path / "replay")
    done = subprocess.run(
        [tmp_path / "replay", *inputs], capture_output=True, text=True, check=False, timeout=250
    )
    assert (done.returncode, done.stdout) == (0, f"{len(inputs)}\n"), done.stderr[-2000:]


# --- they would notice ---------------------------------------------------------------------------

WRONG = {
    "reads past its input": "return fuzz_text(data, size)[size + 1];",
    "overflows": "int most = 0x7fffffff; return (most + (int)size) == 5;",
    "claims what is not so": "fuzz_insist(size == 0); return 0;",
}


@pytest.mark.timeout(COMPILE_S)
@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_a_wrong_c_parser_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    import tests.fuzz.c_targets as targets

    (tmp_path / "c").symlink_to(HERE / "c")
    source = tmp_path / "wrong.c"
    source.write_text(
        f'#include "{HERE}/c/fuzz.h"\n'
        f"int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {{ {body} }}\n"
    )
    monkeypatch.setattr(targets, "sources", lambda _: [source])
    build_replay("wrong", tmp_path / "replay")
    (tmp_path / "input").write_bytes(b"input")
    done = subprocess.run(
        [tmp_path / "replay", tmp_path / "input"], capture_output=True, check=False
    )
    assert done.returncode != 0


@pytest.mark.parametrize(
    "sentence",
    [
        pytest.param("", id="none"),
        pytest.param("two\nlines", id="control characters"),
        pytest.param("a" * MEBIBYTE, id="a mebibyte"),
    ],
)
def test_an_unclear_sentence_is_found(sentence: str) -> None:
    with pytest.raises(Defect), refusing(ValueError):
        raise ValueError(sentence)
