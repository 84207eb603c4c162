"""Secrets of every form are taken out of what is kept of a run; harmless words stay as they are."""

import json
from pathlib import Path
from time import process_time

from ezpz.redact import HIDDEN, redact_argv, redact_config, redact_text

HERE = Path(__file__).parent
# What stands for a secret in the data files, so that none of them holds a text that a scanner takes for a real one.
PIECES = {
    "{q}": "q9z",
    "{n}": "56712",
    "{S}": "Zq7Xw2Lp9Rt4Vb6Nm1Kc8Jd5Hs3Gf0Ty2U",
    "{U}": "ZQ7XW2LP9RT4VB6N",
    "{H}": "9c1e5a7d3b0f8264" * 2 + "9c1e5a7d",
    "{P}": "Zq7Xw2Lp9Rt4Vb6Nm1Kc8Jd5Hs3Gf0Ty2U%2FZq7Xw2Lp9Rt4Vb6Nm1Kc8Jd5Hs3Gf0Ty2U%2B",
}


def filled(value):
    if isinstance(value, str):
        for piece, text in PIECES.items():
            value = value.replace(piece, text)
        return value
    if isinstance(value, list):
        return [filled(item) for item in value]
    if isinstance(value, dict):
        return {filled(key): filled(item) for key, item in value.items()}
    return value


def forms(name):
    """Every line of a file, and what is given there, a dict."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) > 100
    return [(line, filled(json.loads(line))) for line in lines]


def redacted(case):
    environ = case.get("environ", {})
    if "argv" in case:
        return case["argv"], redact_argv(case["argv"], environ)
    if "config" in case:
        return case["config"], redact_config(case["config"], "", environ)
    return case["text"], redact_text(case["text"], environ)


def test_no_secret_is_left(subtests):
    for line, case in forms("secret_forms.jsonl"):
        with subtests.test(line):
            given, shown = redacted(case)
            text = json.dumps(shown)
            for piece in [*PIECES.values(), case.get("gone", "q9z")]:
                assert piece not in text, f"{given} -> {shown}"
            assert HIDDEN in text
            again = {**case, next(iter(case)): shown}
            assert shown == redacted(again)[1]  # what is read back and kept again stays the same


def test_what_is_harmless_stays(subtests):
    for line, case in forms("harmless_forms.jsonl"):
        with subtests.test(line):
            given, shown = redacted(case)
            assert shown == case.get("changed", given)


def test_no_text_takes_long(subtests):
    for piece in ("sk-a", "a.", "token ", "token='", "token=[", "http://a:b@", 'token="\\'):
        with subtests.test(piece):
            begun = process_time()
            redact_text(piece * (10000 // len(piece)), {})
            assert process_time() - begun < 5.0  # 0.1 s; a pattern that tries everything would take years
