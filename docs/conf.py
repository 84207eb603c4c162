"""Settings of the documentation site; `make docs` builds it without a network (Sphinx, MyST, Furo)."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference  # noqa: E402  # beside this file

project = "ezpz"
author = "The ezpz authors"
extensions = ["myst_parser"]
exclude_patterns = ["_static"]
html_theme = "furo"
html_title = "ezpz"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # blocks marked `text` hold terminals
smartquotes = False


def to_examples(_app, _page, text):
    """Lead links to the folder of examples, which is outside of the site, to the copy of its page."""
    text[0] = text[0].replace("](../examples/README.md", "](reference/examples.md")
    text[0] = text[0].replace("](../examples/train_configs)", "](reference/examples.md)")


def setup(app):
    """Write the pages that are made from the parsers and docstrings, and check the words of all others."""
    app.connect("builder-inited", lambda _: reference.write(HERE / "reference"))
    app.connect("source-read", to_examples)
    app.connect("env-updated", lambda *_: reference.refuse_unknown_words(HERE))
