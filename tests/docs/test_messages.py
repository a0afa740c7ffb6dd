"""What the pages quote is in the code: messages, reasons, alerts, exit codes, problem types, manifests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from guard_service.errors import ProblemType
from rlguard.core.codes import Code
from rlguard.operator.adapters import find_adapter
from rlguard.operator.api.reasons import Reason
from rlguard.operator.config import OperatorConfig
from rlguard.operator.reconcile.parse import parse_job
from rlguard.operator.reconcile.review import review
from tests.docs.blocks import Block, blocks

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ANY = "\N{HORIZONTAL ELLIPSIS}"
CODE = [path for path in ROOT.glob("*/**/*.py") if path.is_relative_to(ROOT / "tests") is False]
CODE = [
    path for path in CODE if path.relative_to(ROOT).parts[0].startswith(("guard_", "trainer_", "rlguard"))
]


def texts(source: str) -> Iterator[str]:
    """Every text in a module; what an f-string fills in is `ANY`."""
    tree = ast.parse(source)
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(p.value) if isinstance(p, ast.Constant) else ANY for p in node.values]
            yield "".join(parts).replace(f"'{ANY}'", ANY)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield re.sub(r"%(?:\.\d+)?[a-z]", ANY, node.value)  # as `logging` fills them in


@pytest.fixture(scope="session")
def said() -> list[str]:
    return [text for path in CODE for text in texts(path.read_text("utf-8"))]


def is_said(message: str, said: list[str]) -> bool:
    """Whether some text of the code has this message; `ANY` stands for something, short or long."""
    parts = message.replace(f"'{ANY}'", ANY).split(ANY)  # `!r` brings the quotes
    wanted = re.compile(".*".join(re.escape(part.strip()) for part in parts), re.DOTALL)
    return any(wanted.search(text) for text in said)


MESSAGES = [block for block in blocks(DOCS / "tasks" / "troubleshooting.md") if block.language == "text"]


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 30


@pytest.mark.parametrize("block", MESSAGES, ids=str)
def test_a_quoted_message_is_in_the_code(block: Block, said: list[str]) -> None:
    assert is_said(block.text, said), f"{block}: nothing says {block.text!r}"
    assert len(block.text.replace(ANY, "").strip()) > 15, f"{block}: this would fit anything"


def test_reasons_of_the_cluster_exist() -> None:
    page = (DOCS / "tasks" / "troubleshooting.md").read_text("utf-8")
    table = page.partition("## On a cluster")[2].partition("## ")[0]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`([A-Z]\w+)`", row.split("|")[1])
    }
    assert len(named) > 8
    assert named <= {reason.value for reason in Reason}


def test_every_code_that_can_fire_is_in_the_page_about_fires() -> None:
    page = (DOCS / "tasks" / "it-fired.md").read_text("utf-8")
    assert [code.value for code in Code if code.finding is not None and f"`{code.value}`" not in page] == []


def test_every_problem_type_is_listed() -> None:
    page = (DOCS / "reference" / "codes.md").read_text("utf-8")
    assert [kind.urn for kind in ProblemType if f"| `{kind.urn}` | {kind.status} |" not in page] == []


# -- alerts ------------------------------------------------------------------------------------------------


def test_every_alert_links_to_a_section_that_exists() -> None:
    chart = (ROOT / "charts/rlguard/templates/monitoring.yaml").read_text("utf-8")
    page = DOCS / "tasks" / "troubleshooting.md"
    alerts = re.split(r"^    - alert: ", chart, flags=re.MULTILINE)[1:]
    assert len(alerts) >= 6
    for alert in alerts:
        name = alert.split()[0]
        assert f'"rlguard.runbook" (dict "site" .runbooks "section" "{name.lower()}")' in alert, name
        assert re.search(rf"^### {name}$", page.read_text("utf-8"), re.MULTILINE), (
            f"{page.name} has no {name}"
        )


# -- manifests ---------------------------------------------------------------------------------------------

MANIFESTS = [
    (block, manifest)
    for page in sorted(DOCS.rglob("*.md"))
    for block in blocks(page)
    if block.language == "yaml"
    for manifest in yaml.safe_load_all(block.text)
    if isinstance(manifest, dict) and manifest.get("kind") == "GuardedTrainingJob"
]


@pytest.mark.parametrize(("block", "manifest"), [pytest.param(b, m, id=str(b)) for b, m in MANIFESTS])
def test_a_job_on_a_page_would_be_created(block: Block, manifest: dict) -> None:
    manifest["metadata"] |= {
        "namespace": "default",
        "uid": "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
        "resourceVersion": "1",
    }
    job = parse_job(manifest)
    kind = job.spec.workload
    said = review(find_adapter(kind.api_version, kind.kind), job, OperatorConfig("guard:1"))
    assert (said.reason, said.findings, said.broken) == (None, (), ())
    assert job.spec.target_ref is not None or said.workload["spec"]


def test_there_is_a_job() -> None:
    assert MANIFESTS
