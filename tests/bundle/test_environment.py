"""Programs of the host that the release starts: they must not load the release's own libraries."""

import os
import subprocess
from pathlib import Path

from waiting import eventually

KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
users:
  - name: u
    user:
      exec:
        apiVersion: client.authentication.k8s.io/v1
        command: %s
        interactiveMode: Never
"""


def test_a_credential_plugin_begins_as_the_host_would_start_it(
    frozen_folder: Path, tmp_path: Path
) -> None:
    seen, plugin = tmp_path / "seen", tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\nenv > {seen}.new && mv {seen}.new {seen}\n")
    plugin.chmod(0o755)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG % plugin)
    flags = ["--node-name", "n", "--kubeconfig", kubeconfig, "--state-dir", tmp_path / "state"]
    flags += ["--metrics-bind-address", "127.0.0.1:0", "--runtime-dir", tmp_path / "run"]
    agent = subprocess.Popen(
        [frozen_folder / "vgpu-agent", "run", *flags],
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/of/the/host"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(seen.exists, within_s=60)
    finally:
        agent.kill()
        agent.wait(10)

    environment = dict(line.split("=", 1) for line in seen.read_text().splitlines() if "=" in line)
    assert environment["LD_LIBRARY_PATH"] == "/of/the/host"
    assert not [name for name in environment if name.startswith("_PYI_")]
