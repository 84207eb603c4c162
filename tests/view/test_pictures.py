import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from test_textplot import SHAPES

from ezpz.track.series import Series, stretch_means
from ezpz.view.pictures import Pictures, save_heat_map, save_overlay
from lab.drawn_series import series

STAMP = "2026-11-20-162001"


@pytest.fixture
def draw(tmp_path):
    def draw(item):
        Pictures(STAMP).save(tmp_path / "x.png", tmp_path / "x.svg", item)
        return (tmp_path / "x.png").read_bytes(), (tmp_path / "x.svg").read_bytes()

    return draw


def size(png):
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


MORE = ["outlier", "infinite", "constant", "one", "empty", "huge", "widest", "all captions"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("names", [["curve", "all nan"], pytest.param(MORE, marks=pytest.mark.slow)], ids=str)
def test_every_series_becomes_a_png_and_an_svg(draw, subtests, names):
    for name in names:
        with subtests.test(name):
            png, svg = draw(series(SHAPES[name]))
            assert png[:8] == b"\x89PNG\r\n\x1a\n"
            assert size(png) == (900, 600)
            assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.slow
def test_the_curve_is_really_drawn(draw):
    from matplotlib.image import imread

    def coloured(item):
        png, _ = draw(item)
        pixels = imread(io.BytesIO(png))[..., :3]
        return int((pixels.max(axis=2) - pixels.min(axis=2) > 0.2).sum())

    assert coloured(series([])) == 0
    assert coloured(series([1.0])) > 5
    assert coloured(series(np.arange(100.0))) > 500


@pytest.mark.slow
def test_the_same_data_makes_the_same_files_whatever_the_user_has_configured(draw):
    import matplotlib as mpl

    before = draw(series(SHAPES["curve"]))
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30, "svg.hashsalt": None}):
        assert draw(series(SHAPES["curve"])) == before


@pytest.mark.slow
def test_nothing_of_matplotlib_is_changed_for_the_user(draw):
    import matplotlib as mpl

    with mpl.rc_context({"axes.facecolor": "red"}):
        before = dict(mpl.rcParams)
        draw(series([1.0, 2.0]))
        assert dict(mpl.rcParams) == before


@pytest.mark.slow
def test_pictures_of_a_million_points_stay_small(draw):
    png, svg = draw(series(np.random.default_rng(0).standard_normal(1_000_000)))
    assert len(svg) < 200_000
    assert len(png) < 400_000


@pytest.mark.slow
def test_a_name_with_dollars_is_text_and_no_formula(draw):
    draw(series([1.0])._replace(name="cost/$_{$"))


@pytest.mark.slow
def test_one_figure_draws_each_series_as_a_new_one_would(draw, tmp_path):
    """Nothing of the series before is left: neither its marks, its captions, nor its width."""
    import matplotlib.figure

    known = [series(SHAPES[name])._replace(name=f"{name}" * 9) for name in ("all captions", "one", "outlier", "curve")]
    alone = [draw(item) for item in known]
    made, init = [], matplotlib.figure.Figure.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matplotlib.figure.Figure, "__init__", lambda *a, **k: made.append(1) or init(*a, **k))
        pictures = Pictures(STAMP)
        for item, files in zip(known, alone, strict=True):
            pictures.save(tmp_path / "r.png", tmp_path / "r.svg", item)
            assert ((tmp_path / "r.png").read_bytes(), (tmp_path / "r.svg").read_bytes()) == files
    assert len(made) == 1


@pytest.fixture
def saved(monkeypatch):
    """The figures that were written to files."""
    from matplotlib.figure import Figure

    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: figures.append(self) or save(self, *a, **k))
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loss", "train/tokens_per_second_per_gpu", "layers/23/mlp/down_proj/weight" * 4])
def test_what_is_written_lies_inside_the_picture_and_not_over_each_other(tmp_path, saved, name):
    """Margins are known before, so long numbers and names must fit them."""
    pictures = Pictures(STAMP)
    wide = [1e-7, 0.0001234, -12345.678, 1e8 + 0.5, 1.5e6, 1e300]
    for item in (series([value, value * 1.001]) for value in wide):
        pictures.save(tmp_path / "x.png", tmp_path / "x.svg", item._replace(name=name))
        figure = saved[-1]
        (axes,) = figure.axes
        boxes = [text.get_window_extent() for text in (*axes.get_yticklabels(), *axes.get_xticklabels())]
        written = {text.get_text(): text for text in axes.findobj(lambda each: hasattr(each, "get_text"))}
        shown = axes.get_title(loc="left")
        assert shown.strip("…") in name  # what is cut is marked
        title, stamp = (written[text].get_window_extent() for text in (shown, STAMP))
        width, height = figure.get_size_inches() * figure.dpi
        assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 for box in boxes)
        assert title.x1 < stamp.x0
        assert stamp.x1 <= width
        assert title.y1 <= height


