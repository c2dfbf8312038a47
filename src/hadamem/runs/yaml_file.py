"""Read and write YAML files with settings. Files may come from strangers: their size is limited, also with all aliases written out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..files import check_path, clip_text
from ..lookup import FileName, from_file

MOST_BYTES = 1 << 20          # of a file
MOST_NODES = 50_000           # of its content, aliases counted as often as they are used


def read_yaml(path: Path, written: bool = False) -> Any:
    """The content of a file; a ValueError says why it cannot be read. written: by the user, so its names may be imported."""
    import yaml

    check_path(path)
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ValueError(f"{path} has {size:,} bytes; a file with settings may have {MOST_BYTES:,}")
        loader = _loader()(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if _count(node, {}) > MOST_NODES:
            raise ValueError(f"{path} has more than {MOST_NODES:,} values when its aliases are written out; it may be meant to fill memory")
        values = None if node is None else _construct(loader, node, path)
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply to be a file with settings") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {clip_text(error)}") from error
    return values if written else from_file(values, path)


def _construct(loader: Any, node: Any, path: Path) -> Any:
    """The values of a document; YAML leaves it to Python to find that a number or a date is none."""
    try:
        return loader.construct_document(node)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:      # "!!int ''", "!!bool x", "!!timestamp x"
        raise ValueError(f"{path} has a value that is not what it looks like: {clip_text(error, 200)}; put it in quotes") from error


def dump_yaml(values: Any) -> str:
    """Plain values as YAML; a yaml.YAMLError if they are not plain."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(FileName, yaml.SafeDumper.represent_str)
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def _count(node: Any, known: dict[int, int]) -> int:
    """The number of nodes below a node, itself included, if every alias were a copy; a RecursionError if it holds itself."""
    if node is None:
        return 0
    if id(node) in known:
        if not known[id(node)]:
            raise RecursionError
        return known[id(node)]
    known[id(node)] = 0      # being counted
    parts = [part for pair in node.value for part in pair] if node.id == "mapping" else node.value if node.id == "sequence" else []
    known[id(node)] = 1 + sum(_count(part, known) for part in parts)
    return known[id(node)]


def _loader() -> Any:
    """YAML 1.1 reads 1e-3 as text because it lacks a dot; here it is a number."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789"))
    return Loader
