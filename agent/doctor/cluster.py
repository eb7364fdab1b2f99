"""The cluster's room: API server, credentials, rights, our Node, the scheduler's handshake."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from agent.adapters.kube_answers import Request, Unauthorized
from agent.adapters.kube_config import SERVICE_ACCOUNT_DIR
from agent.doctor import volcano
from agent.doctor.finding import Check, Finding, Verdict, failed, ok, skipped, warning
from agent.doctor.host import Host
from agent.doctor.place import agent_runs
from agent.domain.handshake import HANDSHAKE, MAX_CHARS
from agent.domain.register import REGISTER
from agent.domain.volcano import HANDSHAKE as VOLCANO_HANDSHAKE
from agent.domain.volcano import REGISTER as VOLCANO_REGISTER
from agent.errors import ClusterDenied, ClusterError, ClusterGone, ConfigError

# What the agent does; packaging/daemonset/base/rbac.yaml allows exactly this.
RIGHTS: Mapping[str, tuple[str, ...]] = {
    "nodes": ("get", "watch", "patch"),
    "pods": ("get", "list", "watch", "patch"),
    "events": ("create",),
}
READING = ("get", "watch")  # what mode nvidia does with its Node, whose label chooses a file
RULES_FILE = "packaging/daemonset/base/rbac.yaml"
APPLY = f"vgpu-agent files {RULES_FILE} | kubectl apply -f -"
APPLY_FEWER = (  # which passes over all that is no role or binding
    "kubectl kustomize packaging/daemonset/overlays/nvidia | kubectl auth reconcile -f -"
)
MAY_EVICT = (
    "kubectl create clusterrole vgpu-agent-evict --verb=create --resource=pods/eviction && "
    "kubectl create clusterrolebinding vgpu-agent-evict --clusterrole=vgpu-agent-evict "
    "--serviceaccount=kube-system:vgpu-agent   # or packaging/daemonset/components/evict"
)
LABEL, LABEL_VALUE = "gpu", "on"  # HAMi's label for the nodes that it shares
UNANSWERED_S = 60.0  # after which schedulers before 2.8 give a node up
SKEW_S = 60.0
FORMATS = {"json": "HAMi 2.8 and later", "csv9": "HAMi 2.5 to 2.7", "csv7": "HAMi 2.4 and earlier"}
_STAMP = re.compile(r"(Requesting|Deleted)_(\d{4})([.-])(\d\d)[.-](\d\d) (\d\d):(\d\d):(\d\d)")


def credentials(host: Host) -> Finding:
    """Who we are for the API server."""
    given = host.config.kubeconfig
    if given is None and not host.config.follows_cluster and not _token_here():
        return skipped(f"not applicable: mode {host.config.mode} needs no API server")
    if given is None and not host.in_pod and not (SERVICE_ACCOUNT_DIR / "token").exists():
        return skipped(
            "no kubeconfig is set and this is no pod, so nothing of the cluster is looked at",
            "vgpu-agent doctor --kubeconfig /etc/vgpu-agent/kubeconfig",
        )
    try:
        host.transport.connect()
    except ConfigError as error:
        fix = f"kubectl --kubeconfig {given} get nodes" if given else APPLY
        return failed(str(error), fix)
    return ok(f"from {given}" if given else "the pod's service account")


def _token_here() -> bool:
    return (SERVICE_ACCOUNT_DIR / "token").exists()


def api_server(host: Host) -> Finding:
    """Somebody answers there, whatever he says."""
    request = Request(
        verb="get", resource="version", method="GET", path="/version", about="the version"
    )
    try:
        version = host.asked(request).get("gitVersion", "of an unknown version")
    except ClusterDenied as error:
        return ok(f"the API server answers: {error.code}")
    except ClusterError as error:
        where = host.transport.connect().configuration.host
        return failed(str(error), f"curl -ksS {where}/version   # firewall, proxy, address, CA?")
    return ok(f"the API server is {version}")


def authorized(host: Host) -> Finding:
    """It knows us."""
    try:
        _may(host, "get", "nodes")
    except Unauthorized as error:
        return failed(
            f"the API server does not know our credentials: {error}",
            "kubectl -n kube-system create token vgpu-agent --duration 24h > TOKENFILE",
        )
    except ClusterError as error:
        return failed(f"it cannot be asked what we may do: {error}", APPLY)
    return ok("the API server knows our credentials")


def _may(host: Host, verb: str, resource: str, subresource: str = "") -> bool:
    """Whether RBAC lets us. Source: Kubernetes, authorization.k8s.io/v1."""
    attributes = {"group": "", "resource": resource, "verb": verb}
    if subresource:
        attributes["subresource"] = subresource
    review = host.asked(
        Request(
            verb="create",
            resource="selfsubjectaccessreviews",
            method="POST",
            path="/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            about=f"the question whether we may {verb} {resource}",
            body={
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            },
        )
    )
    status = review.get("status")
    return isinstance(status, dict) and status.get("allowed") is True


def rights(resource: str) -> Any:
    """The check of what we may do with a resource."""

    def look(host: Host) -> Finding:
        verbs = RIGHTS[resource]
        if resource == "nodes" and host.config.mode == "nvidia":
            if host.config.config_srcdir is None:
                return skipped(
                    "not applicable: there is no --config-file-srcdir for a label to choose from"
                )
            verbs = READING
        missing = [verb for verb in verbs if not _may(host, verb, resource)]
        if missing:
            fix = APPLY_FEWER if host.config.mode == "nvidia" else APPLY
            return failed(f"we may not {', '.join(missing)} {resource}", fix)
        return ok(f"we may {', '.join(verbs)} {resource}")

    return look


def eviction(host: Host) -> Finding:
    """A right of its own, which only those need who want more than to be told."""
    if host.config.on_bypass != "evict":
        return ok(f"nobody is evicted: --on-bypass is {host.config.on_bypass}")
    if not _may(host, "create", "pods", "eviction"):
        return warning(
            "--on-bypass is evict, and we may not create pods/eviction: who gets past a limit is "
            "told and goes on",
            MAY_EVICT,
        )
    return ok("we may create pods/eviction")


def node(host: Host) -> Finding:
    """There is a Node of our name."""
    name = host.config.node_name
    try:
        found = host.node
    except ClusterGone:
        return failed(
            f"there is no Node {name}",
            "kubectl get nodes   # then --node-name NAME, or NODE_NAME by spec.nodeName",
        )
    except ClusterError as error:
        return failed(str(error), APPLY)
    return ok(f"{name}, uid {found.get('uid', '')}")


def node_label(host: Host) -> Finding:
    """DaemonSets of HAMi and ours go by it."""
    labels = _mapping(host.node.get("labels"))
    if labels.get(LABEL) == LABEL_VALUE:
        return ok(f"the Node is labelled {LABEL}={LABEL_VALUE}")
    said = f"{LABEL}={labels[LABEL]}" if LABEL in labels else f"no label {LABEL}"
    if agent_runs(host).verdict is Verdict.OK:  # as a service of the host it needs none
        return ok(f"the Node has {said}, and the agent that runs here does not go by it")
    return warning(
        f"the Node has {said}: DaemonSets of HAMi and of this agent leave it out",
        f"kubectl label node --overwrite {host.config.node_name} {LABEL}={LABEL_VALUE}",
    )


def register_form(value: str) -> str:
    """The form of a register annotation; empty: none of them. Total."""
    if value.lstrip().startswith("["):
        try:
            return "json" if isinstance(json.loads(value), list) else ""
        except (ValueError, RecursionError):
            return ""
    first = value.partition(":")[0]
    return {7: "csv7", 9: "csv9"}.get(len(first.split(",")), "")


def register(host: Host) -> Finding:
    """What is on the Node is what these settings would write."""
    if host.config.mode == "volcano":
        return volcano.register(host.config, _annotations(host))
    value = _annotation(host, REGISTER)
    wanted = host.config.register_format
    if value is None:
        return failed(
            f"the Node has no annotation {REGISTER}: the scheduler does not know of its GPUs",
            volcano.LOGS,
        )
    form = register_form(value)
    if form != wanted:
        return warning(
            f"{REGISTER} is {form or 'in no known form'}, and these settings would write {wanted} "
            f"({FORMATS[wanted]})",
            "vgpu-agent config | grep register-format   # one agent, one scheduler, one format",
        )
    return ok(f"{REGISTER} is {form}, for {FORMATS[form]}")


def left_behind(host: Host) -> Finding:
    """Where no scheduler decides: what another mode or plugin has written is still read by one."""
    try:
        found = [key for key in (REGISTER, VOLCANO_REGISTER) if key in _annotations(host)]
    except ClusterError as error:
        return skipped(f"the Node cannot be read: {error}")
    if found:
        return warning(
            f"the Node has {' and '.join(found)} of another mode or device plugin: a scheduler "
            f"that reads it sends pods here, which mode {host.config.mode} gives other shares",
            f"kubectl annotate node {host.config.node_name} {' '.join(f'{key}-' for key in found)}",
        )
    return ok("no scheduler is told of vGPUs on this Node")


def scheduler_protocol(host: Host) -> Finding:
    """The traces of a scheduler that reads another format than we write."""
    if host.config.mode == "volcano":
        asked = stamp_of(_annotation(host, VOLCANO_HANDSHAKE) or "")
        ago_s = host.now_s() - asked[2] if asked else None
        finding = volcano.protocol(
            host.config, _annotations(host), host.allocatable, asked_ago_s=ago_s
        )
        return finding if finding.verdict is Verdict.OK else _answered_by_nobody(host) or finding
    return _hami_protocol(host)


def _answered_by_nobody(host: Host) -> Finding | None:
    """What a scheduler misses where no agent runs says nothing of what one would write."""
    if agent_runs(host).verdict is Verdict.OK:
        return None
    return skipped("no agent runs here that would tell the scheduler of the GPUs")


def _hami_protocol(host: Host) -> Finding:
    config, value = host.config, _annotation(host, HANDSHAKE)
    if value is None:
        return ok(f"no {HANDSHAKE}: no scheduler has asked")
    stamp = stamp_of(value)
    if stamp is None:
        return ok(f"{HANDSHAKE} is {value[:80]!r}")
    word, dotted, at_s = stamp
    age_s = host.now_s() - at_s
    form = "csv7" if dotted else "csv9"
    older = dotted and config.register_format != "csv7"
    given_up = word == "Deleted" and not config.answers_handshake and age_s > UNANSWERED_S
    fix = f"vgpu-agent run --register-format {form}   # or upgrade the scheduler to 2.8 or later"
    if older:
        return failed(
            f"{HANDSHAKE} is {value[:80]!r}, as {FORMATS[form]} write it: that scheduler reads "
            f"{form}, and we write {config.register_format}",
            fix,
        )
    if given_up:  # 2.8 itself writes it when kubelet counts no GPU, and perhaps leaves it there
        return warning(
            f"{HANDSHAKE} has been {value[:80]!r} for {age_s:.0f} s: a scheduler before 2.8 has "
            f"given the node up, because it waits for answers and reads csv9, and we write "
            f"{config.register_format}; or one of 2.8 found no GPU here at that time",
            fix,
        )
    if config.answers_handshake and age_s > UNANSWERED_S:
        return _answered_by_nobody(host) or failed(
            f"{HANDSHAKE} has been {value[:80]!r} for {age_s:.0f} s, and nobody answers: the "
            "scheduler takes the node out",
            volcano.LOGS,
        )
    return ok(
        f"{HANDSHAKE} is {value[:80]!r}, which fits --register-format {config.register_format}"
    )


def handshake_clock(host: Host) -> Finding:
    """The scheduler writes its local time as if it were UTC, and reads it so."""
    key = VOLCANO_HANDSHAKE if host.config.mode == "volcano" else HANDSHAKE
    stamp = stamp_of(_annotation(host, key) or "")
    if stamp is None:
        return ok("the handshake has no time of a scheduler in it")
    _, _, at_s = stamp
    written_s = written_at_s(host.node, key)
    if written_s is not None:
        skew_s, against = at_s - written_s, "the API server's"
    else:
        skew_s, against = max(0.0, at_s - host.now_s()), "ours"
    if abs(skew_s) > SKEW_S:
        return warning(
            f"the scheduler's time in {key} is {skew_s / 60:+.0f} min beside {against}: its "
            "clock or its time zone is another, and nodes expire too early or never",
            "kubectl -n kube-system set env deploy/hami-scheduler TZ=UTC; timedatectl   # NTP on?",
        )
    return ok(f"the scheduler's time is within {SKEW_S:.0f} s of {against}")


def stamp_of(value: str) -> tuple[str, bool, float] | None:
    """Keyword, whether the date has dots (HAMi 2.4), unix time; None: no such. Total."""
    found = _STAMP.fullmatch(value[:MAX_CHARS].strip())
    if not found:
        return None
    try:
        year, month, day, hour, minute, second = (int(found[n]) for n in (2, 4, 5, 6, 7, 8))
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return found[1], found[3] == ".", moment.timestamp()


def written_at_s(metadata: Mapping[str, Any], key: str) -> float | None:
    """When the API server saw an annotation written last; None: it does not say. Total."""
    times = []
    managers = metadata.get("managedFields")
    for manager in managers if isinstance(managers, list) else ():
        fields = _mapping(_mapping(_mapping(manager).get("fieldsV1")).get("f:metadata"))
        if f"f:{key}" in _mapping(fields.get("f:annotations")):
            try:
                times.append(datetime.fromisoformat(str(manager.get("time"))).timestamp())
            except (ValueError, OverflowError):
                continue
    return max(times, default=None)


def _annotations(host: Host) -> dict[str, str]:
    found = _mapping(host.node.get("annotations"))
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _annotation(host: Host, key: str) -> str | None:
    return _annotations(host).get(key)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


HANGS = "kubectl get --raw /readyz   # from this node"
CHECKS = tuple(
    Check(name=name, question=question, look=look, needs=needs, hangs=HANGS)
    for name, question, look, needs in (
        ("credentials", "are there credentials for the API server?", credentials, ()),
        ("api-server", "does the API server answer?", api_server, ("credentials",)),
        ("authorized", "does it know us?", authorized, ("api-server",)),
        *(
            (
                f"rights-{resource}",
                f"may we do with {resource} what the agent does?",
                rights(resource),
                ("authorized",),
            )
            for resource in RIGHTS
        ),
        ("rights-eviction", "may we evict, if we are to?", eviction, ("authorized",)),
        ("node", "is there a Node of our name?", node, ("rights-nodes",)),
        ("node-label", f"is it labelled {LABEL}={LABEL_VALUE}?", node_label, ("node",)),
        ("register", "is it registered, in the format that is set?", register, ("agent", "node")),
        (
            "scheduler-protocol",
            "does the scheduler understand what we write?",
            scheduler_protocol,
            ("node",),
        ),
        ("handshake-clock", "is the scheduler's clock ours?", handshake_clock, ("node",)),
    )
)
