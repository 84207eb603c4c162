import io
import json
import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from test_textplot import SHAPES

from ezpz.quantities import duration, number
from ezpz.track.run_reader import open_run
from ezpz.track.series import Series
from ezpz.track.values import encode
from ezpz.view.report import build_page, write_report
from ezpz.view.report.charts import hosts_startup_chart
from ezpz.view.report.heat import gray_png
from lab.run_folders import leave_run

HOSTILE = [
    "</script><script>window.hacked=1</script>",
    '<img src=x onerror="window.hacked=1">',
    "\"quoted\" 'twice' & <b>",
    "../x",
    "loss/</title>",
    "ünïcode/学習/损失",
    "{{template}} ${window.hacked=1}",
    "a" * 300,
    "]]>-->",
]


def write_run(folder, rows, facts=None, *, windows=(), attempts=None):
    """A run folder as a writer leaves it: rows are metrics by step, `attempts` the attempt of each row."""
    lines = []
    for number_of, (step, metrics) in enumerate(rows):
        row = {"t": 1795194000.0 + number_of, "step": step, "a": attempts[number_of] if attempts else 1}
        lines.append({**row, "m": {key: encode(value) for key, value in metrics.items()}})
    lines += [{"t": 1795195000.0, "step": each["steps"][-1], "k": "ranks", "m": each} for each in windows]
    return leave_run(folder, lines, None if facts is None else {"name": "run", "state": "finished", **facts})


def window(steps, **keys):
    """A record over all ranks; each key is a matrix of shape (ranks, steps), or (ranks, 1) for means alone."""
    told = {}
    for key, matrix in keys.items():
        known = np.array(matrix, dtype=float)
        told[key] = {
            part: [encode(value) for value in np.broadcast_to(reduce(known, axis=0), len(steps)).tolist()]
            for part, reduce in (("min", np.nanmin), ("mean", np.nanmean), ("max", np.nanmax))
        }
        told[key]["ranks"] = [[None if math.isnan(value) else value for value in row] for row in known.tolist()]
    return {"world": len(known), "every": int(known.shape[1] == len(steps)), "steps": list(steps), "keys": told}


def ordinary(step):
    return {
        "iter": step,
        "train/loss": 2 + 8 * math.exp(-step / 50),
        "lr": 1e-3,
        "dt": 0.4,
        "dtd": 0.04,
        "dtf": 0.12,
        "dtb": 0.2,
        "tokens_per_sec": 1e5 + step,
        "mfu": 0.41,
        "memory_peak": 3.2e10,
        "note": f"at {step}",
        **({"val/loss": 3.0 - step / 100} if step % 20 == 0 else {}),
    }


def ordinary_run(folder):
    """A finished run of 100 steps on 4 ranks, of which rank 2 is slow before the first collective of a step."""
    slow = np.full((4, 100), 0.12)
    slow[2] = 0.2
    rank_loss = np.arange(400.0).reshape(4, 100)
    facts = {
        "config": {"model": {"layers": 2, "dropout": 0.1}, "betas": [0.9, 0.95], "none": None},
        "effective": {"dropout.mlp": 0.1},
        "timeline": {"import torch": 3.0, "process group": 5.0, "first step": 9.5},
        "argv": ["train.py", "--lr", "1e-3"],
        "started": "2026-11-20T16:20:01+00:00",
        "ended": "2026-11-20T17:22:03+00:00",
        "ranks": {"world_size": 4, "local_world_size": 2},
    }
    windows = [window(range(100), dtf=slow, dt=np.full((4, 100), 0.4), **{"train/loss": rank_loss})]
    return write_run(folder, [(step, ordinary(step)) for step in range(100)], facts, windows=windows)


@pytest.fixture
def run(tmp_path):
    return ordinary_run(tmp_path / "run")


