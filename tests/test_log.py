"""Log lines: their shape, who speaks, where colour goes, and the files of ranks."""

import logging
import os
import pty
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import ezpz
from ezpz import log
from ezpz.errors import UsageError
from lab.process import wait_until

LINE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\]\[([DIWEC])\]\[([\w/.<>-]+):(\d+)\] (.*)")
VARIABLES = ("LOG_LEVEL", "EZPZ_LOG_LEVEL", "EZPZ_LOG_DIR", "EZPZ_LOG_FILES", "NO_COLOR", "FORCE_COLOR")
ALL_RANKS = ("EZPZ_LOG_ALL_RANKS", "LOG_FROM_ALL_RANKS", "EZPZ_LOG_FROM_ALL_RANKS")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    for name in (*VARIABLES, *ALL_RANKS, "RANK", "WORLD_SIZE", "LOCAL_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    # A process keeps its loggers and who it is until its end; each test here is a process of its own to them.
    before = dict(log._consoles)
    monkeypatch.setattr(log, "_who", None)
    yield
    log.log_to(None)
    for name in log._consoles.keys() - before.keys():
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
        del log._consoles[name]


def be(monkeypatch, rank, world=4):
    for name, value in (("RANK", rank), ("WORLD_SIZE", world), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", world)):
        monkeypatch.setenv(name, str(value))


def speak(logger):
    for name in ("debug", "info", "warning", "error"):
        getattr(logger, name)(name)


def heard(capsys):
    return [line.rpartition("] ")[2] for line in capsys.readouterr().out.splitlines()]


def test_a_line_names_its_time_its_level_and_the_file_that_speaks(capsys):
    logger = ezpz.get_logger("any.name")
    logger.info("step %d", 3)
    level, source, number, text = LINE.fullmatch(capsys.readouterr().out.rstrip("\n")).groups()
    assert (level, source, text) == ("I", __name__.replace(".", "/"), "step 3")
    assert int(number) == test_a_line_names_its_time_its_level_and_the_file_that_speaks.__code__.co_firstlineno + 2


def test_a_script_speaks_by_its_own_name_and_a_module_by_its_packages(run_cli, tmp_path):
    (tmp_path / "pack").mkdir()
    for path in ("train.py", "pack/tool.py"):
        (tmp_path / path).write_text("import ezpz, multiprocessing\nezpz.get_logger(__name__).info('hello')\n")
    for how, source in ((["train.py"], "train"), (["-m", "pack.tool"], "pack/tool")):
        done = run_cli([sys.executable, *how], cwd=tmp_path)
        assert LINE.fullmatch(done.stdout.strip()).groups() == ("I", source, "2", "hello"), done.stderr


SPEAKERS = [
    (0, {}, {}, ["info", "warning", "error"]),
    (3, {}, {}, ["warning", "error"]),
    (3, {"EZPZ_LOG_LEVEL": "ERROR"}, {}, ["error"]),
    (0, {"EZPZ_LOG_LEVEL": "debug"}, {}, ["debug", "info", "warning", "error"]),
    (0, {"LOG_LEVEL": "WARNING"}, {}, ["warning", "error"]),
    (0, {"LOG_LEVEL": "WARNING", "EZPZ_LOG_LEVEL": "ERROR"}, {}, ["error"]),
    (0, {"LOG_LEVEL": "verbose of another program"}, {}, ["info", "warning", "error"]),
    (0, {"EZPZ_LOG_LEVEL": "ERROR"}, {"level": "INFO"}, ["info", "warning", "error"]),
    (0, {}, {"level": 30}, ["warning", "error"]),
    (3, {}, {"level": "DEBUG"}, ["warning", "error"]),
    (3, {}, {"rank_zero_only": False}, ["info", "warning", "error"]),
    (3, {}, {"rank": 0}, ["info", "warning", "error"]),
    (0, {}, {"rank": 2}, ["warning", "error"]),
    *((3, {name: "1"}, {}, ["info", "warning", "error"]) for name in ALL_RANKS),
    (3, {ALL_RANKS[0]: "0"}, {}, ["warning", "error"]),
]


def test_who_speaks_from_which_level_on(subtests, monkeypatch, capsys):
    for number, (rank, settings, keywords, expected) in enumerate(SPEAKERS):
        with subtests.test(rank=rank, settings=settings, keywords=keywords), monkeypatch.context() as patch:
            be(patch, rank)
            for name, value in settings.items():
                patch.setenv(name, value)
            speak(ezpz.get_logger(f"case {number}", **keywords))
            assert heard(capsys) == expected


def test_other_ranks_say_which_they_are(monkeypatch, capsys):
    be(monkeypatch, 3)
    ezpz.get_logger("case").warning("low memory")
    assert capsys.readouterr().out.endswith("] [rank=3] low memory\n")


def test_under_a_bare_mpiexec_the_rank_is_known_before_setup_torch(monkeypatch, capsys):
    for name, value in (("PMI_RANK", 2), ("PMI_SIZE", 4), ("MPI_LOCALRANKID", 2), ("MPI_LOCALNRANKS", 4)):
        monkeypatch.setenv(name, str(value))
    speak(ezpz.get_logger("case"))
    assert heard(capsys) == ["warning", "error"]


def test_a_logger_made_before_the_rank_was_known_follows_it(monkeypatch, capsys):
    logger = ezpz.get_logger("early")
    logger.info("here I am the only one")
    be(monkeypatch, 3)
    logger.info("not a second time")
    logger.warning("but this")
    assert [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "here I am the only one",
        "[rank=3] but this",
    ]
    assert not logger.isEnabledFor(logging.INFO)


def test_ranks_that_contradict_themselves_are_heard(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "3")  # and no WORLD_SIZE: setup_torch refuses that
    ezpz.get_logger("case").info("still here")
    assert heard(capsys) == ["still here"]


def test_an_unknown_level_names_its_source(monkeypatch):
    with pytest.raises(UsageError, match=r"unknown log level 'LOUD' \(from get_logger\)"):
        ezpz.get_logger("case", "LOUD")
    monkeypatch.setenv("EZPZ_LOG_LEVEL", "LOUD")
    with pytest.raises(UsageError, match=r"unknown log level 'LOUD' \(from EZPZ_LOG_LEVEL\)"):
        ezpz.get_logger("case")


def test_asking_twice_gives_one_handler_and_one_line(capsys):
    first, second = ezpz.get_logger("twice"), ezpz.get_logger("twice")
    ezpz.get_logger("twice.child").info("child")
    second.info("parent")
    assert first is second
    assert len(first.handlers) == 1
    assert heard(capsys) == ["child", "parent"]


def test_what_was_asked_for_and_what_the_user_set_stays(capsys):
    logger = ezpz.get_logger("kept", "ERROR")
    ezpz.get_logger("kept")
    speak(logger)
    logger.setLevel("CRITICAL")
    ezpz.get_logger("kept")
    speak(logger)
    ezpz.get_logger("kept", "WARNING")
    speak(logger)
    assert heard(capsys) == ["error", "warning", "error"]


def test_the_root_logger_and_the_loggers_of_others_are_left_alone(capsys):
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    handler = logging.StreamHandler(sys.stdout)
    root.addHandler(handler)  # as a program's basicConfig does
    try:
        for name in ("", "root", "case"):
            ezpz.get_logger(name).info("once")
    finally:
        root.removeHandler(handler)
    assert heard(capsys) == ["once"] * 3
    assert (root.handlers, root.level) == before


def test_caplog_hears_a_logger_that_is_told_to_propagate(monkeypatch, caplog):
    logger = ezpz.get_logger("case")
    monkeypatch.setattr(logger, "propagate", True)
    with caplog.at_level("INFO"):
        logger.info("for the test")
    assert caplog.messages == ["for the test"]


def test_a_line_that_stdout_cannot_encode_is_escaped_and_never_lost(run_cli, clean_env):
    code = "import ezpz; ezpz.get_logger().info('loss \\u2198')"
    done = run_cli([sys.executable, "-c", code], {**clean_env, "PYTHONIOENCODING": "ascii"})
    assert done.stdout.endswith("loss \\u2198\n"), done
    assert done.stderr == ""


def test_a_reader_that_went_away_ends_neither_the_program_nor_the_silence(tmp_path, clean_env):
    code = "import ezpz, sys\nlog = ezpz.get_logger()\nfor i in range(9000): log.info('line')\n"
    code += "print('done', file=sys.stderr)"
    line = f'{sys.executable} -c "$CODE" | head -1 > {tmp_path}/out'
    done = subprocess.run(
        ["bash", "-c", line], check=False, env={**clean_env, "CODE": code}, capture_output=True, text=True, timeout=60
    )
    assert "done" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_tracebacks_lines_follow(capsys):
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        ezpz.get_logger("case").exception("no step")
    assert capsys.readouterr().out.splitlines()[-1] == "ZeroDivisionError: division by zero"


SPEAK = [sys.executable, "-c", "import ezpz; ezpz.get_logger().warning('hello')"]


def test_a_pipe_gets_escapes_only_when_forced(run_cli, clean_env):
    for name, value in (("TERM", "xterm-256color"), ("FORCE_COLOR", "1"), ("NO_COLOR", "1")):
        assert ("\x1b" in run_cli(SPEAK, {**clean_env, name: value}).stdout) == (name == "FORCE_COLOR")


RANK_OF_OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}  # its ranks have terminals of their own, also where mpiexec writes to a file


def test_a_terminal_gets_colour_unless_forbidden(clean_env):
    for variables in ({}, {"NO_COLOR": "1"}, RANK_OF_OPEN_MPI):
        main, terminal = pty.openpty()
        subprocess.run(SPEAK, env={**clean_env, **variables}, stdout=terminal, stderr=terminal, check=True, timeout=60)
        text = os.read(main, 4096).decode()
        os.close(terminal)
        os.close(main)
        assert ("\x1b[" in text) == (not variables)
        assert LINE.fullmatch(re.sub(r"\x1b\[[\d;]*m", "", text).strip())


def test_values_of_others_are_visible_in_lines_of_ezpz_and_the_programs_own_lines_pass(capsys):
    text = "a\x1b[2J\u202eb\n\x1b[31mred\x1b[0m"
    log.get_logger("ezpz.some.module").warning(text)
    log.get_logger("mine").warning(text)
    ours, own = capsys.readouterr().out.split("[W]")[1:]
    assert "a\\x1b[2J\\u202eb\n\x1b[31mred\x1b[0m\n" in ours
    assert text in own


def test_colour_follows_the_keyword(capsys):
    ezpz.get_logger("case", colored_logs=True).info("red")
    assert "\x1b[" in capsys.readouterr().out
    ezpz.get_logger("case", colored_logs=False).info("plain")
    assert "\x1b[" not in capsys.readouterr().out


def test_a_ranks_file_begins_with_what_led_to_its_first_warning(monkeypatch, tmp_path, capsys):
    be(monkeypatch, 3)
    before = ezpz.get_logger("before")
    path = log.log_to(tmp_path / "logs")
    after = ezpz.get_logger("after")
    before.info("epoch 1")
    after.info("epoch 2")
    assert not (tmp_path / "logs").exists()
    before.warning("loss is nan")
    after.info("epoch 3")
    assert path == f"{tmp_path}/logs/rank-0003.log"
    lines = (tmp_path / "logs" / "rank-0003.log").read_text().splitlines()
    assert [LINE.fullmatch(line)[4] for line in lines] == ["epoch 1", "epoch 2", "loss is nan", "epoch 3"]
    assert heard(capsys) == ["[rank=3] loss is nan".partition("] ")[2]]


def test_every_line_goes_to_the_file_at_once_when_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("EZPZ_LOG_FILES", "all")
    monkeypatch.setenv("EZPZ_LOG_DIR", str(tmp_path))
    ezpz.get_logger("case").info("first")
    assert (tmp_path / "rank-0000.log").read_text().endswith("first\n")


def test_the_users_folder_stands_above_the_programs(monkeypatch, tmp_path):
    monkeypatch.setenv("EZPZ_LOG_DIR", str(tmp_path / "users"))
    assert log.log_to(tmp_path / "programs") == f"{tmp_path}/users/rank-0000.log"


def test_only_the_last_thousand_lines_before_a_warning_are_kept(tmp_path):
    logger = ezpz.get_logger("case")
    path = log.log_to(tmp_path)
    for step in range(1200):
        logger.info("step %d", step)
    logger.warning("now")
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "[… 200 earlier lines were not kept]"
    assert len(lines) == 1002
    assert lines[1].endswith("step 200")


def test_a_large_world_has_a_folder_per_thousand_ranks(monkeypatch, tmp_path):
    be(monkeypatch, 3412, 8192)
    assert log.log_to(tmp_path) == f"{tmp_path}/rank-3000-3999/rank-3412.log"


def test_the_file_is_that_of_the_rank_that_this_process_turns_out_to_be(monkeypatch, tmp_path):
    logger = ezpz.get_logger("case")
    log.log_to(tmp_path)
    be(monkeypatch, 2)
    logger.warning("here")
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0002.log"]


def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path, capsys):
    (tmp_path / "logs").write_text("a file is in the way")
    logger = ezpz.get_logger("case")
    log.log_to(tmp_path / "logs")
    logger.warning("one")
    logger.warning("two")
    told = capsys.readouterr()
    assert [line.rpartition("] ")[2] for line in told.out.splitlines()] == ["one", "two"]
    assert re.fullmatch(r"ezpz: no log file of rank 0: cannot write .*/logs/rank-0000.log: .+\n", told.err)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_costs_one_line(monkeypatch, tmp_path, capsys):
    (tmp_path / "rank-0000.log").symlink_to("/dev/full")
    logger = ezpz.get_logger("case")
    log.log_to(tmp_path)
    logger.warning("one")
    logger.warning("two")
    log.log_to(None)
    told = capsys.readouterr()
    assert told.out.count("\n") == 2
    assert told.err.count("No space left") == 1


