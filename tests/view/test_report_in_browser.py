"""The report in a real browser that has no network: what is seen, with scripts and without, in light and in dark."""

import math
import re

import pytest
from test_report import HOSTILE, ordinary_run, window, write_run

from ezpz.view.report import build_page, write_report
from lab import process


@pytest.fixture
def run(tmp_path):
    return ordinary_run(tmp_path / "run")


@pytest.fixture
def show(browser, tmp_path):
    """`show(run, **how)` -> the browser with the run's report open and nothing to complain about."""

    def show(run, **how):
        browser.open(write_report(run, tmp_path / "page.html"), **how)
        assert browser.complaints == []
        return browser

    return show


def count(browser, selector):
    return browser.ask(f"document.querySelectorAll({selector!r}).length")


def has_all_charts_and_asks_nothing_of_the_network(page, dark):
    assert page.ask("document.documentElement.dataset.ready") == "11"
    assert count(page, "figure svg[role=img]") == 11
    assert page.ask("document.title") == "run"
    assert {url.partition(":")[0] for url in page.requests} == {"file", "data"}
    assert sum(url.startswith("file:") for url in page.requests) == 1
    page.press("Tab")
    assert page.complaints == []


def test_the_browser_says_so_when_a_page_fails_or_asks_for_more(browser, tmp_path):
    """The checks above can fail."""
    path = tmp_path / "bad.html"
    path.write_text("<!doctype html><title>x</title><img src='https://ezpz.invalid/x.png'><script>nothing()</script>")
    browser.open(path)
    assert any("nothing is not defined" in text for text in browser.complaints)
    assert any("ezpz.invalid" in url for url in browser.requests)


