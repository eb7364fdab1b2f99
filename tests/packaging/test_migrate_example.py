"""The kustomization of docs/migrate.md is one that kustomize builds and the agent understands."""

import os
import re
from pathlib import Path

import pytest
import yaml
from manifests import DAEMONSET, built, container_of, only
from peers.debian_archive import PeersUnavailable

from agent.settings import resolve

pytestmark = pytest.mark.timeout(600)  # kustomize is compiled once
PAGE = DAEMONSET.parents[1] / "docs" / "migrate.md"


def test_the_example_for_nvidias_configmap(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (text,) = (block for block in blocks if "overlays/nvidia" in block)
    wanted = yaml.safe_load(text)
    wanted["resources"] = [os.path.relpath(DAEMONSET / "overlays/nvidia", tmp_path.resolve())]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    for name in wanted["configMapGenerator"][0]["files"]:
        (tmp_path / name).write_text("version: v1\n")
    try:
        manifests = built(tmp_path)
    except PeersUnavailable as error:
        pytest.skip(str(error))
    container = container_of(manifests)
    environ = {one["name"]: one.get("value", "n") for one in container["env"]}
    config = resolve({}, environ).config
    assert config.mode == "nvidia"
    assert config.device_list_strategy == ("volume-mounts",)
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "nvidia-config")
    assert Path(mount["mountPath"]) == config.config_srcdir
    (volume,) = (
        one
        for one in only("DaemonSet", manifests)["spec"]["template"]["spec"]["volumes"]
        if one["name"] == "nvidia-config"
    )
    generated = only("ConfigMap", manifests)
    assert volume["configMap"]["name"] == generated["metadata"]["name"]
    assert set(generated["data"]) == {"default", "mig-single"}
