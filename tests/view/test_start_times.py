"""Start and stop times in tables and logs of others: midnight, ends of months, and differences that are no seconds."""

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from ezpz.view.foreign.start_times import read_start_times

TABLE = """
Some words | with a bar.

> |      log     | **model_size** | **world_size** |     **start**     |     **stop**      | **t0** | **t1** | **dt** |
> |:------------:|:--------------:|:--------------:|:-----------------:|:-----------------:|:------:|:------:|:------:|
> |   `a.log`    |    GPT1T_1L    |       8        | 2023-10-15-185952 | 2023-10-15-190046 | 185952 | 190046 |  4094  |
> |   `b.log`    |    GPT1T_1L    |       16       | 2023-10-31-235930 | 2023-11-01-000015 | 235930 |   15   | -5985  |
> |   `c.log`    |    GPT1T_1L    |       16       | 2023-10-31-120000 | 2023-10-31-120030 | 120000 | 120030 |   30   |
> |   `d.log`    |    GPT1T_1L    |       16       |        no         | 2023-10-31-120030 |        |        |        |
> |   `e.log`    |    GPT1T_1L    |       16       | 2023-10-31-120000 | 2023-10-31-115959 |        |        |        |
"""
LOG = """
Job started at: 2023-11-02-183323 on x3004c0s13b0n0
[2023-11-02 18:34:10,000] loading
[2023-11-02 18:34:13,122] [INFO] [logging.py:96:log_dist] [Rank 0] step=0, skipped=0, lr=[0.0, 0.0]
[2023-11-02 18:34:14,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=1, skipped=0, lr=[0.0, 0.0]
Job started at: 2023-11-02-184240 on x3015c0s37b0n0
Job started at: 2023-11-30-235959 on x3015c0s37b0n0
[2023-12-01 00:00:23,385] [Rank 0] step=0, skipped=0
"""


def test_rows_of_a_table_are_seconds_and_not_differences_of_digits():
    rows, unusable = read_start_times(TABLE, "x")
    assert {row.kind for row in rows} == {"table"}
    assert [(row.name, row.world, row.seconds, row.given) for row in rows] == [
        ("a.log", "8", 54.0, 4094.0),
        ("b.log", "16", 45.0, -5985.0),
        ("c.log", "16", 30.0, 30.0),
    ]
    assert [row.lines for row in rows] == [(6,), (7,), (8,)]
    assert unusable == [
        (9, "no time: 'no'"),
        (10, "ends before it starts: 2023-10-31-120000 to 2023-10-31-115959"),
    ]


def test_a_log_holds_one_start_after_the_other_or_begins_with_its_first_time():
    rows, _ = read_start_times(LOG, "job.log")
    assert {row.kind for row in rows} == {"log"}
    assert [(row.name, row.seconds, row.lines) for row in rows] == [
        ("job.log", 50.122, (2, 4)),
        ("job.log:6", None, (6,)),
        ("job.log:7", 24.385, (7, 8)),
    ]
    log = "[2026-11-20 23:59:58.500][I] 2 ranks\n[2026-11-21 00:00:01.000][I] iter=0 loss=2.3\n"
    [row] = read_start_times(log, "x")[0]
    assert (row.seconds, row.lines) == (2.5, (1, 2))


def test_a_time_of_day_at_the_beginning_of_a_line_is_after_the_start():
    """As lines of ezpz itself have it."""
    logs = {
        "Job started at: 2025-01-02-100000\n10:00:41 iter=0 loss=2.3024\n": 41,
        "Job started at: 2025-01-02-235958\n[00:00:41.500] step=0 loss=2.3024\n": 43.5,
        "Job started at: 2025-01-02-100000\n10:00 iter=0 loss=2.3024\n": None,
        "Job started at: 2025-01-02-100000\n99:99:99 iter=0\n": None,
        "Job started at: 2025-01-02-100000\nepoch of 10:00:41 iter=0\n": None,
    }
    assert {log: read_start_times(log, "x")[0][0].seconds for log in logs} == logs
    assert read_start_times("10:00:00 2 ranks\n10:00:41 iter=0\n", "x")[0] == []


def test_midnight_and_ends_of_months_and_years_are_right():
    expected = {
        "23:59:58,00:00:03": 5,
        "235958,3": 5,
        "72717,73131": 254,
        "1717,2124": 247,
        "2024-02-28 23:59:59,2024-02-29 00:00:01": 2,
        "2023-02-28T23:59:59,2023-03-01T00:00:01": 2,
        "2026/12/31 23:59:00.250,2027/01/01 00:00:00.750": 60.5,
        "20261231-235900,20261231-235901": None,
    }
    read = {span: read_start_times(f"name,start,stop\nx,{span}\n", "x")[0] for span in expected}
    assert {span: rows[0].seconds if rows else None for span, rows in read.items()} == expected


@given(st.integers(631152000, 3786912000), st.integers(0, 86399), st.booleans())
def test_any_two_times_give_their_seconds(when, seconds, dated):
    start = dt.datetime.fromtimestamp(when, dt.timezone.utc)
    form = "%Y-%m-%d-%H%M%S" if dated else "%H:%M:%S"
    stop = start + dt.timedelta(seconds=seconds)
    text = f"| start | stop |\n|---|---|\n| {start:{form}} | {stop:{form}} |\n"
    [row] = read_start_times(text, "x")[0]
    assert row.seconds == seconds


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=400))
def test_any_other_text_is_no_error(text):
    read_start_times(text, "x")
    read_start_times(f"| start | stop |\n{text}\n{LOG[:200]}", "x")
