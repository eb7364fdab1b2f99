"""What a setting is: its name, every place it can come from, its kind and what it is for."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from agent.config import RULES, Config, Rule
from agent.domain.gpu import Sharing
from agent.settings.kinds import Kind

WHO = "who this node is"
HOW = "how GPUs are shared"
SCHEDULER = "what the scheduler reads"
KUBELET = "kubelet and the host"
DEVICES = "how devices reach the container"
NVIDIA = "mode nvidia"
HEALTH = "GPU health"
ALLOCATE = "Allocate"
OBSERVE = "logs and endpoints"
STEER = "priorities and live limits"
COMPATIBLE = "accepted for compatibility"
GROUPS = (
    *(WHO, HOW, SCHEDULER, KUBELET, DEVICES, NVIDIA, HEALTH),
    *(ALLOCATE, OBSERVE, STEER, COMPATIBLE),
)

FIELD_DEFAULTS: dict[str, object] = {
    field.name: None if field.default is dataclasses.MISSING else field.default
    for field in dataclasses.fields(Config)
} | {f"sharing.{field.name}": field.default for field in dataclasses.fields(Sharing)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting and every place it can come from."""

    name: str  # of the flag, without the dashes
    group: str
    kind: Kind
    help: str
    field: str = ""  # of Config, with "sharing." in front where it is one of Sharing's
    aliases: tuple[str, ...] = ()  # further flags
    env: tuple[str, ...] = ()  # after VGPU_<NAME>, in order
    only_true: tuple[str, ...] = ()  # of these, the value must be exactly "true" to mean yes
    hami: str = ""  # key in section `nvidia` of HAMi's device-config.yaml
    nvidia: str = ""  # path in NVIDIA's `version: v1` file
    node: str = ""  # path in an entry of the node override file, in lower case
    zero_is_none: bool = False  # 0 or "" in a node entry can only mean "as elsewhere"
    value: object = None  # default where there is no field
    # defaults of single modes, where they are others
    by_mode: Mapping[str, object] = dataclasses.field(default_factory=dict)
    value_text: str = ""  # default as the manual words it
    only: Rule | None = None  # rule where there is no field
    unused: str = ""  # why it is accepted and changes nothing

    @property
    def default(self) -> object:
        """What holds when nobody says anything."""
        return FIELD_DEFAULTS[self.field] if self.field else self.value

    @property
    def rule(self) -> Rule | None:
        """What the value may be."""
        return RULES.get(self.field) if self.field else self.only

    @property
    def environment(self) -> tuple[str, ...]:
        """Names of environment variables, the first that is set wins."""
        own = "VGPU_" + self.name.upper().replace("-", "_")
        return (own, *(name for name in self.env if name != own))

    @property
    def default_text(self) -> str:
        """The default in words."""
        return self.value_text or self.kind.show(self.default) or "empty"
