"""Operating mode `mig` in mode `hami`: GPU instances are made as the scheduler decides.

Configuration stops here, as in `agent.app`: everything below receives plain values.
"""

from agent.adapters.grant_log import FileGrantLog
from agent.adapters.mig_files import MigBookFile
from agent.adapters.nvml_mig import MigNodes
from agent.adapters.nvml_mig_maker import NvmlMigMaker
from agent.adapters.podresources import PodResourcesClient
from agent.modes.host_side import HostSide
from agent.parts import Parts
from agent.services.mig_grants import MigGrants
from agent.services.mig_keeper import MigKeeper


class Divided:
    """Who makes instances, and who grants them."""

    def __init__(self, parts: Parts, grants: FileGrantLog, host: HostSide) -> None:
        config = parts.config
        self.keeper = MigKeeper(
            NvmlMigMaker(),
            MigBookFile(config.state_dir),
            parts.mig_lock,
            parts.view,
            parts.inventory,
            config.sharing,
            books=PodResourcesClient(config.pod_resources_socket),
            own_resource=config.resource_name,
            post=parts.events.post,
            count=parts.metrics.mig_instance,
        )
        self.grants = MigGrants(
            self.keeper,
            grants,
            host.policy,
            parts.inventory,
            config.sharing,
            geometries=config.mig_geometries,
            nodes=MigNodes().of,
            common_nodes=lambda: host.caches.prepare().device_nodes,
        )
