"""A package that is not installed, as one sentence: which command needs it, and the extra of hadamem that has it."""

from __future__ import annotations

import importlib.util

EXTRAS = {   # package: the smallest extra that installs it
    "gymnasium": "envs", "matplotlib": "plot", "PIL": "plot", "safetensors": "train", "yaml": "train", "scipy": "train", "rich": "train",
    "jinja2": "train", "tensorboard": "train", "ray": "cluster", "optuna": "sweep", "sb3_contrib": "sb3", "torchrl": "torchrl",
    "onnx": "onnx", "onnxruntime": "onnx", "onnxscript": "onnx",
}
PYPI = {"PIL": "Pillow", "yaml": "PyYAML", "sb3_contrib": "sb3-contrib"}      # where PyPI has it under another name


def missing_package(error: ImportError) -> str | None:
    """The package of an extra that an import failed for; None if it was something else."""
    package = (error.name or "").partition(".")[0]
    return package if package in EXTRAS and importlib.util.find_spec(package) is None else None


def install_hint(error: ImportError, command: str, extra: str) -> str | None:
    """The sentence for a command line such as "hadamem train"; None if no package of an extra is missing.

    extra: what the command needs as a whole; if "", the extra that has the package.
    """
    package = missing_package(error)
    if package is None:
        return str(error) if "pip install 'hadamem[" in str(error) else None
    wanted = extra if extra and EXTRAS[package] in ("envs", "plot", "train") else ",".join(filter(None, [extra, EXTRAS[package]]))
    return f"`{command}` needs {PYPI.get(package, package)}: pip install 'hadamem[{wanted}]'"
