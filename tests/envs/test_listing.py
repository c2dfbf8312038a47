"""The table of tasks in docs/environments.md agrees with the code."""

import re
from pathlib import Path

from hadamem import envs
from hadamem.envs.listing import rows

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def merged(cells):
    """One cell for three levels: "Discrete 52 / 104 / 52"."""
    if len(set(cells)) == 1:
        return cells[0]
    heads, tails = {c.split(" ")[0] for c in cells}, [c.partition(" ")[2] for c in cells]
    return f"{heads.pop()} {' / '.join(tails)}" if len(heads) == 1 and all(tails) else " / ".join(cells)


def table():
    """The lines of the table: a line for each task, or for the three levels of one."""
    families = {}
    for row in rows():
        level = re.fullmatch(r"(popgym/\w+?)(Easy|Medium|Hard)", row.name)
        families.setdefault(f"{level[1]}*" if level else row.name, []).append(row)
    lines = ["| name | observation | action | features | longest episode | task |", "|---|---|---|---|---|---|"]
    for name, levels in families.items():
        sizes = [str(envs.wrap(envs.make(row.name)).single_observation_space.shape[0]) for row in levels]
        cells = [merged([getattr(row, column) for row in levels]) for column in ("observation", "action")]
        cells += [merged(sizes), merged([row.steps for row in levels]), levels[0].text]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def test_the_page_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8").splitlines()
    missing = [line for line in table() if line not in page]
    assert missing == [], "put these lines into the table of docs/environments.md"
