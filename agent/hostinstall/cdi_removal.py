"""`vgpu-agent uninstall`: the CDI files that an agent has written.

A runtime refuses to start a container anew whose devices no file knows. So they stay while the
journal has containers that were told of devices by CDI, and go when it has none, or with --purge.
"""

from pathlib import Path

from agent.adapters.cdi_files import HostCdiFiles
from agent.adapters.grant_log import told_by_cdi
from agent.config import Config
from agent.hostinstall.command import Say
from agent.hostinstall.tree import directory_within, within


def remove_cdi_files(config: Config, root: Path, *, purge: bool, dry_run: bool, say: Say) -> None:
    """Take them away, or say why they stay. `root`: of the host. Raises AgentError."""
    files = HostCdiFiles(within(config.cdi_spec_dir, root))
    names = files.ours()
    if not names:
        return
    users = 0 if purge else told_by_cdi(directory_within(config.state_dir, root))
    if users:
        say(
            f"CDI files stay in {config.cdi_spec_dir}: {users} containers may have been given "
            "devices by them, and would not start again without; --purge removes them"
        )
        return
    for name in names:
        if not dry_run:
            files.remove(name)
        say(f"{'would remove' if dry_run else 'removed'} {config.cdi_spec_dir / name}")