class Page(HTMLParser):
    """Tags with their attributes, the text of each `<script>`, and all text that a reader sees."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.text = [], [], ""
        self.source = text
        self._inside = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    @property
    def charts(self):
        return [attrs["id"] for tag, attrs in self.tags if tag == "figure"]

    @property
    def data(self):
        return json.loads(self.scripts[0])

    def pictures(self):
        """Each chart as XML: it must be whole."""
        found = re.findall(r'<svg viewBox.*?</svg>(?=<p|</figure>|<svg class="narrow")', self.source, re.DOTALL)
        return [ET.fromstring(each) for each in found]

    def twins(self):
        """The same of what narrow screens show in place of a wide chart."""
        found = re.findall(r'<svg class="narrow".*?</svg>(?=<p|</figure>)', self.source, re.DOTALL)
        return [ET.fromstring(each) for each in found]


def check(page):
    """What holds for every page: one file, pictures that are whole, numbers in all places."""
    pictures = page.pictures()
    assert len(pictures) == len(page.charts) == len(page.data) == len(set(page.charts))
    for picture in pictures:
        assert picture.get("role") == "img"
        assert picture.get("aria-label")
    for picture in (*pictures, *page.twins()):
        for element in picture.iter():
            for name in ("d", "x", "y", "width", "height", "points"):
                assert not re.search(r"nan|inf", element.get(name, "")), element.attrib
    assert [tag for tag, _ in page.tags].count("script") == 2
    for tag, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on")], (tag, attrs)
        assert attrs.get("src") is None
        assert str(attrs.get("href", "#")).startswith(("#", "data:image/png;base64,"))
    return page


def test_the_page_shows_first_what_people_ask_first(run):
    page = check(Page(build_page(run)))
    assert write_report(run) == run.folder / "report.html"
    assert Page((run.folder / "report.html").read_text()).data == page.data
    assert not list(run.folder.glob(".*.tmp"))
    charts = "loss tokens-per-sec-tok-s mfu where-a-step-s-time-goes seconds-of-a-step-by-part "
    charts += "seconds-per-step dtf-by-rank loss-over-all-ranks memory-peak lr start-up"
    assert page.charts == [f"chart-{name}" for name in charts.split()]
    for text in ("finished", "1 h 2 min", "100 (0 to 99)", "4 on 2 hosts", "train.py --lr 1e-3", "model.dropout"):
        assert text in page.text
    for card in ("last train/loss", "best val/loss", "41.0 %", "100,050 tok/s", "29.8 GiB", "9.5 s"):
        assert card in page.text
    assert "at 99" in page.text  # the last of a text metric


def test_accuracy_and_validation_are_in_the_cards(tmp_path):
    rows = [(step, {"loss": 1.0, "accuracy": step / 100}) for step in range(97)]
    rows[40][1]["val/acc"] = 0.5
    rows[80][1]["val/acc"] = 0.25
    text = check(Page(build_page(write_run(tmp_path / "run", rows, {})))).text
    assert "last accuracy96.0 %at step 96" in text
    assert "last val/acc25.0 %at step 80" in text
    assert "best val/acc50.0 %at step 40" in text
    rows = [(step, {"top1": 50.0 + step}) for step in range(30)]  # some programs count in percent
    assert "last top179.0 %at step 29" in Page(build_page(write_run(tmp_path / "other", rows, {}))).text


MATRICES = [
    (np.array([[0.1] * 30, [0.2] * 30]), "rank 1 is the slowest: 200 ms, 2.00 x rank 0"),
    (np.array([[0.1] * 20, [0.2] * 20]), "no rank stands out: 150 ms in the median"),  # nor are 20 many
    # A healthy run on a laptop: 1.4 times as slow in the median, and not in most stretches of steps.
    (np.array([[0.1, 0.1, 0.14, 0.3] * 10, [0.14, 0.16, 0.14, 0.02] * 10]), "no rank stands out: 130 ms in the median"),
    (np.array([[0.1] * 3, [0.2] * 3]), "no rank stands out: 150 ms in the median of ranks"),  # three steps are few
    (np.array([[0.1, 0.3] * 15, [0.3, 0.2] * 15]), "no rank stands out: 225 ms in the median of ranks"),
    (np.array([[0.1] * 30, [0.101] * 30]), "no rank stands out: 100 ms in the median of ranks"),
    (np.array([[0.1] * 30]), "one rank, 100 ms in the median"),
]


def test_a_rank_is_called_slow_only_where_chance_does_not_explain_it(subtests, tmp_path):
    for matrix, told in MATRICES:
        with subtests.test(told):
            steps = range(matrix.shape[1])
            rows, windows = [(step, {"dtf": 0.1}) for step in steps], [window(steps, dtf=matrix)]
            text = check(Page(build_page(write_run(tmp_path / told[:40], rows, {}, windows=windows)))).text
            assert told in text
            assert ("slowest" in text) == ("slowest" in told)


def test_a_rank_is_not_called_slow_for_a_small_part_of_a_step(tmp_path):
    steps = range(100)
    forward, whole = np.array([[0.01] * 100, [0.014] * 100]), np.full((2, 100), 0.1)
    rows = [(step, {"dt": 0.1, "dtf": 0.01}) for step in steps]
    windows = [window(steps, dtf=forward, dt=whole)]  # 4 ms in each step of 100
    text = Page(build_page(write_run(tmp_path / "run", rows, {}, windows=windows))).text
    assert "no rank stands out: 12 ms in the median of ranks" in text


def test_points_reach_the_page_as_they_were_recorded(run):
    chart = Page(build_page(run)).data[0]
    assert [line["name"] for line in chart["lines"]] == ["train/loss", "val/loss"]
    assert np.cumsum(chart["lines"][1]["x"]).tolist() == [0, 20, 40, 60, 80]
    assert chart["lines"][1]["y"] == pytest.approx([3, 2.8, 2.6, 2.4, 2.2])
    assert chart["lines"][0]["y"] == pytest.approx([2 + 8 * math.exp(-step / 50) for step in range(100)], rel=1e-5)


@pytest.mark.filterwarnings("error")
def test_every_series_becomes_a_whole_picture(subtests, tmp_path):
    for name, values in SHAPES.items():
        with subtests.test(name):
            rows = [(step, {"x": float(value)}) for step, value in enumerate(values)]
            page = check(Page(build_page(write_run(tmp_path / name, rows, {}))))
            finite = np.isfinite(np.array(values, dtype=float))
            assert len(page.charts) == min(1, len(rows))
            if rows:
                assert ("nothing finite was recorded" in page.text) == (not finite.any())
                assert ('class="line' in page.source) == finite.any() or 'class="line s0" d=""' in page.source
            else:
                assert "No number was recorded." in page.text


@pytest.mark.slow
def test_eight_metrics_over_ten_thousand_steps_stay_below_500_kilobytes(tmp_path):
    noise = np.random.default_rng(0).standard_normal((10_000, 8)).tolist()
    names = ["train/loss", "dt", "dtf", "dtb", "sps", "mfu", "mem", "grad_norm"]
    rows = [(step, dict(zip(names, values, strict=True))) for step, values in enumerate(noise)]
    matrix = np.abs(np.random.default_rng(1).standard_normal((8, 10_000)))
    run = write_run(tmp_path / "run", rows, {}, windows=[window(range(10_000), dtf=matrix, loss=matrix)])
    page = build_page(run)
    assert len(page.encode()) < 500_000
    check(Page(page))


@pytest.mark.slow
def test_a_spike_of_one_step_among_100_000_is_on_the_page(tmp_path):
    rows = [(step, {"loss": 1.0 + (step % 7) / 100}) for step in range(100_000)]
    rows[54_321] = (54_321, {"loss": 1.2})
    page = Page(build_page(write_run(tmp_path / "run", rows, {})))
    (line,) = page.data[0]["lines"]
    at = line["y"].index(1.2)
    assert sum(line["x"][: at + 1]) == 54_321
    assert len(line["y"]) <= 800
    assert len(page.source) < 200_000


def test_names_and_values_are_data_whatever_they_hold(tmp_path):
    row = dict.fromkeys(HOSTILE, 1.0)
    facts = {
        "name": HOSTILE[0],
        "cause": HOSTILE[1],
        "state": '"><script>window.hacked=1</script>',
        "argv": HOSTILE,
        "config": dict(zip(HOSTILE, HOSTILE, strict=True)),
        "timeline": dict.fromkeys(HOSTILE, 1.5),
        "problems": HOSTILE,
        "earlier": [{"state": HOSTILE[1]}, HOSTILE[0], None],
        "ranks": HOSTILE,
        "environment": {"x": "\x00\x1b[31m\ud800"},
    }
    texts = {f"text {name}": name for name in HOSTILE}
    page = check(Page(build_page(write_run(tmp_path / "run", [(0, {**row, **texts}), (1, row)], facts))))
    assert {tag for tag, _ in page.tags}.isdisjoint({"img", "b", "iframe"})
    assert page.scripts[1].startswith("// What the page")
    for name in HOSTILE:
        assert name in page.text
    assert "<" not in page.scripts[0]


@pytest.mark.slow
def test_200_metrics_with_long_names_make_a_page_that_still_opens(tmp_path):
    rows = [(step, {f"{index:03}{'x' * 297}": step * index / 3 for index in range(200)}) for step in range(1000)]
    page = check(Page(build_page(write_run(tmp_path / "run", rows, {}))))
    assert len(page.charts) == 200
    assert len(page.source) < 2_500_000


def test_a_journal_alone_odd_facts_or_facts_alone_make_a_page(tmp_path):
    for number_of, facts in enumerate((None, {}, {"ranks": 3, "config": "x", "timeline": [1], "started": "long ago"})):
        rows = [(0, {"loss": 1.0}), (1, {"loss": 0.5})]
        check(Page(build_page(write_run(tmp_path / str(number_of), rows, facts))))
    (tmp_path / "run.json").write_text(json.dumps({"name": "empty", "config": {"lr": 3}}))
    page = check(Page(build_page(open_run(tmp_path))))
    assert "No number was recorded." in page.text
    assert "empty" in page.text
    assert "died" in page.text  # it says `running`, and nobody runs it


def test_a_killed_run_says_so_and_shows_what_there_is(tmp_path):
    run = write_run(
        tmp_path / "run", [(0, {"loss": 1.0})], {"state": "running", "started": "2026-11-20T16:20:01+00:00"}
    )
    page = check(Page(build_page(run)))
    assert "died" in page.text
    assert "its process is gone" in page.text
    assert "until the last row" in page.text


def test_restarts_are_marked_and_what_they_overtook_is_not_drawn(tmp_path):
    rows = [(0, {"loss": 9.0}), (1, {"loss": 8.0}), (2, {"loss": 70.0}), (2, {"loss": 7.0}), (3, {"loss": 6.0})]
    old = window([0, 1], dtf=[[1.0, 1.0], [1.0, 1.0]])
    overtaken = window([2], dtf=[[50.0], [50.0]])
    run = write_run(
        tmp_path / "run",
        rows,
        {"earlier": [{"state": "failed", "cause": "out of memory"}], "attempt": 2},
        windows=[old, overtaken],
        attempts=[1, 1, 1, 2, 2],
    )
    page = check(Page(build_page(run)))
    assert page.data[0]["lines"][0]["y"] == [9, 8, 7, 6]
    assert len(page.charts) == 2
    assert page.source.count('class="restart"') == 2 + page.source.count('<svg class="narrow"')
    assert "restart at step 2" in page.text
    assert "out of memory" in page.text
    assert page.data[1]["lines"][0]["y"] == [1, 1]


def test_what_happened_in_a_run_is_told_as_events(tmp_path):
    rows = [(step, {"loss": 1.0, "x": 2.0}) for step in range(50)]
    for step in (12, 30):
        rows[step] = (step, {"loss": float("nan"), "x": float("-inf")})
    text = Page(build_page(write_run(tmp_path / "run", rows, {"problems": ["3 rows could not be written"]}))).text
    assert "loss is NaN for the first time, 2 times in all, last at step 30" in text
    assert "x is infinite for the first time" in text
    assert "step 12" in text
    assert "3 rows could not be written" in text
    rows = [(step, {"loss": 1.0} | ({"dt_save": 0.25} if step % 10 == 9 else {})) for step in range(30)]
    rows[29][1]["dt_eval"] = 1.5
    text = Page(build_page(write_run(tmp_path / "saves", rows, {}))).text
    assert "a checkpoint was saved for the first time, 3 times in all, last at step 29, 750 ms together" in text
    assert "the model was evaluated for the first time, 1.5 s together" in text


def test_the_map_of_ranks_shows_a_time_before_the_first_collective_and_names_the_slowest(run):
    page = Page(build_page(run))
    assert "rank 2 is the slowest: 200 ms, 1.67 x the median of the others" in page.text
    heat = page.data[6]
    assert [line["name"] for line in heat["lines"]] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert heat["lines"][2]["y"] == [0.2] * 100
    band = page.data[7]
    assert [line["y"][0] for line in band["lines"]] == [0, 150, 300]


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_ranks_of_large_worlds_share_rows_and_gaps_stay_gaps(tmp_path):
    means = np.full((1000, 1), 0.1)
    means[777] = 0.3
    windows = [window(range(start, start + 100), dt=means) for start in range(0, 1000, 100)]
    page = check(Page(build_page(write_run(tmp_path / "large", [(999, {"dt": 0.1})], {}, windows=windows))))
    assert "rank 777 is the slowest" in page.text
    assert "each row is the largest of 8 ranks" in page.text
    holes = np.array([[1.0, np.nan, 1.0], [np.nan, np.nan, 2.0]])
    page = check(
        Page(build_page(write_run(tmp_path / "holes", [(2, {})], {}, windows=[window(range(3), dtf=holes[:, :1])])))
    )
    odd = [window(range(3), dtf=np.nan_to_num(holes)), {"world": 2, "steps": [0], "keys": []}, {"steps": [5]}]
    odd[0]["keys"]["dtf"]["ranks"][1] = [None, "NaN", "Infinity"]
    odd.append({**odd[0], "keys": {**odd[0]["keys"], "bad": 3}})  # left out whole, as any record of a wrong type
    page = check(Page(build_page(write_run(tmp_path / "odd", [(2, {})], {}, windows=odd))))
    assert [line["y"] for line in page.data[0]["lines"]] == [[1, 0, 1], [None, None, None]]


def test_the_shares_of_a_step_sum_up_and_the_rest_is_told(run, tmp_path):
    shares = Page(build_page(run)).data[3]
    names = [line["name"] for line in shares["lines"]]
    assert names == ["data", "forward", "backward", "other"]
    columns = list(zip(*(line["y"] for line in shares["lines"]), strict=True))
    assert columns[0] == pytest.approx((10, 30, 50, 10))
    assert all(sum(column) == pytest.approx(100) for column in columns)
    run = write_run(tmp_path / "overlap", [(step, {"dt": 1.0, "dtf": 1.5, "dtb": 1.5}) for step in range(3)], {})
    shares = Page(build_page(run)).data[0]
    assert [line["y"][0] for line in shares["lines"]] == [50, 50, 0]


def test_numbers_and_times_are_short():
    assert [number(value) for value in (0.0123456, 12345, 123456.7, 1e-9, 0, float("nan"), float("-inf"))] == [
        *("0.01235", "12,345", "123,457", "1e-09", "0", "NaN", "-∞")
    ]
    assert [duration(seconds) for seconds in (0.085, 12.34, 59.99, 3599.9, 7380, 200_000)] == [
        *("85 ms", "12.3 s", "1 min 0 s", "1 h 0 min", "2 h 3 min", "2 d 7 h")
    ]


def test_the_mask_of_the_map_is_a_png_that_others_can_read():
    from matplotlib.image import imread

    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    assert np.round(imread(io.BytesIO(gray_png(pixels))) * 255).tolist() == pixels.tolist()


def test_colours_stand_in_the_style_sheet_alone(run):
    page = build_page(run)
    style = page[page.index("<style>") : page.index("</style>")]
    rest = page.replace(style, "")
    assert not re.search(
        r"""(fill|stroke|color|background)[=:]\s*["']?(#|rgb|hsl)""", rest[: rest.index('<script type="')]
    )
    blocks = re.findall(r"color-scheme: dark;\n(.*?)\n  ?}?", style, re.DOTALL)
    dark = re.findall(r"color-scheme: dark;(.*?)}", style, re.DOTALL)
    assert len(dark) == len(blocks) == 2
    assert dark[0].split() == dark[1].split()
    light = re.findall(r"--[\w-]+(?=:)", style[: style.index("@media")])
    assert sorted(re.findall(r"--[\w-]+(?=:)", dark[0])) == sorted(light)
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) <= {*light, "--c"}


