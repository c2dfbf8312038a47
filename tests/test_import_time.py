"""`import hadamem` stays light: little time on top of torch, and nothing heavy pulled in."""

from __future__ import annotations

import json
import subprocess
import sys

PROBE = """
import json, sys, time
import torch, numpy
before = set(sys.modules)
start = time.process_time()      # CPU time: other programs change it little
import hadamem
took = time.process_time() - start
heavy = ("numba", "triton", "gymnasium", "matplotlib", "tensorboard", "ray", "torch._dynamo", "scipy", "pytest")
print(json.dumps({"took": took, "heavy": [m for m in heavy if m in sys.modules and m not in before]}))
"""

TESTING = """
import sys
import hadamem.testing.__main__, hadamem.testing.conformance, hadamem.reference
print([m for m in ("numba", "triton", "gymnasium", "matplotlib", "pytest") if m in sys.modules])
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120).stdout


def test_import_adds_little_to_torch():
    tries = []
    for _ in range(4):
        result = json.loads(run(PROBE))
        assert result["heavy"] == []
        tries.append(result["took"])
        if result["took"] <= 0.3:
            return
    raise AssertionError(f"import hadamem added {min(tries):.2f} s at best, allowed 0.3 s")


def test_testing_needs_no_extras():
    assert run(TESTING).strip() == "[]"


def test_lazy_names_are_listed():
    import hadamem as hm

    for name in hm.__all__:
        assert name in dir(hm)
    assert callable(hm.testing.check_memory)
