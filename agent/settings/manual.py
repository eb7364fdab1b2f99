"""The settings in words: the output of `vgpu-agent config` and docs/configuration.md."""

import textwrap

from agent.settings.belongs import place_of
from agent.settings.resolve import Resolution
from agent.settings.setting import GROUPS, Setting
from agent.settings.table import SETTINGS

PRECEDENCE = (
    "A flag is stronger than the environment, the environment stronger than an entry for this node "
    "in the node override file, that stronger than the configuration file, and that stronger than "
    "the default."
)
_INTRODUCTION = f"""# Configuration

<!-- Made by `vgpu-agent config --markdown`; a test compares. Change agent/settings/, not this. -->

{textwrap.fill(PRECEDENCE, 98)}

Flags and variables are written for one process, so they beat files; an entry of the node override
names one node while the configuration file speaks of the whole cluster, so the entry beats the
file. `vgpu-agent config` prints every setting as it holds, where it came from, and which weaker
sources said otherwise; where the agent is a service of the host, with what its unit and
`/etc/vgpu-agent/vgpu-agent.env` say. A value that cannot be is refused at start with exit code 2
and a sentence that names its source. What is set and changes nothing in the mode that is chosen is
named in a note: at the end of what `vgpu-agent config` prints, and in the log of `vgpu-agent run`.

- Every flag can be set as `VGPU_<FLAG>`, e.g. `VGPU_DEVICE_SPLIT_COUNT=4`. An empty variable counts
  as not set. Of several variables of one setting the first in the table wins.
- Times are written `300`, `5m`, `1h30m` or `500ms`; a bare number counts seconds. Switches are
  `true` or `false` (or `1`, `0`, `yes`, `no`, `on`, `off`); the flag alone means `true`.
- `nvidia.` keys belong to section `nvidia` of HAMi's device-config.yaml, which `--config-file`
  names; `flags.` and `imex.` keys to NVIDIA's configuration file of version `v1`, which the same
  flag reads. `node:` keys belong to an entry of HAMi's `config.json`; upper and lower case do not
  matter there.
- Unlike in HAMi, the flags and variables for the split count, the scalings, the core limit and the
  resource name work, and in a node entry `0`, `false` and `""` override like any other value
  (except where they can mean nothing: a split count, a scaling or a mode).
- Keys that only the scheduler reads are left alone; `vgpu-agent config` lists them.
"""


def document() -> str:
    """docs/configuration.md, complete."""
    parts = [_INTRODUCTION]
    for group in GROUPS:
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        parts += [_entry(setting) for setting in SETTINGS if setting.group == group]
    return "\n".join(parts)


def _entry(setting: Setting) -> str:
    flags = ", ".join(f"`{flag}`" for flag in flags_of(setting))
    text = setting.help + (f" {_unused(setting)}" if setting.unused else "")
    lines = [f"### {flags}\n", textwrap.fill(text, 98, break_on_hyphens=False)]
    facts = {
        "Values": accepts(setting),
        "Default": _default(setting),
        "Modes": _modes(setting),
        "Environment": ", ".join(f"`{name}`" for name in setting.environment),
        "Files": ", ".join(f"`{key}`" for key in file_keys(setting)),
    }
    lines += ["", *(f"- {name}: {text}" for name, text in facts.items() if text), ""]
    return "\n".join(lines)


def _default(setting: Setting) -> str:
    text = setting.value_text or f"`{setting.default_text}`"
    for mode, value in setting.by_mode.items():
        text += f"; in mode {mode} `{setting.kind.show(value)}`"
    return text


def _modes(setting: Setting) -> str:
    """The modes in which it counts; empty: all."""
    place = place_of(setting.name)
    return ", ".join(place.modes) if place else ""


def _unused(setting: Setting) -> str:
    return f"Accepted and without effect: {setting.unused}."


def flags_of(setting: Setting) -> tuple[str, ...]:
    """The flag and its aliases, with their dashes."""
    names = (setting.name, *setting.aliases)
    return tuple(f"--{name}" if len(name) > 1 else f"-{name}" for name in names)


def file_keys(setting: Setting) -> tuple[str, ...]:
    """Keys of all files, as the manual names them."""
    keys = (
        f"nvidia.{setting.hami}" if setting.hami else "",
        setting.nvidia,
        f"node: {setting.node}" if setting.node else "",
    )
    return tuple(key for key in keys if key)


def accepts(setting: Setting) -> str:
    """What may be written; empty when the kind says it all."""
    return setting.kind.accepts or (setting.rule.accepts if setting.rule else "")


def flag_help(setting: Setting) -> str:
    """One paragraph of `--help`."""
    facts = [f"values: {accepts(setting)}"] if accepts(setting) else []
    default = setting.default_text + "".join(
        f" (mode {mode}: {setting.kind.show(value)})" for mode, value in setting.by_mode.items()
    )
    facts.append(f"default: {default}")
    if modes := _modes(setting):
        facts.append(f"modes: {modes}")
    facts.append(f"environment: {', '.join(setting.environment)}")
    if keys := file_keys(setting):
        facts.append(f"files: {', '.join(keys)}")
    unused = f" {_unused(setting)}" if setting.unused else ""
    return f"{setting.help}{unused} [{'; '.join(facts)}]"


def listing(resolution: Resolution) -> str:
    """Every effective setting for a person, one per line, then the notes."""
    rows = [
        (
            one.setting.name,
            one.shown or '""',
            one.origin + (f" (instead of {'; '.join(one.instead_of)})" if one.instead_of else ""),
        )
        for one in resolution.effective
    ]
    widths = [min(48, max(len(row[column]) for row in rows)) for column in (0, 1)]
    lines = [f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for name, value, origin in rows]
    if resolution.notes:
        lines += ["", "notes:"]
        lines += [
            f"- {'warning: ' if note.warning else ''}{note.text}" for note in resolution.notes
        ]
    return "\n".join(lines)


def as_json(resolution: Resolution) -> dict[str, object]:
    """The same for a program."""
    return {
        "settings": [
            {
                "name": one.setting.name,
                "value": one.setting.kind.show(one.value),
                "origin": one.origin,
                "instead_of": list(one.instead_of),
            }
            for one in resolution.effective
        ],
        "notes": [{"text": note.text, "warning": note.warning} for note in resolution.notes],
    }
