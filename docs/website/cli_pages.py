"""The command line reference: a page per command, with every option, from the parsers of `hadamem.cli`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

GROUPS = {"positional arguments": "Arguments", "options": "Options"}      # argparse's own titles, in ours
ABOUT = ("Every command has `--help`, and `--debug`, which shows the traceback of an error. Exit codes: 0 success; 1 the command failed, "
         "or a check found failures; 2 bad input; 130 interrupted.")


def make() -> dict[str, str]:
    """The pages, by their names."""
    from hadamem.cli import COMMANDS

    names = list(COMMANDS)
    rows = [f"| [hadamem {name}]({_slug(name)}.md) | {command.help} |" for name, command in COMMANDS.items()]
    index = ["# Command line", "", ABOUT, "", "| command | what it does |", "|---|---|", *rows, "",
             "```{toctree}", ":hidden:", "", *map(_slug, names), "```", ""]
    return {"cli/index.md": "\n".join(index), **{f"cli/{_slug(name)}.md": _page(name) for name in names}}


def find_parser(words: Iterable[str]) -> argparse.ArgumentParser:
    """The parser of a command, with its options: ["bench", "memory"], or ["train", "--agent", "sac"]."""
    from hadamem.cli import build_parser

    words = list(words)
    parser = build_parser(words)
    for word in words:
        inner = next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)
        if inner is None:
            break
        parser = inner.choices[word]
    return parser


def _page(name: str) -> str:
    parser = find_parser(name.split())
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    parts = [f"# hadamem {name}", parser.description or "", f"```text\n{_wrap(usage)}\n```", *_groups(parser, f"hadamem {name}")]
    if parser.epilog:
        parts.append(parser.epilog)
    if name == "train":
        parts += _other_agents()
    return "\n\n".join(part for part in parts if part) + "\n"


def _other_agents() -> list[str]:
    """The options of `hadamem train` that differ with the agent."""
    from hadamem.agents import AGENTS, DEFAULT_AGENT

    parts = []
    for agent in AGENTS:
        if agent != DEFAULT_AGENT:
            words = ["train", "--agent", agent]
            groups = _groups(find_parser(words), f"hadamem {' '.join(words)}", level=3, only=("network", "algorithm"))
            parts += [f"## With --agent {agent}", *groups]
    return parts


def _groups(parser: argparse.ArgumentParser, program: str, level: int = 2, only: tuple[str, ...] = ()) -> list[str]:
    parts = [f"```{{program}} {program}\n```"]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS and action.dest != "help"]
        title = group.title or ""
        if actions and (not only or any(word in title for word in only)):
            head, _, note = GROUPS.get(title, title[:1].upper() + title[1:]).partition(" [")
            parts += [f"{'#' * level} {head}", f"In brackets: the value {note.removesuffix(']')}." if note else "", group.description or ""]
            parts += [_option(parser, action) for action in actions]
    return parts


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    help = formatter._expand_help(action) if action.help else ""
    if not action.option_strings:
        return f"`{formatter._format_action_invocation(action)}`\n: {help or 'what to do'}"
    return f"```{{option}} {formatter._format_action_invocation(action)}\n{_escape(help)}\n```"


def _escape(text: str) -> str:
    """Help texts are plain: stars and angle brackets in them mean nothing."""
    return text.replace("*", "\\*").replace("<", "\\<")


def _wrap(usage: str, width: int = 90) -> str:
    """The usage in lines of limited length, broken between options."""
    lines, line = [], ""
    for part in usage.replace("] [", "]\n[").split("\n"):
        if line and len(line) + 1 + len(part) > width:
            lines.append(line)
            line = "    " + part
        else:
            line = f"{line} {part}".strip() if not line.startswith("    ") else f"{line} {part}"
    return "\n".join([*lines, line])


def _slug(name: str) -> str:
    return name.replace(" ", "-")
