"""What is shown of attempts afterwards."""

import json

from ezpz.cli.runs import _launch_cause
from ezpz.track.launches import find_launch


def test_each_attempt_is_found_by_its_own_id_with_its_cause_and_its_decision(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "ezpz/launches/2026-11-23-221549-aaaabbbb"
    folder.mkdir(parents=True)
    first = {"attempt": 1, "launch_id": "aaaabbbb11111111", "cause": {"text": "host n02 is lost"}}
    first |= {"decision": "again", "because": "n02 is retired"}
    last = {
        "attempt": 2,
        "launch_id": "aaaabbbb22222222",
        "cause": None,
        "decision": "stop",
        "because": "it has succeeded",
    }
    record = {"launch_id": "aaaabbbb22222222", "cause": None, "attempts": [first, last], "cwd": "/here"}
    (folder / "run.json").write_text(json.dumps(record))
    assert find_launch("aaaabbbb11111111")[1]["cwd"] == "/here"
    assert _launch_cause("aaaabbbb11111111")[1] == "host n02 is lost; attempt 1, again: n02 is retired"
    assert _launch_cause("aaaabbbb22222222") == ({}, "")
    assert find_launch("aaaabbbb33333333") is None
