"""Try an installed hadamem that has its core dependencies only: `make check-build` runs this with the Python of such an environment.

Every command either works or says in one sentence which extra to install. A script of the standard library: nothing else is there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HADAMEM = [str(Path(sys.executable).with_name("hadamem"))]
WORKS = {   # command: what it prints
    "--help": "check-memory",
    "--version": "hadamem 0.",
    "list memories": "shm-paper",
    "list backends": "reference",
    "check-memory hadamem:GRU": "22 of 22 properties hold",
    "bench memory --help": "--all",
}
NEEDS = {   # command: the extra it asks for
    "train --env TMaze": "train", "train --help": "train", "eval first": "train", "watch first": "train", "inspect first": "train",
    "study mine.yaml": "train", "sweep mine.yaml": "train,sweep", "paper": "train", "paper theory": "train", "report studies": "train",
    "compare a b": "train", "play TMaze": "envs", "bench envs": "envs", "list envs": "envs", "list agents": "envs",
}
USES = """
import torch, hadamem as hm
memory = hm.SHM(8, 6, memory_size=16)
y, state = memory(torch.randn(2, 5, 8))
assert y.shape == (2, 5, 6)
assert [hm.make_memory(name, 8, 6) for name in hm.list_memories()]
assert hm.diagnostics.critical_gradients(hm.SHM.paper(8, 6, memory_size=4), torch.randn(2, 5, 8)).mean.shape == (5,)
assert hm.__file__.find("site-packages") > 0, hm.__file__
try:
    hm.train
except ImportError as error:
    assert "pip install 'hadamem[train]'" in str(error), error
else:
    raise AssertionError("hm.train needs packages that are not here")
"""
TEMPLATES = ("hadamem/reports/templates/page.html", "hadamem/reports/inspect/templates/page.html", "hadamem/py.typed")


def main(wheel: str) -> int:
    problems = check_wheel(zipfile.ZipFile(wheel).namelist())
    with tempfile.TemporaryDirectory() as folder:
        def run(*command: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)

        for words, text in WORKS.items():
            done = run(*HADAMEM, *words.split())
            if done.returncode or text not in done.stdout:
                problems.append(f"hadamem {words}: exit code {done.returncode}, {done.stdout[-200:]} {done.stderr[-400:]}")
        for words, extra in NEEDS.items():
            done = run(*HADAMEM, *words.split())
            sentence = done.stderr.strip()
            clear = sentence.endswith(f": pip install 'hadamem[{extra}]'") and sentence.count("pip") == 1 and "\n" not in sentence
            if done.returncode != 2 or not clear:
                problems.append(f"hadamem {words} should ask for the extra {extra!r}: exit code {done.returncode}, {sentence[-400:]}")
        done = run(sys.executable, "-c", USES)
        if done.returncode:
            problems.append(f"from Python: {done.stderr[-800:]}")
    print("\n".join(problems) or f"{Path(wheel).name}: {len(WORKS)} commands work, {len(NEEDS)} say which extra they need")
    return 1 if problems else 0


def check_wheel(names: list[str]) -> list[str]:
    """What is missing in a wheel, or should not be in it."""
    odd = [name for name in names if not name.startswith(("hadamem/", "hadamem-")) or "__pycache__" in name or "/tests/" in name]
    return [f"the wheel has no {name}" for name in TEMPLATES if name not in names] + [f"the wheel has {name}" for name in odd]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) == 2 else "usage: python tests/bare_install.py WHEEL")
