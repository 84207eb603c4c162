"""Settings of the documentation site; `make docs` builds it without a network (Sphinx, MyST, Furo)."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

# Both lie beside this file.
import check_pages  # noqa: E402
import reference  # noqa: E402
from sphinx.errors import ConfigError  # noqa: E402
from sphinx.ext.autodoc.mock import mock  # noqa: E402

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


def before_the_build(_app):
    """Write the pages that are made from the parsers and docstrings, and end the build where a page is wrong.

    No torch is needed: the parsers and signatures of what imports it are read beside a stand-in.

    Raises:
        ConfigError: A page names what does not exist.
    """
    with mock(["torch"]):
        reference.write(HERE / "reference")
        found = check_pages.unknown_words(check_pages.pages_of(HERE.parent), HERE.parent)
    if found:
        raise ConfigError("pages type what does not exist:\n" + "\n".join(found))


def setup(app):
    """Connect what happens before and while pages are read."""
    app.connect("builder-inited", before_the_build)
    app.connect("source-read", to_examples)
