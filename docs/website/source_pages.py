"""A Sphinx extension: repairs viewcode's pages of source code where a module is documented under more than one name.

`hm.SHM` is `hadamem.memory.shm.SHM`, so a "[docs]" link back to the reference may name an anchor that does not exist. Such links are left
out.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx


def drop_unreadable(app: Sphinx) -> list[Any]:
    """Forget modules without source, such as builtins: they get no page, but viewcode would list them."""
    modules = getattr(app.env, "_viewcode_modules", {})
    for name in [name for name, entry in modules.items() if not entry]:
        del modules[name]
    return []


def drop_broken(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if not page.startswith("_modules/"):
        return
    objects = app.env.domains.python_domain.objects
    known = {(app.builder.get_relative_uri(page, entry.docname), name) for name, entry in objects.items() if entry.objtype != "module"}
    context["body"] = re.sub(r'<a class="viewcode-back" href="([^"#]*)#([^"]+)">[^<]*</a>',
                             lambda link: link[0] if (link[1], link[2]) in known else "", context.get("body", ""))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-collect-pages", drop_unreadable, priority=100)
    app.connect("html-page-context", drop_broken)
    return {"version": "1", "parallel_read_safe": True}
