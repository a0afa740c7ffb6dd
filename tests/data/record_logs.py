"""Writes the logs of `tests/data/logs` with the frameworks' own writers. Run by hand, once a release.

    pip download --no-deps verl==0.9.1 && unzip verl-*.whl -d VERL && pip install orjson
    python tests/data/record_logs.py VERL

Loads the two modules of verl that write logs, and nothing else of it: the rest needs Ray and a GPU. TRL's are
the event file and the trainer_state.json of ten steps of GRPOTrainer (TRL 1.16, `report_to="tensorboard"`,
`logging_steps=1`, `save_steps=5`, `beta=0.1`) on the tiny Llama of `guard_cli.demo`.
"""

import contextlib
import importlib.util
import io
import os
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent / "logs"


def load(file: Path):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows():
    for step in range(1, 13):
        yield (
            step,
            {
                "actor/entropy": 0.9 - step / 100,
                "actor/kl_loss": step / 1000,
                "actor/ppo_kl": -step / 5000,
                "critic/score/mean": np.float64(0.25 + step / 40),
                "critic/score/max": 1.0,
                "response_length/mean": 100.0 + step,
                "perf/total_num_tokens": 4096 * step,
                "training/global_step": step,
            },
        )


def main(verl: Path) -> None:
    os.environ["VERL_FILE_LOGGER_PATH"] = str(HERE / "verl.jsonl")
    file = load(verl / "verl/utils/tracking.py").FileLogger("project", "run")
    console = load(verl / "verl/utils/logger/aggregate_logger.py").LocalLogger()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for step, values in rows():
            file.log(values, step)
            console.log(values, step)
    file.finish()
    (HERE / "verl-console.log").write_text(printed.getvalue())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
