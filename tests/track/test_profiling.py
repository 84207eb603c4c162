import os
import re
import sys
import time
from pathlib import Path

import pytest

from ezpz.errors import UsageError
from ezpz.log import get_logger
from ezpz.track import history as history_module
from ezpz.track.profiles import profiling
from ezpz.track.profiles.profiling import Trigger, profile, seconds_between_looks


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(profiling, "monotonic", clock)
    return clock


@pytest.fixture
def run_folder(monkeypatch, tmp_path):
    """The folder of a history that this process is said to have made."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setattr(history_module, "current_folder", lambda: folder, raising=False)
    return folder


@pytest.fixture
def said(monkeypatch, caplog):
    monkeypatch.setattr(get_logger("ezpz.track.profiles.profiling"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records if record.name == "ezpz.track.profiles.profiling"]


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(100))


def touch(path, text="", ago=0.0):
    path.write_text(text)
    stamp = time.time() - ago
    os.utime(path, (stamp, stamp))


def test_html_and_text_are_written_even_when_the_block_fails(tmp_path):
    def fail():
        busy(0.05)
        1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError), profile("py", outdir=tmp_path / "deep" / "profile") as prof:
        fail()
    assert [path.suffix for path in prof.files] == [".html", ".txt"]
    assert all(
        re.fullmatch(r"pyinstrument-profile-\d{4}-\d\d-\d\d-\d{6}\.(html|txt)", path.name) for path in prof.files
    )
    text = prof.files[1].read_text(encoding="utf-8")
    assert "Recorded:" in text
    assert "busy" in text
    assert "\x1b" not in text
    assert "<html" in prof.files[0].read_text(encoding="utf-8")


@pytest.mark.slow
def test_only_the_steps_of_the_window_are_sampled(tmp_path):
    def wanted():
        busy(0.05)

    def unwanted():
        busy(0.05)

    with profile("py:steps=1-2", outdir=tmp_path) as prof:
        for step in range(4):
            (wanted if step in {1, 2} else unwanted)()
            prof.step()
            assert len(prof.files) == len(list(tmp_path.iterdir())) == (2 if step >= 2 else 0)
    text = prof.files[1].read_text(encoding="utf-8")
    assert "wanted" in text
    assert "unwanted" not in text


def test_files_lie_in_the_run_folder_or_below_the_current_one(tmp_path, run_folder, monkeypatch):
    with profile("py") as prof:
        pass
    assert {path.parent for path in prof.files} == {run_folder / "profile"}
    monkeypatch.setattr(history_module, "current_folder", lambda: None, raising=False)
    with profile("py") as prof:
        pass
    assert {path.parent for path in prof.files} == {tmp_path / "profile"}


def test_profiles_of_one_second_and_of_several_ranks_do_not_overwrite_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(profiling, "strftime", lambda _: "2026-11-20-162001")
    names = []
    for rank, spec in ((0, "py:ranks=all"), (0, "py:ranks=all"), (3, "py:ranks=all"), (3, "py")):
        for name, value in {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 4}.items():
            monkeypatch.setenv(name, str(value))
        with profile(spec, outdir=tmp_path) as prof:
            prof.step()
        names += [path.name.removeprefix("pyinstrument-profile-2026-11-20-162001") for path in prof.files[1:]]
    assert names == [".txt", "-2.txt", "-rank3.txt"]  # and nothing of a rank that was not asked


def test_without_a_wish_nothing_is_imported_or_written_and_a_step_costs_nothing(run_python, tmp_path):
    code = """
import sys, time
from ezpz.track.profiles.profiling import profile
with profile() as prof:
    prof.step()
    start = time.thread_time()
    for _ in range(100_000):
        prof.step()
    cost = (time.thread_time() - start) * 10
prof.step()
assert prof.files == []
assert not {"pyinstrument", "torch", "numpy", "ezpz.log", "ezpz.track.history"} & set(sys.modules)
print(cost)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr.decode()
    assert float(done.stdout) < 10  # microseconds; 0.3 are usual
    assert list(tmp_path.iterdir()) == []


def test_the_variable_equals_the_option_and_an_argument_stands_above_it(tmp_path, monkeypatch):
    monkeypatch.setenv("EZPZ_PROFILE", "py")
    with profile(outdir=tmp_path / "a") as prof:
        pass
    assert len(prof.files) == 2
    with profile("none", outdir=tmp_path / "b") as prof:
        pass
    assert prof.files == []
    monkeypatch.setenv("EZPZ_PROFILE", "nsys")
    with pytest.raises(UsageError, match=r"'nsys' is unknown \(from EZPZ_PROFILE\)"):
        profile()


