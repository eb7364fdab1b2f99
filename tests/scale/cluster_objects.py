"""Nodes and pods of the length that they have in a real cluster, made up.

Parts that all have in common are shared, not copied: fifty thousand pods fit into memory.
"""

import uuid
from typing import Any

Object = dict[str, Any]

_SPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")
STAMP = "2026-11-01T08:00:00Z"
CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready")
IMAGES = 50  # as many as kubelet tells of by default
LABELS = {
    "beta.kubernetes.io/arch": "amd64",
    "beta.kubernetes.io/os": "linux",
    "gpu": "on",
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
    "node.kubernetes.io/instance-type": "gpu-h200-8",
    "topology.kubernetes.io/region": "region-1",
    "topology.kubernetes.io/zone": "zone-1a",
}


def gpu_uuid(number: int) -> str:
    return f"GPU-{uuid.uuid5(_SPACE, f'gpu {number}')}"


def _images() -> list[Object]:
    return [
        {
            "names": [
                f"registry.example/team/image-{n:02d}@sha256:{n:064x}",
                f"registry.example/team/image-{n:02d}:1.{n}.0",
            ],
            "sizeBytes": 100_000_000 + n,
        }
        for n in range(IMAGES)
    ]


def _managed(manager: str, fields: int) -> Object:
    """Who set which field: a good third of every object that a real API server sends."""
    names = {f'f:k{n:02d}{{"name":"field-{n:02d}"}}': {"f:value": {}} for n in range(fields)}
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": STAMP,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": names},
    }


_NODE_STATUS: Object = {
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    "nodeInfo": {
        "architecture": "amd64",
        "containerRuntimeVersion": "containerd://2.1.0",
        "kernelVersion": "6.8.0-60-generic",
        "kubeletVersion": "v1.36.0",
        "operatingSystem": "linux",
        "osImage": "Ubuntu 24.04 LTS",
    },
    "images": _images(),
}
_NODE_MANAGED = [_managed("kube-controller-manager", 10), _managed("kubelet", 40)]
_POD_MANAGED = [_managed("kube-controller-manager", 25), _managed("kubelet", 25)]


def node_object(name: str, gpus: int, split_count: int) -> Object:
    amounts = {"cpu": "192", "memory": "2113368820Ki", "pods": "250"}
    amounts["nvidia.com/gpu"] = str(gpus * split_count)
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": str(uuid.uuid5(_SPACE, name)),
            "creationTimestamp": STAMP,
            "labels": LABELS | {"kubernetes.io/hostname": name},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            "managedFields": _NODE_MANAGED,
        },
        "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
        "status": _NODE_STATUS
        | {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                {
                    "type": kind,
                    "status": "True" if kind == "Ready" else "False",
                    "lastHeartbeatTime": STAMP,
                    "lastTransitionTime": STAMP,
                    "reason": f"KubeletHas{kind}",
                    "message": f"kubelet says of {kind} that all is as it should be",
                }
                for kind in CONDITIONS
            ],
        },
    }


_CONTAINER: Object = {
    "name": "main",
    "image": "registry.example/team/image-01:1.1.0",
    "command": ["python", "-m", "team.train", "--config", "/etc/train/config.yaml"],
    "env": [{"name": f"SETTING_{n:02d}", "value": f"value-{n:02d}"} for n in range(20)],
    "volumeMounts": [
        {"name": "config", "mountPath": "/etc/train"},
        {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
    ],
    "imagePullPolicy": "IfNotPresent",
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_POD_SPEC: Object = {
    "volumes": [
        {"name": "config", "configMap": {"name": "train", "defaultMode": 420}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ],
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "securityContext": {},
    "schedulerName": "hami-scheduler",
    "tolerations": [
        {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute"}
        for why in ("not-ready", "unreachable")
    ],
    "priority": 0,
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
}
_POD_STATUS: Object = {
    "phase": "Running",
    "conditions": [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": STAMP}
        for kind in (
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled",
        )
    ],
    "hostIP": "10.0.0.1",
    "podIP": "10.1.0.7",
    "podIPs": [{"ip": "10.1.0.7"}],
    "startTime": STAMP,
    "containerStatuses": [
        {
            "name": "main",
            "state": {"running": {"startedAt": STAMP}},
            "ready": True,
            "restartCount": 0,
            "image": "registry.example/team/image-01:1.1.0",
            "imageID": f"registry.example/team/image-01@sha256:{1:064x}",
            "containerID": f"containerd://{2:064x}",
            "started": True,
        }
    ],
    "qosClass": "Burstable",
}


def pod_object(node: str, number: int, *, gpus: int, vgpus: int) -> Object:
    """A pod that runs, with what HAMi's scheduler wrote and the agent has worked off."""
    name = f"{node}-train-{number:03d}"
    claims = ":".join(f"{gpu_uuid((number + n) % gpus)},NVIDIA,8192,10" for n in range(vgpus))
    limits = {
        "nvidia.com/gpu": str(vgpus),
        "nvidia.com/gpumem": "8192",
        "nvidia.com/gpucores": "10",
    }
    container = _CONTAINER | {"resources": {"limits": limits, "requests": limits}}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": str(uuid.uuid5(_SPACE, name)),
            "creationTimestamp": STAMP,
            "labels": {"app": "train", "pod-template-hash": "6d4b75cb6d"},
            "annotations": {
                "hami.io/vgpu-node": node,
                "hami.io/vgpu-time": "1793520000",
                "hami.io/bind-phase": "success",
                "hami.io/bind-time": "1793520000",
                "hami.io/vgpu-devices-allocated": claims + ":;",
                "hami.io/vgpu-devices-to-allocate": ";",
            },
            "managedFields": _POD_MANAGED,
        },
        "spec": _POD_SPEC | {"nodeName": node, "containers": [container]},
        "status": _POD_STATUS,
    }
