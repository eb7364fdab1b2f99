"""The release's bill of materials: licences that are allowed, versions that are pinned."""

import json
from pathlib import Path

from agent.version import VERSION
from tests.security.dependencies import EXCEPTIONS, locks, wrong_bill


def test_nothing_is_in_the_release_that_may_not_be(tarball_file: Path) -> None:
    name = f"vgpu-agent-{VERSION}-linux-x86_64.cdx.json"
    bill = json.loads(tarball_file.with_name(name).read_bytes())
    assert wrong_bill(bill, locks()["frozen"]) == []
    assert set(EXCEPTIONS) <= {one["name"] for one in bill["components"]}, (
        "an exception for nothing"
    )
