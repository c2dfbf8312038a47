"""Settings of dataclasses by dotted name: one table of names, types, defaults and help texts, and one type check.

Python keywords, YAML files, the command line and the check on resume all use it. `ppo.gamma` may be written `gamma` wherever no other
section has a setting of that name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from ..lookup import FileName, from_file
from ..names import close_names, shorten
from ..ranges import check_float, check_int

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text", dict: "a mapping", tuple: "a list"}
ALIASES = {"steps": "total_steps", "lr": "learning_rate"}      # short forms of what everyone sets

# Names in other libraries: refused, with ours as a hint.
ELSEWHERE = {name: ours for ours, names in {
    "agent": ("algo", "algorithm"), "env": ("env_id", "env_name", "task"), "seed": ("random_seed",), "workers": ("num_workers",),
    "total_steps": ("total_timesteps", "timesteps", "num_timesteps", "max_steps"), "num_envs": ("n_envs", "nenvs"),
    "num_steps": ("n_steps", "rollout", "rollout_length", "unroll_length", "horizon"),
    "steps_per_iteration": ("batch", "train_batch_size", "n_batch"),
    "memory_size": ("hidden_size", "hidden_dim", "rnn_hidden_dim", "lstm_hidden_size"),
    "lr_schedule": ("anneal_lr",), "gamma": ("discount",), "gae_lambda": ("lambda_", "lam", "gae_lam"),
    "num_epochs": ("n_epochs", "update_epochs", "epochs", "num_sgd_iter"),
    "num_minibatches": ("n_minibatches", "minibatches", "batch_size"), "clip_range": ("clip_coef", "clip_param", "clip_eps"),
    "kl_coef": ("kl_coeff",), "target_kl": ("kl_target",), "vf_coef": ("value_coef", "vf_loss_coeff", "value_loss_coef"),
    "vf_loss_clip": ("vf_clip_param",), "ent_coef": ("entropy_coeff", "entropy_coef", "entropy_coefficient"),
    "max_grad_norm": ("grad_clip", "grad_norm", "max_norm"), "replay_size": ("buffer_size", "replay_buffer_size", "memory_capacity"),
    "updates_per_step": ("gradient_steps", "train_freq", "utd", "utd_ratio", "num_updates_per_iter"), "tau": ("polyak", "target_tau"),
    "hidden_sizes": ("net_arch", "hidden_dims", "hidden_layers"), "learning_starts": ("warmup_steps", "start_steps", "random_steps"),
    "eval_every": ("eval_freq", "eval_interval", "evaluation_interval"),
    "eval_episodes": ("n_eval_episodes", "num_eval_episodes", "evaluation_duration"),
}.items() for name in names}


class Setting(NamedTuple):
    """A field of a settings dataclass."""

    name: str          # dotted: "ppo.gamma"
    kind: type         # int, float, bool, str, tuple or dict
    optional: bool     # may be None
    default: Any
    help: str          # the comment beside the field
    item: type = str   # of a tuple

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def field(self) -> str:
        return self.name.rpartition(".")[2]

    def check(self, value: Any) -> Any:
        """The value in the type of the setting; a ValueError says what it must be."""
        kind = self.kind
        if value is None and self.optional:
            return None
        if isinstance(value, bool) and kind is not bool:
            pass
        elif kind is float and isinstance(value, Real):
            return check_float(self.name, value)
        elif kind is int and (isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())):
            return check_int(self.name, value)
        elif kind is tuple and isinstance(value, (tuple, list, str)):
            values = (value,) if isinstance(value, str) else tuple(value)
            with contextlib.suppress(ValueError, TypeError, OverflowError):      # the last: of inf
                items = tuple(self.item(x) for x in values)
                if self.item is str or all(isinstance(x, str) or x == item for x, item in zip(values, items, strict=True)):
                    return items
        elif kind is dict and isinstance(value, Mapping):
            return dict(value)
        elif kind in (bool, str) and isinstance(value, kind):
            return value
        words = "whole numbers such as 256,256" if kind is tuple and self.item is int else WORDS[kind]
        raise ValueError(f"{self.name} must be {words}{' or None' if self.optional else ''}, got {shorten(value)}")

    def parse(self, text: str) -> Any:
        """A value from the command line or from text in a file."""
        if self.optional and text.lower() in ("none", "null"):
            return None
        return self.check(_convert(text, self.kind))

    def read(self, value: Any) -> Any:
        """A value from a YAML file, where a number may stand as text."""
        if not isinstance(value, str) or self.kind is str:
            return self.check(value)
        parsed = self.parse(value)
        return from_file(parsed, value.file) if isinstance(value, FileName) else parsed      # names within it still come from a file


class Table:
    """All settings of some dataclasses. sections: {"": the outer one, "network": NetworkConfig, ...}."""

    def __init__(self, sections: Mapping[str, type[Any]]):
        self.sections = dict(sections)
        self.settings: dict[str, Setting] = {}
        for section, kind in sections.items():
            for found in _fields(kind, f"{section}." if section else ""):
                if found.name not in sections:                 # a field that holds a section
                    self.settings[found.name] = found
        bare: dict[str, list[str]] = {}
        for name in self.settings:
            bare.setdefault(name.rpartition(".")[2], []).append(name)
        self.bare = {field: names[0] for field, names in bare.items() if len(names) == 1 or field in self.settings}
        self.bare |= {field: field for field in self.settings if "." not in field}

    def find(self, name: str) -> Setting:
        """The setting of a dotted name, of a bare one if it is unique, or of an alias; a ValueError says what is close."""
        plain = str(name).replace("-", "_")
        full = self.bare.get(ALIASES.get(plain, plain), plain)
        if full in self.settings:
            return self.settings[full]
        raise ValueError(f"unknown setting {shorten(name)};{self._hint(plain)}")

    def _hint(self, name: str) -> str:
        field = name.rpartition(".")[2]
        same = [full for full in self.settings if full.rpartition(".")[2] == field]
        if same:
            return f" did you mean {' or '.join(map(repr, same))}?"
        if field in ELSEWHERE and ELSEWHERE[field] in self.bare:
            return f" did you mean {ELSEWHERE[field]!r}?"
        near = close_names(name, self.settings) or close_names(field, [*self.bare, *ALIASES])
        return f" did you mean {near[0]!r}?" if near else f" choose from {', '.join(self.settings)}"

    def flatten(self, values: Mapping[str, Any], read: bool = False) -> dict[str, Any]:
        """Nested or dotted values by full dotted name, checked. read: from a file, where numbers may be text."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            key = str(name).replace("-", "_").replace("__", ".")
            if key in self.sections and key:
                if value is None:                              # an empty section of a YAML file
                    continue
                if not isinstance(value, Mapping):
                    raise ValueError(f"{key} is a section with settings such as {self._example(key)}, got {value!r}")
                given = self.flatten({f"{key}.{field}": x for field, x in value.items()}, read)
            else:
                setting = self.find(key)
                if value is None and setting.kind is dict:
                    continue
                given = {setting.name: setting.read(value) if read else setting.check(value)}
            for twice in found.keys() & given.keys():
                raise ValueError(f"{twice} is given twice, under two names: {found[twice]!r} and {given[twice]!r}; give it once")
            found |= given
        return found

    def _example(self, section: str) -> str:
        return next(name for name in self.settings if name.startswith(f"{section}."))

    def nest(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Dotted values as the keyword arguments of each dataclass: {"": {...}, "network": {...}}."""
        out: dict[str, dict[str, Any]] = {section: {} for section in self.sections}
        for name, value in values.items():
            setting = self.settings[name]
            out[setting.section][setting.field] = value
        return out


def parse_value(text: str) -> Any:
    """A value of unknown type: JSON, or else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _convert(text: str, kind: type) -> Any:
    """Text as a value of a kind; the text itself if it does not fit, for `check` to refuse."""
    if kind is bool:
        return True if text.lower() in TRUE else False if text.lower() in FALSE else text
    if kind is dict:
        return parse_value(text)
    if kind is tuple:
        return tuple(word for word in re.split(r"[,\s]+", text) if word and word.lower() != "none")
    if kind in (int, float):
        try:
            return int(text) if kind is int and not re.search(r"[.eE]", text) else float(text)
        except ValueError:
            return text
    return text


def _fields(kind: Any, path: str) -> list[Setting]:
    hints, comments, found = typing.get_type_hints(kind), _comments(kind), []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        union = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        kinds = [typing.get_origin(h) or h for h in union if h is not type(None)]
        if not dataclasses.is_dataclass(hint) and hint is not Any and (len(kinds) != 1 or kinds[0] not in WORDS):
            raise TypeError(f"{kind.__name__}.{field.name} is {hint}; settings may be int, float, bool, str, dict, tuple, or None as well")
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        items = next((typing.get_args(h) for h in union if typing.get_origin(h) is tuple), ()) or (str,)
        found.append(Setting(path + field.name, kinds[0], type(None) in union, default, comments.get(field.name, ""), items[0]))
    return found


def _comments(kind: Any) -> dict[str, str]:
    """The comments beside the fields of a class: their help texts. Empty if the source is not available."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return {}
    return {name: words.strip() for name, words in re.findall(r"^    (\w+): [^#\n]*#(.*)$", source, flags=re.MULTILINE)}
