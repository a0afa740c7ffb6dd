"""Every time-out of the tests on a cluster: by name, in seconds, with its reason. There is no other number.

They are limits of patience and no measurements: two or three times what a machine with two busy cores needs.
"""

from __future__ import annotations

# -- the session -----------------------------------------------------------------------------------------

#: `helm` waits for two operator pods; their image is in the node.
INSTALL = 180
#: One test, its fixtures and its artefacts included; the longest holds a GRPO run.
TEST = 30 * 60

# -- commands --------------------------------------------------------------------------------------------

#: One kubectl command; `exec` starts a Python in a pod that shares two cores.
COMMAND = 60
#: One kubectl command that collects artefacts: a node that is broken must not eat the session.
ARTEFACT = 20

# -- a job -----------------------------------------------------------------------------------------------

#: From `kubectl apply` to what the operator says about the spec.
DECISION = 30
#: From `kubectl apply` to a running trainer: the guard starts first (imports on a busy core).
START = 300
#: The same of a Ray cluster: the guard, the head, the worker, whose init container imports Ray with a fifth
#: of a core, the submitter, and then the program.
RAY = 15 * 60
#: A change in the guard reaches the status: ten seconds between two writes, and an operator's next look.
REPORT = 60
#: The guard loads torch in a process of its own and scores a tiny checkpoint.
EVALUATION = 180
#: From a latched fire to no pod left: a pod has 30 s of grace for trainer and guard together.
STOP = 120
#: From a latched fire to a pod that is overdue: its grace, a quarter of a minute, and the next look.
OVERDUE = 150
#: The same as STOP after an outage of the API server: the controller may make the pod again, which has its
#: grace too, and then no pod must be seen for half a minute.
STOP_AFTER_OUTAGE = 240
#: An operator looks at a stopped run once more a minute later.
LATER = 90
#: A container that died runs again: the kubelet waits 10 s before the second restart, and start-up follows.
RESTART = 180
#: A lost pod is made again by the training-operator; then as START.
REPLACE = 240
#: The demo: warm-up (half a minute on a free core), then up to 80 GRPO steps, each second one evaluated.
GRPO = 20 * 60
#: One or two pods load torch at once, beside those of two other tests, and meet; then five steps for the
#: median of the KL.
TWO_NODES = 15 * 60
#: Nothing of a namespace is left.
NAMESPACE_DELETE = 120

# -- the cluster itself ----------------------------------------------------------------------------------

#: The API server's process ends, or starts and is ready: its clients' connections are drained first.
API_SERVER = 120
#: Whoever lost its Lease has ended; the kubelet starts it again, and waits up to 40 s if it ended before.
LEADERS_BACK = 180
#: From a guard that hangs to what its silence of 30 s leads to: a poll of 40 s fails first, and the kubelet
#: calls the guard not ready. Two minutes later the kubelet would kill it.
SILENCE = 150