def test_nothing_is_configured_and_no_file_made_by_an_import(run_cli, tmp_path, clean_env):
    code = "import logging, ezpz.log; assert not logging.root.handlers; "
    code += "assert 'ezpz' not in logging.Logger.manager.loggerDict"
    folder = tmp_path / "logs"
    done = run_cli([sys.executable, "-c", code], {**clean_env, "EZPZ_LOG_DIR": str(folder), "EZPZ_LOG_FILES": "all"})
    assert done.returncode == 0, done.stderr
    assert not folder.exists()


# Lines that a thread writes


class Stream:
    """Notes what is written, and by which thread."""

    encoding = "utf-8"

    def __init__(self):
        self.lines, self.threads = [], set()

    def write(self, text):
        self.lines.append(text.rpartition("] ")[2].strip())
        self.threads.add(threading.current_thread().name)

    def flush(self):
        pass


class StuckStream(Stream):
    """Whoever writes to it waits."""

    def __init__(self):
        super().__init__()
        self.stuck, self.go_on = threading.Event(), threading.Event()

    def write(self, text):
        self.stuck.set()
        assert self.go_on.wait(60)
        super().write(text)


def writers():
    """Return the threads that write lines later."""
    return [thread for thread in threading.enumerate() if thread.name == "ezpz-lines"]


