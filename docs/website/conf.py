"""Sphinx settings of the site. `make docs` assembles its pages (stage.py), builds them and checks their links (check_links.py)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hadamem import __version__

project, author, release = "hadamem", "The hadamem authors", __version__
project_copyright = "The hadamem authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton", "website.markdown_docstrings",
              "website.source_pages"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4                               # as GitHub names them
copybutton_exclude = ".linenos, .gp, .go"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["sb3_contrib", "stable_baselines3", "torchrl", "tensordict", "ray.rllib"]      # need not be installed
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
viewcode_line_numbers = True

html_theme = "furo"
html_title = f"hadamem {release}"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["style.css"]
html_show_sourcelink = html_copy_source = html_show_sphinx = False
pygments_style, pygments_dark_style = "default", "github-dark"
html_theme_options = {"navigation_with_keys": True}
