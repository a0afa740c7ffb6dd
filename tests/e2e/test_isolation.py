"""What the trainer can and cannot reach, tried from inside its container.

Each thing is looked for in the guard's container too, with the same command: what is not found in the trainer
is there to be found.
"""

from __future__ import annotations

from . import given, jobs, then, timeouts
from .kube import GUARD_CONTAINER, TRAINER_CONTAINER, Job, Namespace

#: A needle that only the held-out split contains.
HELDOUT_ITEM = '"id": "item-0"'
#: And one that only the guard's key does.
PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----"

#: Prints the paths under which any readable file holds a needle; links and kernel file systems apart.
SEARCH = """
import os, sys
needle = sys.argv[1].encode()
for top, folders, files in os.walk("/"):
    if top == "/":
        folders[:] = set(folders) - {"proc", "sys", "dev", "usr", "opt", "lib", "lib64", "bin"}
    for name in files:
        path = os.path.join(top, name)
        try:
            with open(path, "rb") as file:
                if needle in file.read(10_000_000):
                    print(path)
        except OSError:
            pass
"""

#: Prints what other processes can be seen, and what of the guard's files through their /proc/<pid>/root.
NEIGHBOURS = """
import glob, os
for entry in glob.glob("/proc/[0-9]*"):
    try:
        print(open(f"{entry}/cmdline").read().replace(chr(0), " "))
        print(*os.listdir(f"{entry}/root/var/run/rlguard"))
    except OSError:
        pass
"""

#: Asks the API server for this job with whatever credential is at hand; prints the answer's status.
ASK_API_SERVER = """
import os, ssl, sys, urllib.error, urllib.request
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}{sys.argv[1]}"
request = urllib.request.Request(url)
try:
    token = open("/var/run/secrets/kubernetes.io/serviceaccount/token").read()
    request.add_header("Authorization", f"Bearer {token}")
except OSError:
    pass
try:
    print(urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""

#: Asks the guard with the trainer's token; prints the answer's status.
ASK_GUARD = """
import http.client, os, ssl, sys
from urllib.parse import urlsplit
guard = urlsplit(os.environ["RLGUARD_URL"])
context = ssl.create_default_context(cadata=os.environ["RLGUARD_CA"])
guard = http.client.HTTPSConnection(guard.hostname, guard.port, timeout=10, context=context)
guard.request("GET", sys.argv[1], headers={"Authorization": f"Bearer {os.environ['RLGUARD_TOKEN']}"})
print(guard.getresponse().status)
"""


def test_the_trainer_cannot_reach_what_is_the_guards(namespace: Namespace) -> None:
    job = given_a_trainer_that_is_root(namespace)

    the_heldout_split_is_the_guards_alone(job)
    the_private_key_is_the_guards_alone(job)
    nobody_has_a_token_of_the_api_server(job)
    the_guards_processes_cannot_be_seen(job)
    the_trainers_token_is_for_reports(job)
    the_checkpoints_are_read_only_for_the_guard(job)


# -- given and then, in the words of these tests ---------------------------------------------------------


def given_a_trainer_that_is_root(namespace: Namespace) -> Job:
    """With the capabilities that containers have by default, as in most manifests with GPUs."""
    volume = given.a_claim_with_the_heldout_split(namespace)
    manifests = jobs.scripted("run", namespace.cluster.images["trainer"], ["steps 8"], heldout=volume)
    jobs.pod_spec_of(manifests[-1])["securityContext"] = {"runAsUser": 0}
    del jobs.trainer_of(manifests[-1])["securityContext"]
    given.objects(namespace, manifests)
    job = namespace.job("run")
    then.the_guard_has_counted(job, 8, within=timeouts.START)
    then.the_condition_is(job, "Isolated", "True", "StrictIsolation")
    return job


def python(job: Job, container: str, program: str, *arguments: str) -> str:
    """What a Python program prints inside a container."""
    return job.exec(container, "python", "-c", program, *arguments)


def the_heldout_split_is_the_guards_alone(job: Job) -> None:
    assert "/rlguard/heldout/heldout.jsonl" in python(job, GUARD_CONTAINER, SEARCH, HELDOUT_ITEM)
    assert python(job, TRAINER_CONTAINER, SEARCH, HELDOUT_ITEM) == ""
    for path in ("/var/run/rlguard/heldout/heldout.jsonl", "/var/run/rlguard/secrets", "/var/lib/rlguard"):
        assert job.try_exec(GUARD_CONTAINER, "ls", path).returncode == 0, path
        tried = job.try_exec(TRAINER_CONTAINER, "ls", path)
        assert "No such file or directory" in tried.stderr, (path, tried)


def the_private_key_is_the_guards_alone(job: Job) -> None:
    assert "/rlguard/secrets/tls.key" in python(job, GUARD_CONTAINER, SEARCH, PRIVATE_KEY)
    assert python(job, TRAINER_CONTAINER, SEARCH, PRIVATE_KEY) == ""


def nobody_has_a_token_of_the_api_server(job: Job) -> None:
    """Not even the guard."""
    path = f"/apis/rlguard.dev/v1alpha1/namespaces/{job.namespace.name}/guardedtrainingjobs/{job.name}"
    for container in (GUARD_CONTAINER, TRAINER_CONTAINER):
        tried = job.try_exec(container, "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
        assert "No such file or directory" in tried.stderr, tried
        assert python(job, container, ASK_API_SERVER, path).strip() in {"401", "403"}


def the_guards_processes_cannot_be_seen(job: Job) -> None:
    assert "guard_service" in python(job, GUARD_CONTAINER, NEIGHBOURS)
    seen = python(job, TRAINER_CONTAINER, NEIGHBOURS)
    assert "trainer.py" in seen
    assert "guard_service" not in seen
    assert "heldout" not in seen


def the_trainers_token_is_for_reports(job: Job) -> None:
    """It reports (the run has counted steps), and asks for the verdict, and that is all."""
    assert job.exec(TRAINER_CONTAINER, "sh", "-c", 'echo "$RLGUARD_TOKEN"').strip()
    assert python(job, TRAINER_CONTAINER, ASK_GUARD, "/v1/verdict").strip() == "200"
    assert python(job, TRAINER_CONTAINER, ASK_GUARD, "/v1/history").strip() in {"401", "403"}


def the_checkpoints_are_read_only_for_the_guard(job: Job) -> None:
    job.exec(TRAINER_CONTAINER, "touch", "/checkpoints/file")
    tried = job.try_exec(GUARD_CONTAINER, "touch", "/checkpoints/another")
    assert "Read-only file system" in tried.stderr, tried
