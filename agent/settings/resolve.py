"""From everything that was given to one Config: which source wins, and what it replaced.

Precedence: flag, environment, node override, configuration file, default. A flag or a variable is
written for this very process, so it beats files; an entry of the node override names this node,
while device-config.yaml speaks of the whole cluster, so the entry beats it.
"""

import difflib
import reprlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.config import ALL_XIDS, IGNORED_XIDS, Config
from agent.domain.gpu import Sharing
from agent.errors import ConfigError
from agent.settings.belongs import unheard
from agent.settings.files import Contents, Given, Note, device_config, node_override
from agent.settings.kinds import XidList
from agent.settings.setting import Setting
from agent.settings.table import BY_NAME, SETTINGS

UNIT = "vgpu-agent.service"
NODE_CONFIG_FILE = Path("/config/config.json")
DEFAULT = "default"
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """One setting as it holds, where it came from, and what it was stronger than."""

    setting: Setting
    value: object
    origin: str
    instead_of: tuple[str, ...] = ()  # "10 from /device-config.yaml, nvidia.deviceSplitCount"

    @property
    def shown(self) -> str:
        """The value as it would be written."""
        if self.origin == DEFAULT and self.setting.value_text:
            return f"({self.setting.value_text})"
        return self.setting.kind.show(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A checked Config and how it came about."""

    config: Config
    effective: tuple[Effective, ...]
    notes: tuple[Note, ...] = ()


@dataclass(slots=True)
class _Sources:
    """Everything that was given, strongest source first."""

    layers: list[dict[str, list[Given]]]

    def of(self, setting: Setting) -> list[Given]:
        return [given for layer in self.layers for given in layer.get(setting.name, ())]

    def add(self, contents: Contents) -> list[Note]:
        self.layers.append({name: [given] for name, given in contents.given.items()})
        return contents.notes


def own_name(hostname: Callable[[], str] = socket.gethostname) -> str:
    """What this host's Node is called when no setting names it: as kubelet names it by itself."""
    return hostname().strip().lower()


def resolve(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    hostname: Callable[[], str] = socket.gethostname,
    node_config_file: Path = NODE_CONFIG_FILE,
    service: Mapping[str, str] | None = None,
) -> Resolution:
    """Read every source and decide.

    `flags`: setting name -> raw value, only what was given. `service`: the environment that this
    host's service has, where it is asked about; ours is stronger. Raises ConfigError with a
    sentence that names the flag, variable or file key, what is wrong with it and what to do.
    """
    notes: list[Note] = []
    from_flags = {name: [Given(raw, f"flag --{name}")] for name, raw in flags.items()}
    of_service = _environment(service or {}, notes, of=f" of {UNIT}")
    sources = _Sources([from_flags, _environment(environ, notes), of_service])
    node_name = _decide(BY_NAME["node-name"], sources, own_name=own_name(hostname))
    override_file = _decide(BY_NAME["node-config-file"], sources).value
    notes += sources.add(
        node_override(
            Path(str(override_file or node_config_file)),
            str(node_name.value),
            may_be_absent=override_file is None,
        )
    )
    if config_file := _decide(BY_NAME["config-file"], sources).value:
        contents = device_config(Path(str(config_file)))
        if contents.unknown and _decide(BY_NAME["mode"], sources).value == "nvidia":
            raise ConfigError(contents.unknown[0])
        notes += sources.add(contents)
    mode = str(_decide(BY_NAME["mode"], sources).value)
    effective = tuple(
        node_name if setting.name == "node-name" else _decide(setting, sources, mode=mode)
        for setting in SETTINGS
    )
    notes += _advice(effective, mode)
    return Resolution(config=_config(effective), effective=effective, notes=tuple(notes))


def _environment(
    environ: Mapping[str, str], notes: list[Note], *, of: str = ""
) -> dict[str, list[Given]]:
    """What the environment says; an empty variable counts as not set, as manifests render them."""
    layer: dict[str, list[Given]] = {}
    for setting in SETTINGS:
        for name in setting.environment:
            raw = environ.get(name, "").strip()
            if not raw:
                continue
            if name in setting.only_true and raw not in ("true", "false"):
                notes.append(
                    Note(f"{name} is {_SHORT.repr(raw)}, and only `true` means yes", warning=True)
                )
                raw = "false"
            layer.setdefault(setting.name, []).append(Given(raw, f"environment {name}{of}"))
    notes += _misspelt(environ)
    return layer


def _misspelt(environ: Mapping[str, str]) -> Iterable[Note]:
    known = {name for setting in SETTINGS for name in setting.environment}
    for name in sorted(environ):
        if not name.startswith("VGPU_") or name in known:
            continue
        if close := difflib.get_close_matches(name, known, n=1, cutoff=0.9):
            yield Note(f"{name} is no setting; {close[0]} is", warning=True)


def _decide(setting: Setting, sources: _Sources, own_name: str = "", mode: str = "") -> Effective:
    """The strongest source's value; weaker ones that say otherwise are remembered."""
    given = sources.of(setting)
    if not given:
        if own_name:
            found = Given(own_name, "the host name in lower case")
            return Effective(
                setting=setting, value=_understood(setting, found), origin=found.origin
            )
        if mode in setting.by_mode:
            value, origin = setting.by_mode[mode], f"{DEFAULT} of mode {mode}"
            return Effective(setting=setting, value=value, origin=origin)
        return Effective(setting=setting, value=setting.default, origin=DEFAULT)
    value = _understood(setting, given[0])
    return Effective(
        setting=setting,
        value=value,
        origin=given[0].origin,
        instead_of=tuple(
            f"{_shown(setting, weaker)} from {weaker.origin}"
            for weaker in given[1:]
            if _shown(setting, weaker) != setting.kind.show(value)
        ),
    )


def _understood(setting: Setting, given: Given) -> object:
    """The value, held to the setting's rule. Raises ConfigError."""
    try:
        value = setting.kind.parse(given.raw)
    except ValueError as error:
        objection = str(error)
    else:
        objection = setting.rule.objection(value) if setting.rule else ""
        if value is None and isinstance(setting.default, Path):
            objection = f"it cannot be empty; leave it out for {setting.default}"
    if objection:
        raise ConfigError(
            f"{given.origin.removeprefix('flag ')} is {_SHORT.repr(given.raw)}, but {objection}"
        )
    return value


def _shown(setting: Setting, given: Given) -> str:
    """A weaker source's value, which nobody depends on and which therefore may be wrong."""
    try:
        return setting.kind.show(setting.kind.parse(given.raw))
    except ValueError:
        return _SHORT.repr(given.raw)


def _advice(effective: Sequence[Effective], mode: str) -> Iterable[Note]:
    """What was given and works, but perhaps not as meant."""
    values = {one.setting.name: one.value for one in effective}
    for one in effective:
        usual = one.setting.by_mode.get(mode, one.setting.default)
        if one.value != usual and (where := unheard(one.setting.name, values)):
            yield _without_effect(one, where)
        if one.setting.unused and one.origin != DEFAULT and one.value != one.setting.default:
            yield Note(
                f"{one.origin.removeprefix('flag ')} changes nothing: {one.setting.unused}",
                warning=True,
            )
        if one.setting.name == "hook-path" and Path(str(one.value)).name == "vgpu":
            yield Note(
                f"{one.origin.removeprefix('flag ')} is {one.value}, so the hook is expected in "
                f"{one.value}/vgpu; HAMi's device plugin takes the directory above (its monitor "
                "takes this one)",
                warning=True,
            )


def _without_effect(one: Effective, where: str) -> Note:
    """Of a file only a note: it may be for other nodes, and for other readers."""
    said = f"{one.origin.removeprefix('flag ')} changes nothing {where}"
    if one.origin.startswith(("flag ", "environment ")):
        return Note(f"{said}; leave it out, or change what is in its way", warning=True)
    return Note(said)


def _config(effective: Iterable[Effective]) -> Config:
    values = {one.setting.name: one.value for one in effective}
    fields: dict[str, Any] = {
        setting.field: values[setting.name] for setting in SETTINGS if setting.field
    }
    fields["sharing.excluded_uuids"] = frozenset(fields["sharing.excluded_uuids"])
    sharing = {
        name.removeprefix("sharing."): fields.pop(name)
        for name in list(fields)
        if name.startswith("sharing.")
    }
    disabled, enabled = values["disable-healthchecks"], values["enable-healthchecks"]
    assert isinstance(disabled, XidList)  # noqa: S101 - the table says so
    assert isinstance(enabled, XidList)  # noqa: S101 - the table says so
    return Config(
        **fields,
        sharing=Sharing(**sharing),
        ignored_xids=ignored_xids(disabled, enabled),
        health_checks=not disabled.every or enabled.every or bool(enabled.xids),
    )


def ignored_xids(disabled: XidList, enabled: XidList) -> frozenset[int]:
    """XIDs that say nothing about a GPU; what is enabled is stronger than what is disabled.

    As NVIDIA's DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS, except that single XIDs can be
    enabled again after all were disabled.
    """
    if enabled.every:
        return frozenset()
    ignored = ALL_XIDS if disabled.every else IGNORED_XIDS | disabled.xids
    return ignored - enabled.xids
