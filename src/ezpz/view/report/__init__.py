"""Write ``report.html``: a run as one page that needs no network, and reads without scripts."""

from __future__ import annotations

from ezpz.view.report.page import build_page, write_report

__all__ = ["build_page", "write_report"]
