"""A verb in this process: for words that are refused, or answered, before anything is started."""

import os
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from ezpz.cli import main


@pytest.fixture
def in_process(clean_env, tmp_path, monkeypatch, capsys):
    """`in_process(words, environ)` -> CompletedProcess of ``ezpz WORDS`` in tmp_path, without a process."""
    monkeypatch.chdir(tmp_path)

    def run(words, environ=None):
        capsys.readouterr()
        with mock.patch.dict(os.environ, {**clean_env, "COLUMNS": "80", **(environ or {})}, clear=True):
            try:
                code = main([str(word) for word in words])
            except SystemExit as left:
                code = left.code
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return run


@pytest.fixture
def refuses(tmp_path, monkeypatch, capsys, subtests):
    """`refuses(main, rows)` tries each row of (words, what is said): exit code 2, one line, and no file but "asked"."""
    if tmp_path not in Path.cwd().parents:
        monkeypatch.chdir(tmp_path)

    def files():
        return sorted(path for path in tmp_path.rglob("*") if path.name != "asked")

    def check(main, rows):
        before = files()
        for words, said in rows:
            with subtests.test(str(words)):
                assert main(words) == 2
                told = capsys.readouterr()
                assert (told.out, told.err.count("\n")) == ("", 1), told.err
                assert said in told.err
                assert files() == before

    return check
