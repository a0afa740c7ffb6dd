"""Writes the exports in `tests/data/mlflow` with MLflow itself. Run by hand, with node on the PATH.

    python -m venv V && V/bin/pip install mlflow==3.17.2 && V/bin/python tests/data/record_mlflow.py

One run, whose trainer started twice, as in `tests.cli.logs.recorded`, is logged with `MlflowClient` into a
data base. `metrics/get-history` is asked of MLflow's server, in pages. The CSV is what the page exports of a
chart, by the page's own code: those functions are cut out of its build, and get what the page asks the
server for.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXPORTS = Path(__file__).parent / "mlflow"
sys.path.insert(0, str(ROOT))
from tests.cli.logs.recorded import kl, reward, steps  # noqa: E402

PAGE = 12
BULK = "/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval"


def rows():
    """What the two starts log, a second apart; below 0 and no number are values, too."""
    for attempt in (0, 1):
        for step in steps(attempt):
            values = {"train/reward": reward(step, attempt), "kl": kl(step, attempt)}
            values["entropy"] = float("nan") if step == 3 else 0.5
            if step % 4 == 0:
                values["eval/score"] = -step / 100
            yield step, values


def log(client):
    run = client.create_run(client.create_experiment("grpo"), run_name="grpo-1").info.run_id
    for time, (step, values) in enumerate(rows()):
        for name, value in values.items():
            client.log_metric(run, name, value, timestamp=1_795_000_000_000 + 1000 * time, step=step)
    return run


def between(text, first, last):
    start = text.index(first)
    return text[start : text.index(last, start)]


def page_code():
    """The page's functions `chartMetricHistoryToCsv` and those it calls, as they are in its build."""
    import mlflow

    build = Path(mlflow.__file__).parent / "server" / "js" / "build" / "static" / "js"
    text = next(
        t for f in build.glob("*.js") if 'Run ID","metric","step","timestamp"' in (t := f.read_text())
    )
    cell = between(text, 'p=e=>{if(null===e||void 0===e)return"";', ',m="$$$param$$$"')
    chart = between(text, '(e,t)=>{const n=[e.some(e=>e.groupParentInfo)?"Group":"Run"', ")(e,t)")
    return f"const {cell};const chart={chart};"


def csv_of(traces, metric):
    script = f"{page_code()}process.stdout.write(chart({json.dumps(traces)},[{json.dumps(metric)}]))"
    return subprocess.run(["node", "-e", script], check=True, capture_output=True, text=True).stdout


def main():
    with tempfile.TemporaryDirectory() as place:
        store = f"sqlite:///{place}/mlflow.db"
        os.environ |= {"_MLFLOW_SERVER_FILE_STORE": store, "_MLFLOW_SERVER_ARTIFACT_ROOT": place}
        from mlflow import MlflowClient
        from mlflow.server import app

        client, http = MlflowClient(store), app.test_client()
        run = log(client)
        EXPORTS.mkdir(exist_ok=True)
        (EXPORTS / "charts").mkdir(exist_ok=True)
        (EXPORTS / "history").mkdir(exist_ok=True)
        for metric in client.get_run(run).data.metrics:
            file = metric.replace("/", "-")
            asked = {"run_ids": run, "metric_key": metric, "max_results": 320}
            shown = http.get(BULK, query_string=asked).json["metrics"]
            trace = {"displayName": "grpo-1", "runInfo": {"runUuid": run}, "metricsHistory": {metric: shown}}
            (EXPORTS / "charts" / f"{file}.csv").write_text(csv_of([trace], metric))
            token, page = "", 0
            while token is not None:
                asked = {"run_id": run, "metric_key": metric, "max_results": PAGE, "page_token": token}
                answer = http.get("/api/2.0/mlflow/metrics/get-history", query_string=asked)
                (EXPORTS / "history" / f"{file}-{page}.json").write_text(answer.text)
                token, page = answer.json.get("next_page_token"), page + 1


if __name__ == "__main__":
    main()
