"""Parts of the machine that tests need: a missing one skips, unless ``EZPZ_REQUIRE`` says it must be there."""

from __future__ import annotations

import os

import pytest

PARTS = (
    "hosts",
    "slurm",
    "openpbs",
    "slurm_by_groups",
    "mpich",
    "openmpi",
    "openmpi4",
    "impi",
    "zsh",
    "browser",
    "compiler",
    "trackers",
    "hugging_face",
    "distribution",
    "distributions",
    "pythons",
    "docs",
    "uv",
)


def required(environ=os.environ):
    """The parts that ``EZPZ_REQUIRE`` (a comma list) names; an unknown name is an error, not a part nobody checks."""
    names = {name.strip() for name in environ.get("EZPZ_REQUIRE", "").split(",")} - {""}
    unknown = sorted(names - set(PARTS))
    if unknown:
        raise pytest.UsageError(f"EZPZ_REQUIRE names {', '.join(unknown)}; known parts: {', '.join(PARTS)}")
    return names


def require(part, problem=None):
    """Go on when `problem` is empty; else skip the test, or fail it when ``EZPZ_REQUIRE`` names `part`."""
    if part not in PARTS:
        raise ValueError(f"{part!r} is not one of {PARTS}")
    if not problem:
        return
    if part in required():
        pytest.fail(f"{part} is required (EZPZ_REQUIRE) but missing: {problem}", pytrace=False)
    pytest.skip(f"{part} is missing: {problem}")
