"""Is the agent installed on the machine that runs the tests? Then `uninstall` is not tried on it."""

import pytest

from agent.hostinstall.layout import Layout

without_installed_agent = pytest.mark.skipif(
    Layout.unit.exists() or Layout().prefix.exists(),
    reason="the agent is installed on this very host and would be removed",
)
