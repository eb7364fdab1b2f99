"""docs/hook.md: what it says is proved is, and what it says is read is read."""

import re

from built_hook import ROOT

PAGE = (ROOT / "docs" / "hook.md").read_text()


def test_every_test_it_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    sources = [path.read_text() for path in (ROOT / "tests" / "hook").glob("test_*.py")]
    defined = set(re.findall(r"^def (test_\w+)\(", "\n".join(sources), flags=re.MULTILINE))
    assert len(named) > 20
    assert named - defined == set()


def test_it_names_every_variable_that_is_read_and_no_other() -> None:
    """The names of numbered limits are made by snprintf."""
    source = (ROOT / "hook" / "settings.c").read_text()
    quoted = set(re.findall(r'"([A-Z][A-Z0-9_]{6,})(?:_%d)?"', source))
    numbered = {name + "_<i>" for name in re.findall(r'"([A-Z0-9_]+)_%d"', source)}
    log = (ROOT / "hook" / "log.c").read_text()
    read = {
        name
        for name in quoted
        if name.startswith(("CUDA_", "NVIDIA_", "GPU_", "RECORD_", "LIBCUDA_"))
    }
    listed = re.findall(r"^\| `([A-Z][A-Z0-9_]+(?:_<i>)?)` \|", PAGE, flags=re.MULTILINE)
    assert set(listed) - {"LIBCUDA_LOG_LEVEL"} == (read | numbered) - {"LIBCUDA_LOG_LEVEL"}
    assert "LIBCUDA_LOG_LEVEL" in source + log
