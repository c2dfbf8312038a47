"""Policies as files that run without hadamem: ONNX, and programs of torch.export. A file is compared with the policy before it is kept."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .._version import __version__
from ..files import write_file
from .agreement import ExportError, Run, compare
from .card import make_card
from .policy import Policy
from .step import Port, Step, example

FORMATS = {"onnx": ".onnx", "torch": ".pt2"}      # and the usual ending of a file's name
ABOUT = "hadamem.json"                            # in a program of torch.export


class Exported(NamedTuple):
    """What `export` wrote."""

    path: Path
    format: str
    bytes: int
    difference: float | None      # largest one to the policy's outputs, see `agreement.difference`; None: they could not be compared
    inputs: list[Port]
    outputs: list[Port]


def export(policy: Policy, path: Path | str, format: str | None = None, *, mask: bool = False, noise: bool = False) -> Exported:
    """Write one acting step of a policy to a file, as `Step` defines it. format: onnx or torch; None: by the ending of the name.

    The file is compared with the policy over 100 random steps of 3 envs, an ONNX file only where onnxruntime is installed. If they differ,
    an ExportError says where, and nothing is written.
    """
    path = Path(path)
    format = find_format(path) if format is None else format
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; choose from {', '.join(FORMATS)}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; pass the name of a file, such as {path / f'policy{FORMATS[format]}'}")
    step = Step(_copy(policy), mask=mask, noise=noise)
    data, run = (_onnx if format == "onnx" else _torch)(policy, step, describe(policy, step))
    difference = None
    if run is not None:
        same = Step(_copy(policy), mask=mask, noise=noise)
        difference = max(compare(same, run), compare(same, run, steps=10, n=1))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, data)
    return Exported(path, format, len(data), difference, step.inputs, step.outputs)


def find_format(path: Path) -> str:
    """The format that a file's name ends with."""
    for format, ending in FORMATS.items():
        if path.suffix == ending:
            return format
    raise ValueError(f"the name {path} does not say which format is wanted; end it with {' or '.join(FORMATS.values())}, or pass format")


def describe(policy: Policy, step: Step) -> dict[str, str]:
    """What the file says about itself."""
    def ports(given: list[Port]) -> str:
        return json.dumps({port.name: {"shape": ["N", *port.shape], "dtype": port.kind, "is": port.meaning} for port in given})

    card = make_card(policy)
    known = {name: str(card[name]) for name in ("env", "agent", "memory", "steps", "seed") if card.get(name) is not None}
    return {"hadamem": __version__, "torch": torch.__version__, **known, "inputs": ports(step.inputs), "outputs": ports(step.outputs),
            "start": "state is zeros and reset is true at the first step; then state is next_state"}


# --- formats -------------------------------------------------------------------------------------------------------


def _program(policy: Policy, step: Step) -> Any:
    """The step as torch.export records it, for any number of envs."""
    if not hasattr(torch.compiler, "is_exporting"):
        raise ExportError(f"exporting needs PyTorch 2.7 or newer, this is {torch.__version__}")
    n = torch.export.Dim("N", min=1)
    given = {port.name: example(port, 3) for port in step.inputs}
    with _failing(policy), _quiet(), torch.no_grad():
        program = torch.export.export(step, (given,), dynamic_shapes=({name: {0: n} for name in given},), strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)      # it holds paths of this machine
    return program


def _torch(policy: Policy, step: Step, about: dict[str, str]) -> tuple[bytes, Run]:
    """A file for torch.export.load, and what it does."""
    program, file = _program(policy, step), io.BytesIO()
    with _failing(policy), _quiet():
        torch.export.save(program, file, extra_files={ABOUT: json.dumps(about, indent=1)})
        file.seek(0)
        loaded = torch.export.load(file).module()

    def run(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.no_grad():
            return {name: x.numpy() for name, x in loaded({name: torch.from_numpy(x) for name, x in given.items()}).items()}

    return file.getvalue(), run


def _onnx(policy: Policy, step: Step, about: dict[str, str]) -> tuple[bytes, Run | None]:
    """An ONNX file, and what it does in onnxruntime; None if that is not installed."""
    try:
        import onnx  # noqa: F401
        import onnxscript
    except ImportError as error:
        raise ImportError(f"the format onnx needs {error.name}: pip install 'hadamem[onnx]'", name=error.name) from error
    program, names = _program(policy, step), [port.name for port in step.inputs]
    with _failing(policy), _quiet():
        made = torch.onnx.export(program, dynamo=True, verbose=False, input_names=names, output_names=[port.name for port in step.outputs],
                                 custom_translation_table={torch.ops.aten.sort.stable: _stable_sort(onnxscript.opset18)})
        assert made is not None
        parts: Any = (made.model.graph, *made.model.graph.all_nodes())
        for part in parts:
            part.metadata_props.clear()      # where in the source it comes from, with paths of this machine
        made.model.metadata_props.update(about)
        made.model.producer_name, made.model.producer_version = "hadamem", __version__
        data: bytes = made.model_proto.SerializeToString()
    try:
        import onnxruntime
    except ImportError:
        return data, None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with _failing(policy):
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    outputs = [x.name for x in session.get_outputs()]
    return data, lambda given: dict(zip(outputs, session.run(None, given), strict=True))


def _stable_sort(op: Any) -> Callable[..., Any]:
    """aten.sort.stable in ONNX, whose TopK puts the lower index first among equal values."""
    def sort(self: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        size = op.Reshape(op.Gather(op.Shape(self), op.Constant(value_ints=[dim])), op.Constant(value_ints=[1]))
        return op.TopK(self, size, axis=dim, largest=int(descending), sorted=1)

    return sort


@contextlib.contextmanager
def _failing(policy: Policy) -> Iterator[None]:
    """Turns whatever the exporters raise into one sentence that names the memory."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:      # torch.export and torch.onnx raise errors of many kinds
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        why = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        raise ExportError(f"memory {policy.spec.network.memory!r} with agent {policy.name!r} cannot be exported: {why[:300]}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' warnings about their own workings."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)



def _copy(policy: Policy) -> Policy:
    """The same policy on the CPU: exporting must not touch the one that is in use, nor its state."""
    twin = Policy.build(policy.describe(), {name: x.detach().cpu().clone() for name, x in policy.network.state_dict().items()})
    twin.network.eval()
    return twin
