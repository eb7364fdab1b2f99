"""Settings: from flags, environment and files to one `agent.config.Config`."""

from agent.settings.resolve import Effective, Resolution, resolve

__all__ = ["Effective", "Resolution", "resolve"]