def contrast(first, second):
    """The ratio by which two colours differ (WCAG 2.2)."""

    def luminance(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def has_text_and_lines_that_stand_out_from_their_ground(page, dark):
    def colour(selector, what):
        return page.ask(f"getComputedStyle(document.querySelector({selector!r})).{what}")

    panel = colour(".chart", "backgroundColor")
    assert (contrast(panel, "rgb(0, 0, 0)") < 2) == dark
    for selector, what in (("h1", "color"), (".notes", "color"), ("svg text", "fill"), (".state", "color")):
        assert contrast(colour(selector, what), panel) >= 4.5, selector
    for line in range(2):
        assert contrast(colour(f"#chart-loss .line.s{line}", "stroke"), panel) >= 3
    assert contrast(colour("rect.heat-high", "fill"), colour("rect.heat-low", "fill")) >= 3


def changes_its_theme_against_the_system(page, dark):
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.ask(ground)
    page.click("#theme")
    after = page.ask(ground)
    assert after != before
    page.click("#theme")
    assert page.ask(ground) == before


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_in_light_and_in_dark(show, run, subtests, dark):
    page = show(run, dark=dark)
    for check in (
        has_all_charts_and_asks_nothing_of_the_network,
        has_text_and_lines_that_stand_out_from_their_ground,
        changes_its_theme_against_the_system,
    ):
        with subtests.test(check.__name__):
            check(page, dark)


def test_with_scripts_off_everything_is_readable_and_no_button_promises_anything(show, run):
    page = show(run, scripts=False)
    assert page.ask("document.documentElement.dataset.ready === undefined")
    assert count(page, "button, input") == 0
    assert count(page, "figure svg path.line") >= 8
    assert page.ask("document.querySelector('#chart-loss .line').getBBox().width") > 900
    text = page.ask("document.body.innerText")
    for words in ("train/loss", "is the slowest", "1 h 2 min", "import torch", "dropout"):
        assert words in text
    assert "run.json" in text
    page.click("#run-json summary")  # folding is the browser's own
    assert page.ask("document.querySelector('#run-json').open")


def has_no_labels_over_each_other(page):
    overlapping = page.ask("""
        [...document.querySelectorAll("figure svg")].flatMap((svg) => {
          const texts = [...svg.querySelectorAll("text")].map(
            (text) => [text.textContent, text.getBoundingClientRect()]
          );
          return texts.flatMap(([one, a], i) => texts.slice(i + 1).filter(([, b]) =>
            a.left < b.right && b.left < a.right && a.top + 2 < b.bottom - 2 && b.top + 2 < a.bottom - 2
          ).map(([other]) => [one, other]));
        })""")
    assert overlapping == []
    assert page.ask("document.documentElement.scrollWidth <= innerWidth")


def shows_the_values_of_all_lines_at_the_pointers_step(page):
    left, _, width, _ = page.ask("charts[0].box")
    page.hover("#chart-loss > svg", (left + width * 40 / 99) / 1180, 0.5)
    tip = page.ask("document.querySelector('#chart-loss .tip').innerText").split("\n")
    assert tip[0] == "step 40"
    assert tip[1:] == ["train/loss", f"{2 + 8 * math.exp(-40 / 50):.6g}", "val/loss", "2.6"]
    assert count(page, "#chart-loss .hover circle") == 2
    assert count(page, ".hover .cross") == 10  # the same step in every chart that has steps
    page.hover("#chart-dtf-by-rank > svg", 0.5, 0.4)
    assert page.ask("document.querySelector('#chart-dtf-by-rank .tip').innerText").split("\n")[1:] == [
        "rank 2",
        "0.2 (1.67 x median)",
    ]
    page.hover("#chart-where-a-step-s-time-goes > svg", 0.5, 0.5)
    tip = page.ask("document.querySelector('#chart-where-a-step-s-time-goes .tip').innerText").split("\n")
    assert tip[1:] == ["other", "10 %", "backward", "50 %", "forward", "30 %", "data", "10 %"]
    page.hover("h1")
    assert count(page, ".tip") == 0
    assert page.complaints == []


def keeps_a_tip_inside_its_chart_and_moves_it_by_keys(page):
    for share in (0.12, 0.97):
        page.hover("#chart-mfu > svg", share, 0.5)
        assert count(page, "#chart-mfu .tip") == 1
        assert page.ask("""(([tip, chart]) => tip.left >= chart.left && tip.right <= chart.right)(
            ["#chart-mfu .tip", "#chart-mfu"].map((each) => document.querySelector(each).getBoundingClientRect()))""")
    page.hover("h1")
    page.ask("document.querySelector('#chart-lr > svg').focus()")
    for _ in range(3):
        page.press("ArrowRight")
    assert page.ask("document.querySelector('#chart-lr .tip').innerText").startswith("step 2\n")
    page.press("ArrowLeft")
    assert page.ask("document.querySelector('#chart-lr .tip').innerText").startswith("step 1\n")


def shows_without_its_script_what_that_draws(page):
    seen = """charts.filter((chart) => chart.kind === "lines").map((chart) => ({
        classes: [...chart.svg.querySelectorAll(".plot path")].map((path) => path.getAttribute("class")),
        labels: [...chart.svg.querySelectorAll(".ya text")].map((text) => text.textContent),
        places: [...chart.svg.querySelectorAll(".plot path, .ya path, .ya text")].flatMap((each) =>
            (each.getAttribute("d") ?? each.getAttribute("y")).match(/[0-9.-]+/g).map(Number)),
    }))"""
    before = page.ask(seen)
    page.ask("charts.forEach(draw)")
    after = page.ask(seen)
    assert len(before) == 7
    for python, script in zip(before, after, strict=True):
        assert script["classes"] == python["classes"]
        assert script["labels"] == python["labels"]
        assert script["places"] == pytest.approx(python["places"], abs=0.11)  # both are rounded to a tenth of a pixel


def takes_a_logarithmic_axis_and_leaves_it(page):
    labels = "[...document.querySelectorAll('#chart-loss > svg[role=img] .ya text')].map((text) => text.textContent)"
    line = "document.querySelector('#chart-loss .line').getAttribute('d').match(/[0-9.-]+/g).map(Number)"
    before = page.ask(labels), page.ask(line)
    page.click("#chart-loss button.log")
    assert page.ask(labels) == ["5", "10"]
    assert page.ask(line) != before[1]
    assert page.ask("document.querySelector('#chart-loss button.log').getAttribute('aria-pressed')") == "true"
    page.click("#chart-loss button.log")
    assert page.ask(labels) == before[0]
    assert page.ask(line) == pytest.approx(before[1], abs=0.11)


def saves_a_chart_as_csv(page, folder):
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.click("#chart-loss button.csv")
    file = folder / "chart-loss.csv"
    process.wait_until(lambda: file.exists() and file.stat().st_size, 20, "the file")
    lines = file.read_text().splitlines()
    assert lines[0] == '"step","train/loss","val/loss"'
    assert lines[1] == "0,10,3"
    assert lines[2].startswith("1,9.8")
    assert lines[2].endswith(",")
    assert len(lines) == 101
    assert page.ask("csv(charts[10])").startswith('"stage","seconds"\n"import torch",3\n')
    assert page.ask("csv(charts[6])").startswith('"step","rank 0","rank 1","rank 2","rank 3"\n0,0.12,0.12,0.2,0.12\n')
    assert page.complaints == []


def test_the_page_does_what_it_offers(show, run, tmp_path, subtests):
    """One page for all of it: each check leaves it as it was."""
    page = show(run)
    for check in (
        has_no_labels_over_each_other,
        shows_the_values_of_all_lines_at_the_pointers_step,
        keeps_a_tip_inside_its_chart_and_moves_it_by_keys,
        shows_without_its_script_what_that_draws,
        takes_a_logarithmic_axis_and_leaves_it,
    ):
        with subtests.test(check.__name__):
            check(page)
            page.hover("h1")
    with subtests.test("saves a chart as CSV"):
        saves_a_chart_as_csv(page, tmp_path)


def test_smoothing_adds_a_line_that_lies_among_the_points(show, tmp_path):
    rows = [(step, {"loss": 5.0 + (-1) ** step + step / 1000}) for step in range(2000)]
    page = show(write_run(tmp_path / "run", rows, {}))
    smooth = "(e => {e.value = %d; e.dispatchEvent(new Event('input'))})(document.getElementById('smoothing'))"
    page.ask(smooth % 50)
    assert count(page, "#chart-loss > svg[role=img] .line") == 2
    assert count(page, "#chart-loss .line.faint") == 1
    xs = page.ask("charts[0].lines[0].mx")
    smoothed = page.ask("smooth(charts[0].lines[0].mx, charts[0].lines[0].my, 2000)")
    middle = range(len(xs) // 4, 3 * len(xs) // 4)
    assert all(abs(smoothed[i] - (5 + xs[i] / 1000)) < 0.05 for i in middle)
    page.ask(smooth % 0)
    assert count(page, "#chart-loss > svg[role=img] .line") == 1
    assert page.complaints == []


def test_on_a_phone_every_picture_fits_and_its_text_can_be_read(show, run):
    page = show(run, size=(400, 800))
    shown = page.ask("""[...document.querySelectorAll("figure > svg")].filter((svg) => svg.clientWidth).map((svg) => {
        const texts = [...svg.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
        const scale = svg.clientWidth / svg.viewBox.baseVal.width;
        const size = parseFloat(getComputedStyle(svg.querySelector("text")).fontSize) * scale;
        return [svg.closest("figure").id, svg.clientWidth, size, Math.min(...texts.map((each) => each.left))];
    })""")
    assert len(shown) == 11
    for name, width, size, left in shown:
        if name == "chart-dtf-by-rank":  # a map of ranks is scrolled
            continue
        assert 300 < width <= 376, name
        assert size >= 9.5, (name, size)
        assert left >= 0, (name, left)
    assert page.ask("document.documentElement.scrollWidth <= innerWidth")
    page = show(run)
    assert page.ask("[...document.querySelectorAll('svg.narrow')].every((svg) => !svg.clientWidth)")


# Tables that are wider than what they are in, which has to be scrolled then; maps of hosts and ranks may be.
WIDE = """[...document.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth)
    .filter((box) => !box.querySelector(".map")).map((box) => box.innerText)"""
TORN = """[...document.querySelectorAll("td")].filter((cell) => cell.clientWidth && cell.clientWidth < 130)
    .map((cell) => cell.innerText)"""


def three_attempts(folder):
    """A run that was started again twice, with long causes, settings and texts."""
    cause = "RuntimeError: CUDA error: an illegal memory access was encountered in /home/me/venv/lib/module.py"
    known = {"state": "failed", "cause": cause, "started": "2026-11-18T10:00:00+00:00"}
    facts = {"earlier": [known | {"ended": "2026-11-18T10:20:00+00:00"}, known | {"ended": None}], **known}
    facts |= {"config": {"dataset": "HuggingFaceFW/a-data-set-with-a-name-of-many-words", "betas": [0.9, 0.95]}}
    rows = [(step, {"train/loss": 1 / (step + 1), "note": "a text of some words"}) for step in range(30)]
    return write_run(folder, rows, facts, attempts=[1 + step // 10 for step in range(30)])


@pytest.mark.parametrize("width", [400, 320])
def test_on_a_phone_nothing_is_wider_than_the_screen_and_no_word_of_a_table_is_torn(show, tmp_path, subtests, width):
    for make in (three_attempts, ordinary_run):
        with subtests.test(make.__name__):
            page = show(make(tmp_path / make.__name__), size=(width, 4000))
            page.ask("document.querySelectorAll('details').forEach((part) => (part.open = true))")
            assert page.ask("document.scrollingElement.scrollWidth <= innerWidth")
            assert page.ask(WIDE) == []
            assert page.ask(TORN) == []
    page = show(three_attempts(tmp_path / "again"), size=(width, 4000))
    row = page.ask("[...document.querySelectorAll('tr')].find((row) => row.innerText.includes('illegal')).innerHTML")
    assert re.findall(r'data-column="(\w+)"', row) == ["attempt", "state", "cause", "started", "ended"]
    page = show(three_attempts(tmp_path / "wide"))
    assert page.ask("document.querySelector('thead').clientHeight > 0")


def test_hostile_names_do_nothing(show, tmp_path):
    rows = [
        (step, {**dict.fromkeys(HOSTILE, float(step)), **{f"t {name}": name for name in HOSTILE}}) for step in (0, 1, 2)
    ]
    facts = {"name": HOSTILE[1], "cause": HOSTILE[0], "config": dict.fromkeys(HOSTILE, HOSTILE[0])}
    page = show(write_run(tmp_path / "run", rows, facts))
    page.ask("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    for figure in page.ask("charts.map((chart) => chart.figure.id)"):
        page.hover(f"#{figure} > svg", 0.5, 0.5)
        assert count(page, ".tip") == 1
    assert page.ask("charts.map(csv).join('')").count("\n") == 4 * page.ask("charts.length")
    assert page.ask("window.hacked === undefined")
    assert page.ask("document.title") == HOSTILE[1]
    assert page.ask("document.documentElement.scrollWidth <= innerWidth")
    assert page.complaints == []


def test_a_foreign_script_would_not_run_even_if_it_got_in(browser, run, tmp_path):
    path = tmp_path / "bad.html"
    text = build_page(run)
    path.write_text(
        text.replace("</main>", "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'></main>")
    )
    browser.open(path)
    assert browser.ask("window.hacked === undefined")
    assert browser.ask("document.documentElement.dataset.ready") == "11"
    assert any("Content Security Policy" in text for text in browser.complaints)


LAST = 1.7e308
PAGES = {
    "one step": [1.0],
    "two steps": [1.0, 2.0],
    "all nan": [math.nan] * 5,
    "some nan": [1.0, math.nan, 3.0, math.nan, math.nan, 2.0],
    "constant": [0.1] * 9,
    "zero": [0.0] * 3,
    "negative": [-1.0, -2.0, -3.0],
    "infinite": [1.0, math.inf, -math.inf, 2.0],
    "widest": [-LAST, LAST, 0.0],
    "tiny": [5e-324, 1e-310],
    "large": [1e15 + index for index in range(5)],
    "20,000 steps": [math.sin(index / 999) + 2 for index in range(20_000)],
    "nothing": [],
}


def works_in_every_mode(show, folder, values):
    rows = [(step, {"train/loss": value, "x": value, "dtf": value, "dt": value}) for step, value in enumerate(values)]
    windows = (
        [window([len(values) - 1], dtf=[[values[-1]], [values[-1]]])] if values and not math.isnan(values[-1]) else []
    )
    page = show(write_run(folder, rows, {}, windows=windows))
    assert page.ask("document.documentElement.dataset.ready") == str(count(page, "figure"))
    assert bool(count(page, "figure")) == bool(values)
    page.ask("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    page.ask("charts.forEach((chart) => point(chart, 0, 0))")
    page.ask("charts.forEach((chart) => chart.x && point(chart, 1e9, 0))")
    page.ask("document.querySelectorAll('button.log').forEach((button) => button.click())")
    page.ask("smoothing = 70; charts.forEach(draw); clearAll(); charts.map(csv)")
    odd = page.ask(
        "[...document.querySelectorAll('figure svg *')]"
        ".filter((e) => /NaN|Infinity|undefined/.test(e.outerHTML.split('>')[0])).length"
    )
    assert odd == 0
    assert page.complaints == []


def test_every_page_works_in_every_mode(show, tmp_path, subtests):
    for name, values in PAGES.items():
        with subtests.test(name):
            works_in_every_mode(show, tmp_path / name, values)
