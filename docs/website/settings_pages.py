"""The reference of settings: every table of `hadamem.runs.settings`, the presets, and the names that other libraries use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = {int: "int", float: "float", bool: "bool", str: "text", tuple: "list", dict: "mapping"}

ABOUT = ("Every setting of a run, by section: in `config.yaml`, as keywords of `hm.train` and `make_config`, and as options of "
         "[hadamem train](cli/train.md): `num_envs` is `--num-envs`. Defaults are those of the preset `default`, with the memory `shm`. "
         "[Training](training.md#settings) explains how they are given.")


def make() -> dict[str, str]:
    """The pages, by their names."""
    return {"settings.md": _settings(), "presets.md": _presets()}


def _settings() -> str:
    from hadamem.agents import AGENTS, DEFAULT_AGENT, section_of
    from hadamem.cli.train import COMMON
    from hadamem.runs.config import make_config, settings_table, to_flat
    from hadamem.runs.settings import ALIASES, ELSEWHERE

    def rows(agent: str, section: str) -> list[str]:
        table, defaults = settings_table(agent), to_flat(make_config(agent=agent))
        lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
        for name, setting in table.settings.items():
            if setting.section == section:
                kind = KINDS[setting.kind] + (" or None" if setting.optional else "")
                lines.append(f"| `{setting.field}` | {kind} | {_value(defaults[name])} | {_cell(setting.help or COMMON.get(name, ''))} |")
        return lines

    lines = ["# Settings", "", ABOUT, "", "## The run", "", *rows(DEFAULT_AGENT, ""), "", "## network", "", *rows(DEFAULT_AGENT, "network")]
    seen = {DEFAULT_AGENT: settings_table(DEFAULT_AGENT).sections}
    for agent in AGENTS:
        section = section_of(agent)
        same = next((other for other, sections in seen.items() if other != agent and sections == settings_table(agent).sections), None)
        if same is not None:
            lines += ["", f"`{agent}` has the settings of `{same}`, in the section `{section}`."]
            continue
        seen[agent] = settings_table(agent).sections
        lines += ["", f"## {section}", "", f"The agent `{agent}`.", "", *rows(agent, section)]
        if settings_table(agent).sections["network"] is not settings_table(DEFAULT_AGENT).sections["network"]:
            lines += ["", f"### network of {agent}", "", *rows(agent, "network")]
    ours: dict[str, list[str]] = {}
    for other, name in ELSEWHERE.items():
        ours.setdefault(name, []).append(f"`{other}`")
    short = ", ".join(f"`{a}` for `{b}`" for a, b in ALIASES.items())
    lines += ["", "## Names in other libraries", "", f"Short forms: {short}. The other names below are refused, with ours as a hint.", "",
              "| here | elsewhere |", "|---|---|",
              *(f"| `{name}` | {', '.join(others)} |" for name, others in ours.items()), ""]
    return "\n".join(lines)


def _presets() -> str:
    from hadamem.runs.presets import PRESETS

    lines = ["# Presets", "", "`--preset NAME` or `preset=\"NAME\"` starts from these values; what is not listed has the default of "
             "[Settings](settings.md). `hadamem list presets` is the short list. Some memories have sizes of their own in a preset: the "
             "`config.yaml` of a run spells out all values."]
    for name, preset in PRESETS.items():
        lines += ["", f"## {name}", "", f"Agent `{preset.agent}`.", "", *_changes(preset.settings)]
        for section, inner in preset.agents.items():
            lines += ["", f"With the agent of section `{section}`:", "", *_changes(inner.settings)]
    return "\n".join([*lines, ""])


def _changes(settings: Mapping[str, Any]) -> list[str]:
    return ["| setting | value |", "|---|---|", *(f"| `{key}` | {_value(value)} |" for key, value in settings.items())] if settings else []


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"`{key}: {inner}`" for key, inner in value.items()) or "none"
    if isinstance(value, (tuple, list)):
        return f"`{', '.join(map(str, value))}`" if value else "none"
    return f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
