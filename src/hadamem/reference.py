"""Published weights: load a checkpoint of the released code, and get states and gradients under its names.

    published = torch.load("checkpoint.pt", weights_only=True)         # state_dict of the released SHM module
    memory = hadamem.reference.load("shm_popgym", published)           # ours, with the same weights and outputs
    state = hadamem.reference.state(memory, {"M": their_memory})       # what the released code carries, [B, H, H]
    y, state = memory(x, state, reset)
    hadamem.reference.arrays(memory, state)["M"]                       # and back, as numpy

`MODELS` is the table of published models; a new one needs a line there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .memory import FFM, FWP, GPT2, GRU, LSTM, MLSTM, S6, SHM, LinearAttention, Memory
from .states import State

Array = Any   # a numpy array or a tensor


class View(NamedTuple):
    """A parameter laid out differently in the reference: the name of ours, and the view of it (`.T`, a slice) that equals theirs."""

    name: str
    of: Callable[[Tensor], Tensor]


class Published(NamedTuple):
    """One published model: what it is called, and how to build ours. Names map the reference's to ours; `*` is the number of a layer."""

    kind: type[Memory]
    build: Callable[[Mapping[str, tuple[int, ...]], Mapping[str, Any]], Memory]   # (shapes, hparams) -> fresh memory
    parameters: Mapping[str, str | View]
    state: Mapping[str, str]                                                     # their names: our fields
    op: str | None = None                                                        # the operation of hm.kernels behind it
    enter: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None        # their arrays -> our fields, where names do not suffice
    leave: Callable[[State], dict[str, Tensor]] | None = None                    # and back


def _shm(make: Callable[..., SHM], **fixed: Any) -> Callable[..., Memory]:
    def build(shapes: Mapping[str, tuple[int, ...]], hparams: Mapping[str, Any]) -> Memory:
        L, H = shapes["theta_matrix"]
        return make(shapes["norm.weight"][0], hparams.get("O", shapes["out.bias"][0]), hparams.get("H", H),
                    theta_rows=hparams.get("L", L), **fixed)

    return build


def _gpt2(shapes: Mapping[str, tuple[int, ...]], hparams: Mapping[str, Any]) -> Memory:
    width, D = shapes["map.weight"]
    layers = sum(name.endswith(".ln_1.weight") for name in shapes)
    return GPT2(D, memory_size=hparams.get("hidden", width), heads=hparams.get("n_head", 4), layers=hparams.get("n_layer", layers),
                window=hparams.get("max_seq_length", 5000), past_window="recompute")


def _rnn(kind: Callable[..., Memory]) -> Callable[..., Memory]:
    def build(shapes: Mapping[str, tuple[int, ...]], hparams: Mapping[str, Any]) -> Memory:
        return kind(shapes["weight_ih_l0"][-1], memory_size=hparams.get("H", shapes["weight_hh_l0"][-1]))   # y = h

    return build


def _block(kind: Callable[..., Memory], core: str = "", last: str | None = None, **fixed: Any) -> Callable[..., Memory]:
    """A block with a LayerNorm; `core` comes before its names, and `last` is its output layer, if it has one."""
    def build(shapes: Mapping[str, tuple[int, ...]], hparams: Mapping[str, Any]) -> Memory:
        H, D = shapes[f"{core}key.weight"]
        O = None if last is None else hparams.get("O", shapes[f"{last}.weight"][0])
        return kind(D, O, hparams.get("H", H), **fixed)

    return build


def _mlstm(shapes: Mapping[str, tuple[int, ...]], hparams: Mapping[str, Any]) -> Memory:
    D, H = shapes["core.Wq"]
    return MLSTM(D, hparams.get("O", shapes["out.bias"][0]), hparams.get("H", H))


def _ffm(shapes: Mapping[str, tuple[int, ...]], hparams: Mapping[str, Any]) -> Memory:
    m, c = shapes["ffa.a"][-1], shapes["ffa.b"][-1]
    return FFM(shapes["pre.weight"][1], hparams.get("O", shapes["mix.bias"][0]), hparams.get("m", m), context=hparams.get("c", c))


def _s6(core: str = "") -> Callable[..., Memory]:
    def build(shapes: Mapping[str, tuple[int, ...]], hparams: Mapping[str, Any]) -> Memory:
        O = hparams.get("O", shapes["out.bias"][0]) if core else None   # the block alone has no output layer
        return S6(shapes[f"{core}in_proj.weight"][1], O, hparams.get("d_state", shapes[f"{core}A_log"][-1]))

    return build


