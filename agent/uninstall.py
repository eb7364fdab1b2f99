"""`vgpu-agent uninstall`: take back what an agent that no longer runs has left.

Each step is a function. What running pods use is no step: the library and the containers'
directories stay.
"""

import os
from collections.abc import Callable
from pathlib import Path

from agent.adapters.cluster import KubeCluster
from agent.adapters.instance_lock import InstanceLock, LockUnavailable
from agent.adapters.kube_transport import KubeTransport
from agent.config import Config
from agent.domain import volcano
from agent.domain.dialect import HAMI, Dialect
from agent.errors import AgentError, ClusterError, ClusterGone, ClusterUnavailable
from agent.services.own_annotations import ASK_WITHIN_S, READ_WITHIN_S, OwnAnnotations

AGAIN = "run `vgpu-agent uninstall` again when that is mended: it removes what is left"
Say = Callable[[str], None]


class NotRemoved(AgentError):
    """Something of ours may still be there; the message says why and what to do."""


def uninstall(
    config: Config, *, own_name: str, dry_run: bool, say: Say, warn: Say, ends: bool = False
) -> None:
    """Take every step; with `dry_run` only say what would be done.

    Agents that start meanwhile wait until it ends. `own_name`: what this host's Node is called
    when nobody says otherwise. `say` gets what was done, a line each; `warn` what is odd. `ends`:
    the agent that runs now would be stopped before. Raises AgentError when something is left or
    may be left; ConfigError without credentials.
    """
    lock = InstanceLock(config.state_dir)
    try:
        objection = "" if ends and dry_run else _objection(lock)
        if objection and not dry_run:
            raise NotRemoved(objection)
        if not _annotations(config, dry_run=dry_run, say=say, warn=warn):
            _no_such_node(config.node_name, own_name, warn)
        if objection:
            raise NotRemoved(objection)
    finally:
        lock.release()


def what_stays(config: Config, root: Path = Path("/")) -> str:
    """What is not taken back, of what there is; `root`: a tree that stands for the host."""
    places = {
        config.host_vgpu_dir: "library, containers' directories, for pods that still run",
        config.lock_dir: "their lock",
        config.state_dir: "grants, what the single file has unpacked",
    }
    there = [
        f"{path} ({what})"
        for path, what in places.items()
        if os.path.lexists(root / str(path).lstrip("/"))
    ]
    return f"left as they are: {'; '.join(there)}; --purge removes them" if there else ""


def _objection(lock: InstanceLock) -> str:
    """Why nothing may be removed now; empty: no agent runs that would write it again."""
    try:
        if lock.try_keep_out():
            return ""
    except LockUnavailable as error:
        return (
            f"nothing is removed, because nobody can tell whether an agent runs here: {error}; run "
            "it as the agent's user (root), with the agent's --state-dir"
        )
    return (
        f"nothing is removed, because an agent runs here and would write it again: {lock.holder()} "
        f"holds {lock.path}; stop it first, with `systemctl stop vgpu-agent`, or in a cluster by "
        "deleting its DaemonSet"
    )


def _dialect(mode: str) -> Dialect:
    """Whose annotations those of this mode are."""
    return volcano.dialect(lambda: 1) if mode == "volcano" else HAMI


def _no_such_node(name: str, own_name: str, warn: Say) -> None:
    """Somebody who took the node away needs nothing more; somebody who mistyped its name does."""
    sentence = f"there is no Node {name}, so nothing was removed; if it was deleted, all is done"
    if name != own_name:
        raise NotRemoved(f"{sentence}; otherwise give its name as `kubectl get nodes` shows it")
    warn(f"{sentence}; if it has another name than this host, give that with --node-name")


def _waits(where: str) -> str:
    return (
        f"waiting up to {READ_WITHIN_S:.0f} s until HAMi's scheduler has read from {where} that no "
        "GPU is left"
    )


def _not_read(node_name: str) -> str:
    return (
        f"HAMi's scheduler has not looked at the Node {node_name} within {READ_WITHIN_S:.0f} s; if "
        "one runs, restart it, or it goes on sending pods to GPUs that nobody offers here"
    )


def _annotations(config: Config, *, dry_run: bool, say: Say, warn: Say) -> bool:
    """Step: what the schedulers read about this node's GPUs; False when there is no such Node."""
    where = f"the Node {config.node_name}"
    if not config.follows_cluster:
        say(f"nothing to remove: in mode {config.mode} nothing is written to {where}")
        return True
    cluster = KubeCluster(
        KubeTransport(config.kubeconfig),
        node_name=config.node_name,
        resource_name=config.resource_name,
    )
    cluster.connect()
    ours = OwnAnnotations(
        cluster, handshake=config.answers_handshake, dialect=_dialect(config.mode)
    )
    try:
        keys = ours.found()
        if keys and not dry_run:
            if not ours.retire(lambda: say(_waits(where))):
                warn(_not_read(config.node_name))
            ours.remove(keys)
    except ClusterGone:
        return False
    except ClusterUnavailable as error:
        raise NotRemoved(f"gave up after {ASK_WITHIN_S:.0f} s: {error}; {AGAIN}") from error
    except ClusterError as error:
        raise NotRemoved(f"{error}; {AGAIN}") from error
    for key in keys:
        say(f"{'would remove' if dry_run else 'removed'} {key} from {where}")
    if not keys:
        say(f"nothing to remove: {where} has no annotation of this agent")
    return True
