"""What the other tests take for granted about the cluster, parts of which come from tests/e2e/cluster."""

from __future__ import annotations

from guard_operator.runtime.client import PODS

from . import then, timeouts
from .kube import Namespace

WEB = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - name: web
    image: IMAGE
    command: [python, -m, http.server, "8000"]
    readinessProbe: {httpGet: {port: 8000}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: friend, labels: {role: friend}}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: IMAGE, command: [sleep, infinity]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stranger}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: IMAGE, command: [sleep, infinity]}]}
"""

ONLY_FRIENDS = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-friends}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}], ports: [{port: 8000}]}]
"""

WORKER = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: worker}
spec:
  restartPolicy: Never
  initContainers:
  - name: sidecar
    image: IMAGE
    restartPolicy: Always
    command: [sh, -c, "trap exit TERM; sleep infinity & wait"]
  containers:
  - name: work
    image: IMAGE
    command: [sh, -c, "echo kept >/disk/file && cat /disk/file"]
    volumeMounts: [{name: disk, mountPath: /disk}]
  volumes: [{name: disk, persistentVolumeClaim: {claimName: disk}}]
"""

FETCH = "import urllib.request as r; print(r.urlopen('http://web/', timeout=2).status)"


def given_pods(namespace: Namespace, manifest: str) -> None:
    image = namespace.cluster.images["operator"]
    namespace.kubectl("apply", "-f", "-", give=manifest.replace("IMAGE", image))


def wait(namespace: Namespace, *condition: str) -> None:
    namespace.kubectl("wait", f"--timeout={timeouts.COMMAND - 5}s", *condition)


def reaches(namespace: Namespace, pod: str) -> bool:
    return namespace.try_kubectl("exec", pod, "--", "python", "-c", FETCH).returncode == 0


def test_service_is_found_by_name_until_a_network_policy_forbids_it(namespace: Namespace) -> None:
    given_pods(namespace, WEB)
    wait(namespace, "--for=condition=Ready", "pod/web", "pod/friend", "pod/stranger")
    # A pod that is ready is not yet known to every part of the network.
    then.eventually(lambda: reaches(namespace, "stranger"), "the Service answers", timeouts.COMMAND)

    namespace.kubectl("apply", "-f", "-", give=ONLY_FRIENDS)

    then.eventually(lambda: not reaches(namespace, "stranger"), "the policy is enforced", timeouts.COMMAND)
    then.eventually(lambda: reaches(namespace, "friend"), "the policy lets friends in", timeouts.COMMAND)


def test_pod_writes_to_the_default_storage_and_ends_with_its_sidecar(namespace: Namespace) -> None:
    given_pods(namespace, WORKER)
    wait(namespace, "--for=jsonpath={.status.phase}=Succeeded", "pod/worker")

    assert namespace.kubectl("logs", "worker", "--container=work") == "kept\n"
    worker = namespace.cluster.client.get(PODS, namespace.name, "worker")
    assert worker is not None
    assert "terminated" in worker["status"]["initContainerStatuses"][0]["state"]