def _enter_mlstm(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published state has no units; where it is too large for float32 it gets some."""
    C, n = given["C"].double(), given["n"].double()
    largest = torch.cat((C.detach().flatten(1), n.detach()), dim=1).abs().amax(1)
    m = torch.where(largest > 1e30, largest.log(), 0.0)
    return {"C": C * torch.exp(-m)[:, None, None], "n": n * torch.exp(-m)[:, None], "m": m}


def _leave_mlstm(state: State) -> dict[str, Tensor]:
    unit = torch.exp(state.m.double())
    return {"C": state.C.double() * unit[:, None, None], "n": state.n.double() * unit[:, None]}


_SHM_ROOT = {
    "norm.weight": "norm.weight", "norm.bias": "norm.bias",
    "key.weight": "key.weight", "query.weight": "query.weight", "value.weight": "value.weight",
    "eta.weight": "eta.weight",
    "theta_matrix": "calibration.theta", "vc_net.weight": "calibration.vc.weight",
    "out.weight": "out.weight", "out.bias": "out.bias",
}
_SHM = {**_SHM_ROOT, "shortcut.weight": "shortcut.weight", "shortcut.bias": "shortcut.bias"}
_GPT2_LINEAR = {"attn.c_attn": "attention", "attn.c_proj": "project", "mlp.c_fc": "expand", "mlp.c_proj": "contract"}   # (in, out) there
_GPT2_SAME = {"map": "map", "transformer.ln_f": "norm", "transformer.h.*.ln_1": "blocks.*.norm1", "transformer.h.*.ln_2": "blocks.*.norm2"}
_BLOCK = {name: name for name in ("norm.weight", "norm.bias", "key.weight", "query.weight", "value.weight", "shortcut.weight",
                                  "shortcut.bias")}
_BLOCK_MLP = {**_BLOCK, **{name: name for name in ("ff.0.weight", "ff.0.bias", "ff.2.weight", "ff.2.bias")}}
_FWP_DELTA = {**{f"core.{name}": name for name in (*_BLOCK, "beta.weight")}, "unmap.weight": "out.weight", "unmap.bias": "out.bias"}
_MLSTM_LINEAR = {"q": "query", "k": "key", "v": "value", "o": "gate"}                       # weights are (in, out), biases (1, out) there
_MLSTM_GATES = {"i": "input_gate", "f": "forget_gate"}
_RNN = {name: f"rnn.{name}" for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")}

_GPT2: dict[str, str | View] = {
    **{f"{theirs}.{kind}": f"{ours}.{kind}" for kind in ("weight", "bias") for theirs, ours in _GPT2_SAME.items()},
    **{f"transformer.h.*.{theirs}.bias": f"blocks.*.{ours}.bias" for theirs, ours in _GPT2_LINEAR.items()},
    **{f"transformer.h.*.{theirs}.weight": View(f"blocks.*.{ours}.weight", Tensor.t) for theirs, ours in _GPT2_LINEAR.items()},
}

_MLSTM: dict[str, str | View] = {
    **{f"core.W{theirs}": View(f"{ours}.weight", Tensor.t) for theirs, ours in _MLSTM_LINEAR.items()},
    **{f"core.b{theirs}": View(f"{ours}.bias", lambda b: b[None]) for theirs, ours in _MLSTM_LINEAR.items()},
    **{f"core.w{theirs}": View(f"{ours}.weight", Tensor.t) for theirs, ours in _MLSTM_GATES.items()},
    **{f"core.b{theirs}": f"{ours}.bias" for theirs, ours in _MLSTM_GATES.items()},
    "out.weight": "out.weight", "out.bias": "out.bias",
}

_FFM: dict[str, str | View] = {
    "pre.weight": "pre.weight", "pre.bias": "pre.bias", "mix.weight": "mix.weight", "mix.bias": "mix.bias",
    "ffa.a": View("log_decay", lambda a: a[None, None]), "ffa.b": View("frequency", lambda b: b[None, None]),
}
_MAMBA = {
    "A_log": "A_log", "D": "skip", "conv1d.weight": "conv.weight", "conv1d.bias": "conv.bias",
    "dt_proj.weight": "delta.weight", "dt_proj.bias": "delta.bias",
    **{f"{name}.weight": f"{name}.weight" for name in ("in_proj", "x_proj", "out_proj")},
}
_S6_SHM = {**{f"core.{theirs}": ours for theirs, ours in _MAMBA.items()}, "out.weight": "out.weight", "out.bias": "out.bias"}
_S6_STATE = {"conv": "window", "ssm": "S"}

MODELS: dict[str, Published] = {
    "shm_pomdp": Published(SHM, _shm(SHM.paper, clip=100.0), _SHM, {"M": "M"}, "shm"),            # random rows, within ±100
    "shm_popgym": Published(SHM, _shm(SHM.release), _SHM, {"M": "M"}, "shm"),                     # row 0 only
    "shm_root": Published(SHM, _shm(SHM.release, shortcut=False), _SHM_ROOT, {"M": "M"}, "shm"),  # row 0 only, no shortcut
    "linear_attention": Published(LinearAttention, _block(LinearAttention), _BLOCK_MLP, {"S": "M", "Z": "Z"}, "additive",
                                  lambda given: {"M": given["S"].mT, "Z": given["Z"]},               # rows are keys there
                                  lambda state: {"S": state.M.mT, "Z": state.Z}),
    "fwp_delta": Published(FWP, _block(FWP, "core.", "unmap"), _FWP_DELTA, {"M": "M"}, "delta"),          # of pomdp-baselines
    "fwp_sum": Published(FWP, _block(FWP, variant="additive"), _BLOCK_MLP, {"M": "M"}, "additive"),       # POPGym's
    "mlstm": Published(MLSTM, _mlstm, _MLSTM, {"C": "C", "n": "n"}, "additive", _enter_mlstm, _leave_mlstm),
    "ffm": Published(FFM, _ffm, _FFM, {"S": "S"}, "diagonal"),
    "mamba": Published(S6, _s6(), _MAMBA, _S6_STATE, "selective"),                             # upstream's block
    "s6_shm_repo": Published(S6, _s6("core."), _S6_SHM, _S6_STATE, "selective"),               # SHM's: a linear layer after it
    "gpt2": Published(GPT2, _gpt2, _GPT2, {}),                                                # no state: whole episodes
    "gru": Published(GRU, _rnn(GRU), _RNN, {"h": "h"}),                                       # torch.nn.GRU
    "lstm": Published(LSTM, _rnn(LSTM), _RNN, {"h": "h", "c": "c"}),                           # torch.nn.LSTM
}


_MAMBA_SIZES = ("d_model", "d_state", "d_inner", "d_conv", "dt_rank", "O")
HPARAMS = {      # what `load` takes in addition to the weights; all but n_head and max_seq_length can be read off them
    "gpt2": ("hidden", "n_layer", "n_head", "max_seq_length", "max_history_length", "position", "O"),
    "ffm": ("m", "c", "O", "min_period", "max_period"), "mamba": _MAMBA_SIZES, "s6_shm_repo": _MAMBA_SIZES,
}


def load(model: str, weights: Mapping[str, Array], hparams: Mapping[str, Any] | None = None) -> Memory:
    """Our memory with the weights of a published one, in their dtype.

    `model` is a name of `MODELS`; `weights` maps the reference's parameter names (a leading "w." is dropped) to arrays
    or tensors, e.g. its state_dict; `hparams` holds its sizes by the reference's names (H, O, L; see `HPARAMS`), read off the weights
    where not given. For gpt2 the weights do not show n_head and max_seq_length: 4 and 5000 unless given.
    """
    published = MODELS.get(model)
    if published is None:
        raise ValueError(f"unknown published model {model!r}; choose from {', '.join(MODELS)}")
    known = HPARAMS.get(model, ("H", "O", "L"))
    unknown = [name for name in hparams or {} if name not in known]
    if unknown:
        raise ValueError(f"hparams of {model} has the unknown entry {unknown[0]!r}; it takes {', '.join(known)}")
    given = {name: _tensor(f"weights[{name!r}]", x) for name, x in _strip(weights, "w.").items()}
    parameters = _layers(published.parameters, given)
    _check_names("weights", model, given, parameters)
    for name, x in given.items():
        if not x.is_floating_point():
            raise ValueError(f"weights[{name!r}] must have a floating dtype, got {x.dtype}")
    shapes = {name: tuple(x.shape) for name, x in given.items()}
    try:
        memory = published.build(shapes, hparams or {})
    except (IndexError, ValueError, TypeError) as error:
        raise ValueError(f"weights of {model} have shapes that no {model} has ({error}): {shapes}") from error
    ours = {name: _view(memory, where) for name, where in parameters.items()}
    wrong = [f"{name} must have shape {list(ours[name].shape)}, got {list(shape)}"
             for name, shape in shapes.items() if shape != tuple(ours[name].shape)]
    if wrong:
        raise ValueError(f"weights of {model} with hparams {dict(hparams or {})} do not fit: {'; '.join(wrong)}")
    dtype, device = next(iter(given.values())).dtype, next(iter(given.values())).device
    for x in given.values():
        dtype = torch.promote_types(dtype, x.dtype)
    memory = memory.to(device=device, dtype=dtype)
    with torch.no_grad():
        for name, where in parameters.items():
            _view(memory, where).copy_(given[name])
    return memory


def state(memory: Memory, arrays: Mapping[str, Array], generator: torch.Generator | None = None) -> State:
    """A state of `memory` from the reference's arrays (a leading "state0." is dropped).

    Differentiable where those are tensors. What the published code does not carry (the clock that SHM draws its rows
    from) gets a new value, drawn with `generator`.
    """
    published = _describe(memory)
    given = {name: _tensor(f"arrays[{name!r}]", x) for name, x in _strip(arrays, "state0.").items()}
    _check_names("arrays", type(memory).__name__, given, published.state)
    batch = {name: x.shape[0] if x.ndim else None for name, x in given.items()}
    if len(set(batch.values())) != 1 or None in batch.values():
        raise ValueError(f"arrays must share their first axis, the batch; got sizes {batch}")
    fresh = memory.initial_state(next(x.shape[0] for x in given.values()), generator=generator)
    fields = fresh._asdict()
    theirs = {ours: name for name, ours in published.state.items()}
    entered = {published.state[name]: x for name, x in given.items()} if published.enter is None else published.enter(given)
    for name, x in entered.items():
        like = fields[name]
        if x.shape != like.shape:
            raise ValueError(f"arrays[{theirs.get(name, name)!r}] must have shape {list(like.shape)}, got {list(x.shape)}")
        fields[name] = x.to(device=like.device, dtype=like.dtype)
    return type(fresh)(**fields)


def arrays(memory: Memory, state: State) -> dict[str, np.ndarray]:
    """The state under the reference's names, as numpy arrays."""
    published = _describe(memory)
    named = {name: getattr(state, ours) for name, ours in published.state.items()} if published.leave is None else published.leave(state)
    return {name: _numpy(x) for name, x in named.items()}


def gradients(memory: Memory) -> dict[str, np.ndarray]:
    """The gradients of all parameters under the reference's names (zeros where backward() did not reach one)."""
    if all(p.grad is None for p in memory.parameters()):
        raise ValueError("memory has no gradients; call backward() on a loss of its output first")
    parameters = _layers(_describe(memory).parameters, [name for name, _ in memory.named_parameters()])
    return {name: _numpy(_view(memory, where, gradient=True)) for name, where in parameters.items()}


def _describe(memory: Memory) -> Published:
    """The published model whose kind and parameters this memory has. (Those that share both share their names too.)"""
    parameters = {name for name, _ in memory.named_parameters()}
    for published in MODELS.values():
        named = _layers(published.parameters, parameters)
        if isinstance(memory, published.kind) and {_name(where) for where in named.values()} == parameters:
            return published
    has = ", ".join(sorted(parameters)) or "(none)"
    raise ValueError(f"memory {type(memory).__name__} with parameters {has} is none of the published models "
                     f"{', '.join(MODELS)}; build it with hadamem.reference.load")


def _strip(given: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The entries under `prefix`, without it; all of them if none has it."""
    if not isinstance(given, Mapping):
        raise TypeError(f"weights and states must be a mapping of names to arrays, got {type(given).__name__}")
    prefixed = {name.removeprefix(prefix): given[name] for name in given if name.startswith(prefix)}
    return prefixed or dict(given)


def _check_names(argument: str, model: str, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    missing = sorted(set(wanted) - set(given))
    extra = sorted(set(given) - set(wanted))
    if missing or extra:
        parts = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"not known: {', '.join(extra)}"] * bool(extra)
        raise ValueError(f"{argument} do not match {model}; {'; '.join(parts)}")


def _tensor(name: str, x: Array) -> Tensor:
    if isinstance(x, Tensor):
        return x
    try:
        return torch.as_tensor(np.array(x))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a numpy array or a tensor, got {type(x).__name__}") from error


def _numpy(x: Tensor) -> np.ndarray:
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy().copy()


def _layers(parameters: Mapping[str, str | View], names: Iterable[str]) -> dict[str, str | View]:
    """`parameters` with every name that has a `*` repeated for the layers that `names` count."""
    found = {int(part) for name in names for part in name.split(".") if part.isdecimal()}
    named: dict[str, str | View] = {}
    for theirs, ours in parameters.items():
        for n in sorted(found) or [0] if "*" in theirs else [0]:
            numbered = _name(ours).replace("*", str(n))
            named[theirs.replace("*", str(n))] = numbered if isinstance(ours, str) else ours._replace(name=numbered)
    return named


def _name(where: str | View) -> str:
    return where if isinstance(where, str) else where.name


def _view(memory: Memory, where: str | View, gradient: bool = False) -> Tensor:
    """A parameter of ours, or its gradient, as the reference lays it out."""
    x: Tensor = memory.get_parameter(_name(where))
    if gradient:
        x = torch.zeros_like(x) if x.grad is None else x.grad
    return x if isinstance(where, str) else where.of(x)
