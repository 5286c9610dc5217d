"""Sphinx configuration of the documentation site; `tools/site/build.py` prepares the pages that it reads."""

from chronograd.figure import PALETTE

project = "Chronograd"
author = "The Chronograd authors"
copyright = "The Chronograd authors, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4  # links such as planning.md#prices work on GitHub and here
suppress_warnings = ["myst.header"]  # a page made of parts may start at the second level

smartquotes = False  # --option stays --option
maximum_signature_line_length = 78
default_role = "code"  # docstrings are Markdown: one backtick means code
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
napoleon_use_ivar = True

html_theme = "furo"
html_title = "Chronograd"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path: list[str] = []  # build.py names the folder of the study reports
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": PALETTE["accent"][0],
        "color-brand-content": PALETTE["accent"][0],
    },
    "dark_css_variables": {
        "color-brand-primary": PALETTE["accent"][1],
        "color-brand-content": PALETTE["accent"][1],
    },
}
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
linkcheck_timeout = 20
linkcheck_workers = 4
