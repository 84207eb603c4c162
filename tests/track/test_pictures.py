from __future__ import annotations

import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from test_series import series
from test_textplot import SHAPES

from ezpz.track.pictures import save_pictures

STAMP = "2026-11-20-162001"


@pytest.fixture
def draw(tmp_path):
    def draw(item):
        save_pictures(tmp_path / "x.png", tmp_path / "x.svg", item, STAMP)
        return (tmp_path / "x.png").read_bytes(), (tmp_path / "x.svg").read_bytes()

    return draw


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name", ["curve", "outlier", "infinite", "constant", "one", "empty", "all nan", "huge", "all captions"]
)
def test_every_series_becomes_a_png_and_an_svg(draw, name):
    png, svg = draw(series(SHAPES[name]))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")) == (900, 600)
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_curve_is_really_drawn(draw):
    from matplotlib.image import imread

    def coloured(item):
        png, _ = draw(item)
        pixels = imread(io.BytesIO(png))[..., :3]
        return int((pixels.max(axis=2) - pixels.min(axis=2) > 0.2).sum())

    assert coloured(series([])) == 0
    assert coloured(series([1.0])) > 5
    assert coloured(series(np.arange(100.0))) > 500


def test_the_same_data_makes_the_same_files_whatever_the_user_has_configured(draw):
    import matplotlib as mpl

    before = draw(series(SHAPES["curve"]))
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30, "svg.hashsalt": None}):
        assert draw(series(SHAPES["curve"])) == before


def test_nothing_of_matplotlib_is_changed_for_the_user(draw):
    import matplotlib as mpl

    with mpl.rc_context({"axes.facecolor": "red"}):
        before = dict(mpl.rcParams)
        draw(series([1.0, 2.0]))
        assert dict(mpl.rcParams) == before


def test_pictures_of_a_million_points_stay_small(draw):
    png, svg = draw(series(np.random.default_rng(0).standard_normal(1_000_000)))
    assert len(svg) < 200_000
    assert len(png) < 400_000


def test_a_name_with_dollars_is_text_and_no_formula(draw):
    draw(series([1.0])._replace(name="cost/$_{$"))
