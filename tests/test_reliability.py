"""docs/reliability.md names a test for each of its claims: they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_row_names_tests_that_exist():
    text = (ROOT / "docs" / "reliability.md").read_text()
    rows = [line for line in text.partition("\n## ")[0].splitlines() if re.search(r"\| \d+ \|$", line)]
    assert len(rows) >= 15
    for word in ("killed", "diverged", "outlier", "damaged", "full disk", "deleted", "hanging", "signalled"):
        assert any(f"**{word}**" in row for row in rows), word
    shown = dict(re.findall(r"^(\d+)\. (`tests/.*)$", text, flags=re.MULTILINE))
    assert [row.split("|")[-2].strip() for row in rows] == list(shown)
    for number, tests in shown.items():
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", tests)
        assert named, number
        for file, name in named:
            functions = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
            assert functions if not name else name in functions, f"{file}::{name}"
