"""The table of settings, complete.

Everything else is derived from it: the flags, the environment names, the file keys, the output of
`vgpu-agent config` and docs/configuration.md. A new setting is a new row (and, unless it only
combines with others, a field of `Config`).
"""

from agent.settings import host_rows, nvidia_rows, observe_rows, sharing_rows
from agent.settings.setting import Setting

SETTINGS: tuple[Setting, ...] = (
    *sharing_rows.ROWS,
    *host_rows.ROWS,
    *nvidia_rows.ROWS,
    *observe_rows.ROWS,
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
