"""docs/reliability.md names a test for each of its claims: they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_row_names_tests_that_exist():
    text = (ROOT / "docs" / "reliability.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|") and "tests/" in line]
    assert len(rows) >= 15
    assert all(word in text for word in ("killed", "diverged", "outlier", "damaged", "full disk", "deleted", "hanging", "signalled"))
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert named, row
        for file, name in named:
            functions = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
            assert functions if not name else name in functions, f"{file}::{name}"
