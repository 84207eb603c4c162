"""`ezpz compare` as it is typed: what it prints, its exit codes, and what it loads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.cli.compare import main
from ezpz.view.compare.comparison_output import save_picture

SRC = str(Path(ezpz.__file__).parents[1])
VERB = "import sys; from ezpz.cli.compare import main; code = main(sys.argv[1:])"


@pytest.fixture
def make_run(tmp_path):
    def make(name, losses, **facts):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"name": name, "state": "finished", **facts}))
        rows = [{"v": 1, "t": 1.0 + n, "step": n, "m": {"loss": loss, "dt": 0.5}} for n, loss in enumerate(losses)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(folder)

    return make


@pytest.fixture
def two(make_run):
    losses = [3.0 - 0.01 * n + 0.02 * (n * 7 % 5) for n in range(100)]
    path = "/a/very/long/path/to/where/data/lies/" * 4
    one = make_run("a", losses, config={"data_path": path + "one", "wörld": "ä"}, effective={"dropout.h": 0.0})
    other = [loss * (1.01 + 0.001 * (n % 3)) for n, loss in enumerate(losses)]
    return one, make_run("b", other, config={"data_path": path + "two"}, effective={"dropout.h": 0.1})


def verb(tmp_path, *words, code=VERB, **environ):
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": SRC, **environ}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)


def test_the_verdict_comes_first_and_everything_fits_80_columns(two, capsys):
    assert main(list(two)) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "different from step 0: stochastic layers (h 0.0 -> 0.1)"
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert heads[1].startswith("A  ")
    assert heads[3:] == [
        *("likely cause", "loss over 100 common steps, 0 to 99", "effective values", "configuration"),
        *("which is better at the end", "throughput (1/dt)"),
    ]
    assert "  dropout.h  0.0 -> 0.1  likely cause" in lines
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in out
    assert "one" in out
    assert "two" in out


def test_a_narrow_width_is_kept_and_a_silly_one_refused(two, capsys, monkeypatch):
    monkeypatch.chdir("/usr/bin")  # from where the runs have no shorter path
    main([*two, "--width", "50"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 50
    assert [line[:3] for line in lines if ".." in line and line[:1] in {"A", "B"}] == ["A  ", "B  "]
    main(list(two))  # into a pipe: whole, to be copied from there
    assert two[0] in capsys.readouterr().out
    assert main([*two, "--width", "10"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_json_tells_all_and_has_no_nan(two, capsys, make_run):
    assert main([*two, "--json"]) == 1
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    [found] = told["comparisons"]
    assert (told["exit_code"], found["exit_code"], found["step"], told["pictures"]) == (1, 1, 0, [])
    assert [item["key"] for item in found["differences"] if item["likely_cause"]] == ["dropout.h"]
    assert found["differences"][0]["kind"] == "stochastic layers"
    assert found["divergence"]["numerics"] == 0
    assert found["throughput"]["ratio"] == 1.0
    assert told["runs"]["B"]["path"] == two[1]
    broken = make_run("nan", ["NaN"] * 9)
    assert main([broken, broken, "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_several_runs_are_each_compared_with_the_first_and_the_worst_counts(two, make_run, capsys):
    one, other = two
    third = make_run("c", [1.0], config={"global_batch_size": 4})
    assert main([one, one, other]) == 1
    assert capsys.readouterr().out.startswith("B against A: identical: 100 steps")
    fourth = make_run("d", [1.0], config={"global_batch_size": 8})
    assert main([third, fourth, third]) == 2
    assert "B against A: not comparable: global batch size 4 in A and 8 in B" in capsys.readouterr().out


REFUSED = [["nowhere", "nowhere"], ["nowhere"], ["A", "A", "--metric", "nonsense"]]


def test_what_cannot_be_compared_is_one_line_and_2(two, refuses):
    refuses(main, [([two[0] if word == "A" else word for word in words], "ezpz: ") for words in REFUSED])


def test_a_journal_of_a_later_version_is_2_too(make_run, capsys, tmp_path):
    later = make_run("later", [1.0])
    (tmp_path / "later" / "metrics.jsonl").write_text('{"v":9}\n')
    assert main([later, later]) == 2
    assert "version" in capsys.readouterr().err


def test_torn_lines_are_told_on_stderr_and_leave_json_whole(two, tmp_path, capsys):
    with (tmp_path / "a" / "metrics.jsonl").open("a") as journal:
        journal.write('{"v":1,"t"\n')
    main([*two, "--json"])
    told = capsys.readouterr()
    json.loads(told.out)
    assert "torn" in told.err


def test_a_picture_is_drawn_where_it_is_asked_for_and_nowhere_else(two, tmp_path, monkeypatch, capsys):
    drawn = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ezpz.view.pictures.save_overlay", lambda *a, **k: drawn.append((a, k)), raising=False)
    main(list(two))
    assert not drawn
    assert not (tmp_path / "outputs").exists()
    main([*two, "-o", "here"])
    (png, svg, lines), more = drawn[0]
    assert (png, svg) == (Path("here/overlay.png"), Path("here/overlay.svg"))
    assert [item.label for item in lines] == ["A a", "B b"]
    assert more == {"title": "loss", "mark": 0.0, "mark_label": "step 0"}
    assert capsys.readouterr().out.endswith("\npicture: here/overlay.png and .svg\n")
    main([*two, "-o", "here", "--no-picture"])
    assert len(drawn) == 1


def test_a_picture_that_fails_costs_a_warning_and_not_the_verdict(two, tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("no fonts")

    monkeypatch.setattr("ezpz.view.pictures.save_overlay", fail, raising=False)
    assert main([*two, "-o", str(tmp_path / "p")]) == 1
    told = capsys.readouterr()
    assert "no fonts" in told.err
    assert "picture:" not in told.out
    assert save_picture(tmp_path / "p", [], [], []) == []


@pytest.mark.slow
def test_colour_needs_a_terminal_or_a_wish_and_ascii_is_enough(two, tmp_path):
    assert "\x1b" not in verb(tmp_path, *two, TERM="xterm-256color").stdout
    assert verb(tmp_path, *two, FORCE_COLOR="1").stdout.startswith("\x1b[1;33mdifferent")
    done = verb(tmp_path, *two, PYTHONIOENCODING="ascii")
    assert done.stderr == ""
    assert "w\\xf6rld" in done.stdout
