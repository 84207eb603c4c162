"""What is shown of attempts afterwards."""

import json

from ezpz.records.launch_record import Failure
from ezpz.track.launches import find_launch, launch_cause
from ezpz.track.run_reader import open_run
from ezpz.view.report import build_page


def test_each_attempt_is_found_by_its_own_id_with_its_cause_and_its_decision(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "ezpz/launches/2026-11-23-221549-aaaabbbb"
    folder.mkdir(parents=True)
    first = {"attempt": 1, "launch_id": "aaaabbbb11111111", "cause": {"text": "host n02 is lost"}}
    first |= {"decision": "again", "because": "n02 is retired", "hosts": ["n01", "n02"]}
    last = {
        "attempt": 2,
        "launch_id": "aaaabbbb22222222",
        "cause": None,
        "decision": "stop",
        "because": "it has succeeded",
    }
    record = {"launch_id": "aaaabbbb22222222", "cause": None, "attempts": [first, last], "cwd": "/here"}
    (folder / "run.json").write_text(json.dumps(record))
    assert find_launch("aaaabbbb11111111")[1].cwd == "/here"
    assert launch_cause("aaaabbbb11111111")[1] == "host n02 is lost; attempt 1 on n01, n02, again: n02 is retired"
    assert launch_cause("aaaabbbb22222222") == (Failure(), "")
    assert find_launch("aaaabbbb33333333") is None


def test_the_report_lists_the_attempts_of_the_launch_where_there_are_several(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "state/ezpz/launches/2026-11-23-221549-aaaabbbb"
    folder.mkdir(parents=True)
    hosts = [f"n{number:02}" for number in range(1, 13)]
    first = {"attempt": 1, "launch_id": "aaaabbbb11111111", "hosts": hosts, "exit_code": 125}
    first |= {"cause": {"text": "host n02 is <lost>"}, "decision": "again", "because": "n02 is retired"}
    last = {"attempt": 2, "launch_id": "aaaabbbb22222222", "hosts": ["n01", "n03"], "exit_code": 0, "cause": None}
    last |= {"decision": "stop", "because": "it has succeeded"}
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"name": "x", "launch": {"launch_id": "aaaabbbb22222222"}}))

    def page(rows):
        (folder / "run.json").write_text(json.dumps({"launch_id": "aaaabbbb22222222", "attempts": rows}))
        return build_page(open_run(run))

    shown = page([first, last])
    assert "n07, n08 and 4 more</td>" in shown
    for text in ("host n02 is &lt;lost&gt;", "again: n02 is retired", "n01, n03</td>", "stop: it has succeeded"):
        assert text in shown
    assert "attempt of the launch" not in page([{**last, "attempt": 1}])
    assert "attempt of the launch" not in page("nonsense")
