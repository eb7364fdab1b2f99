"""Loop: when the Node's label chooses another configuration, end, to be started anew with it."""

from collections.abc import Callable

from agent import logs
from agent.errors import ConfigError
from agent.services.published import OwnNode
from agent.supervisor import Lifeline

log = logs.get(__name__)

PULSE_S = 120.0
LOOK_S = 60.0


class ConfigWatch:
    """Compares what the Node's labels choose with what was chosen at the start."""

    name = "config-choice"

    def __init__(
        self,
        own_node: OwnNode,
        choose: Callable[[str], str],
        *,
        label: str,
        chosen: str,
        anew: Callable[[], None],
    ) -> None:
        """`choose`: from the label's value to a name; raises ConfigError. `anew` ends the agent."""
        self._own_node = own_node
        self._choose = choose
        self._label = label
        self._chosen = chosen
        self._anew = anew

    def run(self, life: Lifeline) -> None:
        life.on_stop(self._own_node.poke)
        while not life.stopping:
            life.pulse(PULSE_S)
            version, _ = self._own_node.read()
            if self.look_once():
                return
            self._own_node.wait_for_change(version, LOOK_S)

    def look_once(self) -> bool:
        """Whether the agent was told to end. A Node that is not known, or gone, changes nothing."""
        node = self._own_node.now()
        if node is None:
            return False
        try:
            name = self._choose(node.labels.get(self._label, ""))
        except ConfigError as error:  # what is in force stays
            log.failing("configuration not chosen", error=error)
            return False
        log.recovered("configuration not chosen")
        if name == self._chosen:
            return False
        log.info("another configuration chosen", now=name or "none", before=self._chosen or "none")
        self._anew()
        return True
