"""Which of our own files are in the bill of materials? Made for a folder with files of the purpose."""

import hashlib
import json
from pathlib import Path

from bundling.sbom import sbom


def test_every_file_that_is_ours_is_in_it(tmp_path: Path) -> None:
    names = {
        "vgpu-agent": "application",
        "_internal/hook/libvgpu.so": "library",
        "_internal/hook/sim/libcuda.so.1": "library",
        "_internal/hook/sim/sim-tenant": "application",
        "_internal/hook/sim/a-new-one": "application",
    }
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (launcher := tmp_path / "launcher").write_text("launcher")
    told = json.loads(sbom(tmp_path, launcher, [], "1.2.3", {}))
    assert {one["name"]: one["type"] for one in told["components"]} == {
        **names, "launcher": "application",
    }  # fmt: skip
    for one in told["components"]:
        digest = hashlib.sha256(one["name"].encode()).hexdigest()
        assert one["hashes"] == [{"alg": "SHA-256", "content": digest}]
    [of_product] = [one for one in told["dependencies"] if one["ref"] == "vgpu-agent"]
    assert len(of_product["dependsOn"]) == len(names) + 1
