"""Several configurations for one DaemonSet: which of them this node takes, and when it changes."""

import os
import signal
import time
from pathlib import Path

from agent import logs
from agent.adapters.cluster import KubeCluster
from agent.adapters.config_folder import configurations
from agent.adapters.kube_transport import KubeTransport
from agent.config import Config
from agent.parts import Parts
from agent.services.config_choice import ConfigWatch
from agent.services.node_view import NodeView
from agent.services.node_watch import NodeWatch
from agent.services.published import PodTable, Published
from agent.supervisor import Service

log = logs.get(__name__)

ASK_WITHIN_S = 20.0


def chosen_file(config: Config) -> Path | None:
    """The configuration of this node, by its label; None: it takes none.

    Raises ConfigError, ClusterError.
    """
    folder = config.config_srcdir
    assert folder is not None  # noqa: S101 - who asks has looked
    there = configurations(folder)
    label = config.config_label
    node = _cluster(config).get_node(deadline_s=time.monotonic() + ASK_WITHIN_S)
    name = config.config_choice.name(node.labels.get(label, ""), there)
    log.info("configuration chosen", name=name or "none", label=node.labels.get(label, "none"))
    return folder / name if name else None


def watching(parts: Parts) -> list[Service]:
    """Who ends the agent when the label chooses another one."""
    config, folder = parts.config, parts.config.config_srcdir
    if folder is None:
        return []
    cluster = _cluster(config)
    view = NodeView(
        cluster,
        node_name=config.node_name,
        pods=Published(PodTable()),
        own_node=Published(None),
    )
    watch = ConfigWatch(
        view.own_node,
        lambda value: config.config_choice.name(value, configurations(folder)),
        label=config.config_label,
        chosen=config.config_file.name if config.config_file else "",
        anew=lambda: os.kill(os.getpid(), signal.SIGTERM),  # SIGHUP is ignored below nohup
    )
    return [NodeWatch(cluster, view), watch]


def _cluster(config: Config) -> KubeCluster:
    cluster = KubeCluster(
        KubeTransport(config.kubeconfig),
        node_name=config.node_name,
        resource_name=config.resource_name,
    )
    cluster.connect()
    return cluster