@pytest.mark.slow
def test_a_report_loads_no_library_that_is_slow(run, run_python):
    code = """
import sys
from ezpz.cli.report import main
assert main([sys.argv[1]]) == 0
heavy = {"torch", "matplotlib", "xarray", "h5py", "plotext", "rich", "wandb", "pandas"} & {*sys.modules}
assert not heavy, heavy
"""
    result = run_python(code, run.folder)
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.decode().strip() == str(run.folder / "report.html")


def test_labels_of_long_numbers_have_room_beside_the_plot():
    """Of 100,000,200 and 100,000,400 both would be 100M; as they are they need more room than 0.2."""
    from ezpz.view.report.charts import Axis, line_chart

    def chart(values):
        return line_chart("seen", [Series("seen", np.arange(3.0), np.array(values))], Axis((0.0, 2.0), [], 40))

    wide, usual = (chart(values).data["box"] for values in ([1e8, 1e8 + 500, 1e8 + 1000], [0.0, 0.5, 1.0]))
    assert usual[0] == 58 < wide[0] <= 80
    assert wide[0] + wide[2] == usual[0] + usual[2]
    assert ">100000400</text>" in chart([1e8, 1e8 + 500, 1e8 + 1000]).svg


def record_launch(state, run_folder, seconds=20.0):
    """Keep the record of a launch of three hosts, the last of which imports so much longer, as that of a run."""
    times = {"process": 1.0, "setup": 4.0, "group": 5.0, "model": 6.0, "step": 8.0}
    stages = {}
    for name, typical in times.items():
        late = seconds if name != "process" else 0.0
        by_rank = [typical + (0.0 if name == "setup" and rank < 4 else late) for rank in range(6)]
        ordered = sorted(by_rank)
        summary = {"ranks": 6, "min": ordered[0], "median": ordered[3], "max": ordered[-1], "slowest_host": "n03"}
        stages[name] = {**summary, "by_rank": by_rank}
    plan = {"hosts": ["n01", "n02", "n03"], "ranks_per_host": [2, 2, 2]}
    record = state / "ezpz/launches/20261102-120000-abcdef12/run.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"launch_id": "abcdef1234", "plan": plan, "stages": stages}))
    facts = json.loads((run_folder / "run.json").read_text())
    (run_folder / "run.json").write_text(json.dumps({**facts, "launch": {"EZPZ_LAUNCH_ID": "abcdef1234"}}))


def test_the_start_of_several_hosts_is_a_bar_for_each_with_the_critical_path(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert hosts_startup_chart(run) is None
    record_launch(tmp_path / "state", run.folder)
    chart = hosts_startup_chart(open_run(run.folder))
    assert chart.notes[0] == "23 s of imports and own code on n03 (rank 4) held up 2 hosts for 20 s"
    assert [name for name, _ in chart.legend] == ["start", "imports", "rendezvous", "model and data", "first step"]
    ends = {line["name"]: line["y"][0] for line in chart.data["lines"]}
    assert (ends["n01, imports"], ends["n03, imports"], ends["n03, first step"]) == (4.0, 24.0, 28.0)
    assert chart.svg.count("<rect") == 15
    assert all(f"{host}, imports: {took}" in chart.svg for host, took in (("n01", "3 s"), ("n03", "23 s")))
