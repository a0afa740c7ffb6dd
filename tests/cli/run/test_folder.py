"""What can be done with the folder of a run that has ended: see it, make its report again, go on from it."""

import re
import subprocess
import sys
import urllib.request

import pytest

pytestmark = [pytest.mark.always, pytest.mark.slow]

FINISH = (
    *["step=0.5,0.01"] * 4,
    "step=0.6,0.01",
    "checkpoint",
)  # five steps: what the median of the KL needs


@pytest.fixture
def rlguard():
    def invoke(*arguments):
        command = [sys.executable, "-m", "rlguard.cli.main", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    return invoke


def page_at(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def test_serve_report_resume_and_status_of_a_folder(workplace, rlguard):
    assert workplace.run(*FINISH).returncode == 0

    status = rlguard("status", workplace.out)
    assert status.returncode == 0 and "all of 1 checkpoints were judged" in status.stdout, status

    page = workplace.path / "page.html"
    made = rlguard("report", workplace.out, "--out", page)
    assert made.returncode == 0, made.stderr
    assert "without a fire" in page.read_text() and "item-0" not in page.read_text()

    resumed = rlguard("resume", workplace.out)
    assert resumed.returncode == 0, resumed.stderr
    first, *_ = resumed.stdout.splitlines()
    assert f"--resume-from {workplace.out / 'best_checkpoint'}" in first
    assert "rlguard run" in first and f"--out {workplace.out}-2" in first

    serving = subprocess.Popen(
        [sys.executable, "-m", "rlguard.cli.main", "serve", str(workplace.path), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = serving.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        assert "without a fire" in page_at(url) and "<svg" in page_at(f"{url}out/plot.svg")
    finally:
        serving.terminate()
        serving.wait(30)
        serving.stdout.close()
