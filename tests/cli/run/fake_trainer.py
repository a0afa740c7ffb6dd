"""A trainer for the CLI's tests: reports to a real guard over HTTP, and misbehaves on request. No torch.

    python fake_trainer.py CHECKPOINT_ROOT ACTION...

Actions, in order: `step=REWARD[,KL]`, `checkpoint`, `refused-checkpoint` (of a folder elsewhere),
`lost-steps=COUNT` (made, and without a reward to report), `end` (tell the guard the last step),
`sleep=SECONDS`, `exit=CODE`, `ignore-term`, `fork`, `double-fork`, `say=TEXT`,
`environ=PATH` (write the environment there), `kill-guard=PATH` (the guard whose state is there),
`verdicts=SECONDS` (ask for the verdict that long).
"""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

progress = {"step": 0}


def call(path, body=None):
    request = urllib.request.Request(
        os.environ["RLGUARD_URL"] + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['RLGUARD_TOKEN']}",
            "Content-Type": "application/json",
        },
    )
    end = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except OSError:  # the guard is being started again
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def report(value):
    step = progress["step"] = progress["step"] + 1
    reward, _, kl = value.partition(",")
    body = {"attempt": 0, "step": step, "reward": float(reward)}
    if kl:
        body |= {"kl": float(kl), "kl_kind": "ref_token_mean"}
    call("/v1/steps", body)


def checkpoint(root):
    step = progress["step"]
    path = Path(root) / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (path / name).write_text("{}")
    (path / "model.safetensors").write_text(str(step))
    call("/v1/checkpoints", {"attempt": 0, "step": step, "path": str(path)})


def refused_checkpoint():
    elsewhere = {"attempt": 0, "step": progress["step"], "path": "/elsewhere"}
    try:
        call("/v1/checkpoints", elsewhere)
    except urllib.error.HTTPError as error:
        print(error.read().decode(), flush=True)
    else:
        sys.exit("it was not refused")


def fork(setsid):
    """A descendant that ignores SIGTERM; with `setsid` it has left the process group and its parent."""
    if os.fork():
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if setsid:
        os.setsid()
        if os.fork():
            os._exit(0)
    print("descendant", os.getpid(), flush=True)
    time.sleep(600)
    os._exit(0)


def act(root, name, value):
    match name:
        case "step":
            report(value)
        case "checkpoint":
            checkpoint(root)
        case "lost-steps":
            progress["step"] += int(value)
        case "end":
            call("/v1/end", {"attempt": 0, "step": progress["step"]})
        case "refused-checkpoint":
            refused_checkpoint()
        case "sleep":
            time.sleep(float(value))
        case "exit":
            os._exit(int(value))
        case "ignore-term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        case "fork":
            fork(setsid=False)
        case "double-fork":
            fork(setsid=True)
        case "say":
            print(value, flush=True)
        case "environ":
            Path(value).write_text(json.dumps(dict(os.environ)))
        case "kill-guard":
            os.kill(json.loads((Path(value) / "endpoint.json").read_text())["pid"], signal.SIGKILL)
        case "verdicts":
            end = time.monotonic() + float(value)
            while time.monotonic() < end:
                call("/v1/verdict")
                time.sleep(0.1)
        case _:
            sys.exit(f"unknown action {name}")


for action in sys.argv[2:]:
    act(sys.argv[1], *(action.partition("=")[::2]))
