"""A verb in this process: for words that are refused, or answered, before anything is started."""

import os
import subprocess
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
