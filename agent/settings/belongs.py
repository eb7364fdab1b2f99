"""Where a setting counts: those that change nothing in some modes, or beside other settings.

A setting that is in no row here counts everywhere. A row is true only if nothing in the other
modes looks at the setting; whoever makes a mode look at it takes it out of the row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

HAMI, SLICES, VOLCANO, NVIDIA = "hami", "slices", "volcano", "nvidia"
Values = Mapping[str, object]
"""What holds, by the setting's name."""


@dataclass(frozen=True, slots=True)
class Place:
    """Modes in which some settings count."""

    modes: tuple[str, ...]
    settings: tuple[str, ...]

    @property
    def words(self) -> str:
        """For a sentence: `mode hami`, `modes hami and slices`."""
        *first, last = self.modes
        return f"modes {', '.join(first)} and {last}" if first else f"mode {last}"


@dataclass(frozen=True, slots=True)
class Beside:
    """Settings that count only where another setting is as it has to be."""

    counts: Callable[[Values], bool]
    lack: str  # what is in its way, after "changes nothing"
    settings: tuple[str, ...]


PLACES = (
    Place((SLICES,), ("slice-sizes", "slice-placement", "slice-gpus")),
    Place((VOLCANO,), ("gpu-memory-factor", "gpu-memory-ids")),
    Place((HAMI,), ("gpumem-name", "gpumem-percentage-name", "gpucores-name", "gpumem-factor")),
    Place((HAMI,), ("unannotated", "operating-mode", "register-format", "enable-topology-score")),
    Place((HAMI,), ("mig-profile-allowlist", "known-mig-geometries")),
    Place((HAMI, VOLCANO), ("handshake", "clean-exit", "allow-disable-control")),
    Place((HAMI, VOLCANO), ("limits-annotation",)),  # slices: kubelet does not tell annotations
    Place((HAMI, SLICES), ("device-memory-scaling",)),  # Volcano's scheduler knows none
    # Mode nvidia gives GPUs as they are: nothing is divided, limited, lent or judged.
    Place(
        (HAMI, SLICES, VOLCANO),
        (
            *("device-split-count", "device-cores-scaling", "preconfigured-device-memory"),
            *("enable-numa-topology", "disable-core-limit", "lib-cuda-log-level"),
            *("hami-library", "mig-apply-lock", "cache-gc-interval"),
            *("kernel-memory-limits", "host-cgroup"),
            *("bypass-interval", "on-bypass", "bypass-allow-programs", "bypass-allow-namespaces"),
            *("priorities", "priority-from", "core-lending"),
        ),
    ),
    Place(
        (NVIDIA,),
        (
            *("config-file-srcdir", "node-label", "default-config", "fallback-strategies"),
            *("mig-strategy", "time-slicing", "mps", "mps-root", "resources"),
            "shared-devices-allocation-policy",
        ),
    ),
)
BESIDE = (
    Beside(
        lambda values: values["operating-mode"] == "mig",
        "without --operating-mode mig",
        ("mig-profile-allowlist", "known-mig-geometries"),
    ),
    Beside(
        lambda values: values["mode"] != SLICES or not values["slice-sizes"],
        "beside --slice-sizes, which take the place of equal parts",
        ("device-split-count",),
    ),
    Beside(
        lambda values: bool(values["config-file-srcdir"]),
        "without --config-file-srcdir",
        ("node-label", "default-config", "fallback-strategies"),
    ),
)
_PLACE = {name: place for place in PLACES for name in place.settings}


def place_of(name: str) -> Place | None:
    """The modes in which a setting counts; None: in all."""
    return _PLACE.get(name)


def unheard(name: str, values: Values) -> str:
    """Where a setting changes nothing, if that is how things are; empty: it counts."""
    mode = values["mode"]
    if (place := _PLACE.get(name)) and mode not in place.modes:
        return f"in mode {mode}: it is for {place.words}"
    for beside in BESIDE:
        if name in beside.settings and not beside.counts(values):
            return beside.lack
    return ""