def test_a_missing_profiler_is_an_error_before_the_block_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyinstrument", None)
    with pytest.raises(UsageError, match="pyinstrument is not installed"), profile("py", outdir=tmp_path):
        pytest.fail("the block ran")


@pytest.mark.parametrize("steps", [3, 10])
def test_a_window_that_is_never_reached_is_one_line(tmp_path, said, steps):
    with profile("py:steps=10-15", outdir=tmp_path) as prof:
        for _ in range(steps):
            prof.step()
    assert prof.files == []
    (line,) = said()
    assert f"nothing was recorded: the last step was {steps - 1}, the first to be profiled 10" in line


def test_a_window_that_the_end_cuts_is_written(tmp_path, said):
    with profile("py:steps=2-9", outdir=tmp_path) as prof:
        for _ in range(5):
            busy(0.01)
            prof.step()
    assert len(prof.files) == 2
    assert "py profile of steps 2 to 4" in said()[0]


def test_a_folder_that_cannot_be_written_costs_one_line_and_no_training(tmp_path, said):
    (tmp_path / "file").write_text("")
    with profile("py:steps=0", outdir=tmp_path / "file" / "below") as prof:
        for _ in range(3):
            prof.step()
    assert prof.files == []
    assert ["no py profile" in line for line in said()] == [True]


def test_a_touched_file_starts_a_window_in_a_running_job_each_time(run_folder, clock):
    asks = run_folder / "PROFILE_NOW"
    touch(asks, "py:steps=0-1", ago=3600)  # of an earlier attempt
    with profile() as prof:
        for _ in range(3):
            clock.now += 2
            prof.step()
        assert prof.files == []
        touch(asks, "py:steps=0-1", ago=60)
        for count in (0, 0, 0, 2, 2):  # seen, acted upon, first step over, second step over
            clock.now += 1.01
            prof.step()
            assert len(prof.files) == count
        touch(asks, "py:steps=0", ago=30)
        for _ in range(5):
            clock.now += 1.01
            prof.step()
        assert len(prof.files) == 4
    assert asks.exists()
    assert {path.parent for path in prof.files} == {run_folder / "profile"}


def test_the_file_is_looked_for_once_a_second_at_most(run_folder, clock, monkeypatch):
    looks = []
    monkeypatch.setattr(Trigger, "look", lambda self, folder: looks.append(folder))
    with profile() as prof:
        for _ in range(100):
            clock.now += 0.1
            prof.step()
    assert 9 <= len(looks) <= 10


def test_a_late_wish_that_cannot_be_read_is_one_line(run_folder, clock, said):
    with profile() as prof:
        touch(run_folder / "PROFILE_NOW", "nsys please")
        for _ in range(6):
            clock.now += 1.01
            prof.step()
    assert [line.startswith("cannot profile 'nsys please'") for line in said()] == [True]


def test_a_kind_that_is_being_recorded_is_not_started_again(run_folder, clock, said):
    with profile("py") as prof:
        touch(run_folder / "PROFILE_NOW", "py")
        for _ in range(4):
            clock.now += 1.01
            prof.step()
    assert any("one is being recorded" in line for line in said())
    assert len(prof.files) == 2


def test_a_folder_that_becomes_known_late_holds_no_old_wish_against_a_run(tmp_path):
    touch(tmp_path / "PROFILE_NOW", "py", ago=100)
    trigger = Trigger()
    assert [trigger.look(None), trigger.look(tmp_path), trigger.look(tmp_path)] == [None] * 3
    touch(tmp_path / "PROFILE_NOW", "mem", ago=-5)
    assert [trigger.look(tmp_path), trigger.look(tmp_path), trigger.look(tmp_path)] == [None, "mem", None]
    (tmp_path / "PROFILE_NOW").unlink()
    assert trigger.look(tmp_path) is None


def test_a_large_job_asks_its_file_system_a_hundred_times_a_second_at_most():
    assert seconds_between_looks(0, 100_000) == seconds_between_looks(7, 8) == 1.0
    assert seconds_between_looks(7, 10_000) == 100.0


def test_a_step_outside_of_the_block_does_nothing(tmp_path):
    prof = profile("py", outdir=tmp_path)
    prof.step()
    with prof:
        pass
    prof.step()
    assert len(list(Path(tmp_path).iterdir())) == 2