def test_later_lines_are_written_by_a_thread(monkeypatch):
    with log.LaterLines(ezpz.get_logger("later")) as lines:
        lines.put(lambda: "one")
        monkeypatch.setattr(sys, "stdout", stream := Stream())
        lines.put(lambda: "two")
        wait_until(lambda: stream.lines[-1:] == ["two"], 60, "the lines", every=0.005)
        assert stream.threads == {"ezpz-lines"}


def test_a_later_line_has_the_time_and_the_file_of_who_said_it(monkeypatch, capsys):
    records, logger = [], ezpz.get_logger("later")
    logger.addFilter(lambda record: records.append(record) or True)
    with log.LaterLines(logger) as lines:
        monkeypatch.setattr(log, "time", lambda: 1763000000.25)
        lines.put(lambda: "three")
    assert (records[0].created, records[0].msecs) == (1763000000.25, 250.0)
    assert LINE.match(capsys.readouterr().out)[2] == "test_log"


def test_whoever_says_a_line_writes_first_what_waits(capsys, monkeypatch):
    monkeypatch.setattr(log, "_EVERY", 60.0)
    other = ezpz.get_logger("others")
    with log.LaterLines(ezpz.get_logger("later")) as lines:
        lines.put(lambda: "one")
        lines.put(lambda: "two")
        assert heard(capsys) == []
        other.info("three")
        lines.put(lambda: "four")
        ezpz.get_logger("later").warning("five")
        lines.put(lambda: "six")
    assert heard(capsys) == ["one", "two", "three", "four", "five", "six"]