def overlay(tmp_path, lines, **how):
    lines = [item._replace(label=label) for label, item in lines]
    save_overlay(tmp_path / "o.png", tmp_path / "o.svg", lines, **{"title": "train/loss", "mark": None, **how})
    return (tmp_path / "o.png").read_bytes(), (tmp_path / "o.svg").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_runs_lie_over_each_other_with_their_ratio_below(tmp_path):
    here = series(2 + 8 * np.exp(-np.arange(2000) / 300))
    there = here._replace(values=here.values * 1.1)
    png, svg = overlay(tmp_path, [("A", here), ("B", there)], mark=700.0, mark_label="they part at step 700")
    assert size(png) == (1350, 900)
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert svg.count('id="axes_') == 2
    assert svg.count('id="axes_') > overlay(tmp_path, [("A", here)])[1].count('id="axes_')


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_an_overlay_copes_with_whatever_was_recorded(tmp_path, subtests):
    odd = {name: series(SHAPES[name]) for name in ("infinite", "empty", "all nan", "one", "widest", "zero", "huge")}
    overlays = {f"{name} alone": [("A", odd[name])] for name in ("infinite", "empty", "all nan", "huge")}
    for name in ("infinite", "all nan", "one", "widest", "zero"):
        overlays[f"{name} first"] = [("A", odd[name]), ("B", series([1.0, 2.0])), ("C", odd[name])]
    overlays["all of them second"] = [("A", series([1.0])), *zip("BCDEFGH", odd.values(), strict=True)]
    for name, lines in overlays.items():
        with subtests.test(name):
            png, svg = overlay(tmp_path, lines, mark=3.0, mark_label="here")
            assert size(png) == (1350, 900)
            ET.fromstring(svg)


@pytest.mark.slow
def test_names_of_runs_are_text_and_no_formula(tmp_path):
    lines = [("_$_{", series([1.0])), ("$x^$" + "y" * 300, series([2.0]))]
    assert overlay(tmp_path, lines, title="$_{", mark=0.0, mark_label="$_{")[0]


@pytest.mark.slow
def test_the_ratio_is_taken_at_common_steps(tmp_path, saved):
    first = Series("a", np.array([0.0, 2.0, 4.0, 6.0]), np.array([1.0, 2.0, 0.0, 4.0]))
    other = Series("b", np.array([1.0, 2.0, 4.0, 6.0]), np.array([9.0, 3.0, 1.0, 2.0]))
    overlay(tmp_path, [("A", first), ("B", other)])
    points = [line.get_xydata().tolist() for line in saved[-1].axes[1].lines]
    assert any([2.0, 1.5] in each and [6.0, 0.5] in each for each in points), points
    assert not any(
        step in {0.0, 1.0} and np.isfinite(value) for each in points for step, value in each if len(each) > 2
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(1, 1), (8, 3000), (500, 20)])
def test_a_map_of_ranks_is_a_png_and_an_svg(tmp_path, shape):
    values = np.random.default_rng(0).random(shape)
    values[0, 0] = np.nan
    for known in (values, np.full(shape, np.nan), np.full(shape, 0.5)):
        save_heat_map(tmp_path / "h.png", tmp_path / "h.svg", "$_{", np.arange(shape[1], dtype=float), known)
        assert size((tmp_path / "h.png").read_bytes()) == (1350, 600)
        ET.fromstring((tmp_path / "h.svg").read_bytes())


def test_means_of_stretches_leave_gaps_out():
    values = np.stack([np.arange(2500.0), np.full(2500, np.nan)])
    values[0, 1] = np.nan
    reduced = stretch_means(values, np.arange(0, 2500, 3))
    assert reduced.shape == (2, 834)
    assert reduced[0, :2].tolist() == [1.0, 4.0]
    assert np.isnan(reduced[1]).all()
