import sys

import pytest

from ezpz.errors import UsageError
from ezpz.train import print_timing, profile


def test_a_profile_is_written_as_html_and_text_even_when_the_block_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), profile(tmp_path / "deep" / "profile") as files:
        1 / 0  # noqa: B018
    assert [path.suffix for path in files] == [".html", ".txt"]
    assert "Recorded:" in files[1].read_text(encoding="utf-8")


def test_without_the_switch_nothing_is_imported_or_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyinstrument", None)
    with profile(tmp_path, enabled=False) as files:
        pass
    assert files == list(tmp_path.iterdir()) == []


def test_a_missing_profiler_is_an_error_before_the_block_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyinstrument", None)
    with pytest.raises(UsageError, match="pyinstrument is not installed"), profile(tmp_path):
        pytest.fail("the block ran")


def test_the_first_step_stands_apart_from_median_p95_and_max(capsys):
    print_timing({"dt": [9.0, 1.0, 2.0, 3.0]})
    row = next(line for line in capsys.readouterr().out.splitlines() if "dt" in line)
    assert [float(word) for word in row.replace("│", " ").split()[1:]] == [9.0, 2.0, 2.9, 3.0]
    print_timing({"dt": [9.0]})
    assert capsys.readouterr().out.count("9.000000") == 4