def test_a_rank_that_does_not_speak_formats_nothing(monkeypatch, capsys):
    be(monkeypatch, 1)
    with log.LaterLines(ezpz.get_logger("later")) as lines:
        lines.put(lambda: 1 / 0)
        assert writers() == []
    assert heard(capsys) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_breaks_loses_no_later_line(capsys, monkeypatch):
    monkeypatch.setattr(log.LaterLines, "_run", lambda self: 1 / 0)
    with log.LaterLines(ezpz.get_logger("later")) as lines:
        lines.put(lambda: "one")
        wait_until(lambda: writers() == [], 60, "the end of the thread")
        lines.put(lambda: "two")
        assert heard(capsys) == ["one", "two"]


def test_a_stream_that_is_stuck_delays_nobody_who_asks_for_that(monkeypatch):
    monkeypatch.setattr(log, "_EVERY", 60.0)
    with log.LaterLines(ezpz.get_logger("later")) as lines:
        lines.put(lambda: "one")
        monkeypatch.setattr(sys, "stdout", stream := StuckStream())
        thread = threading.Thread(target=ezpz.get_logger("later").warning, args=("stuck",))
        thread.start()
        assert stream.stuck.wait(60)
        log.write_later_lines(0.01)
        assert stream.lines == []
        stream.go_on.set()
        thread.join(60)
    assert stream.lines == ["one", "stuck"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(3)", 3), ("raise ValueError('no')", 1), ("os.kill(os.getpid(), 15)", -15)]
)
def test_a_child_repeats_no_later_line_and_an_end_loses_none(run_cli, clean_env, end, code):
    script = f"""
        import os, sys, ezpz
        from ezpz import log
        log._EVERY = 0.3
        logger = ezpz.get_logger("later")
        with log.LaterLines(logger) as lines:
            lines.put(lambda: "one")
            if not os.fork():
                lines.put(lambda: "of the child")
                lines.write()
                os._exit(0)
            os.wait()
            lines.put(lambda: "two")
            {"import time; time.sleep(1)" if code == -15 else ""}
            {end}
    """
    done = run_cli([sys.executable, "-c", textwrap.dedent(script)], clean_env)
    assert done.returncode == code
    assert [text.rpartition("] ")[2] for text in done.stdout.splitlines()] == ["one", "of the child", "two"]
