"""Fetching from mirrors on this host: good ones, bad ones, none, and many processes at once."""

import os
import socket
import subprocess
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path

import pytest
from mirror import Mirror, dataset, tiny_mnist

import ezpz
from ezpz.errors import UsageError
from ezpz.train import fetch
from ezpz.train.data import download
from ezpz.train.data.download import DownloadError, Patience, obtain

FILES = {"first.gz": os.urandom(300_000), "second.gz": b"short"}


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Mirror(FILES) as served:
        yield served


@pytest.fixture
def known(monkeypatch, mirror):
    """`known("bad", "good")` puts a data set `tiny` into the catalog, with such mirrors in this order."""

    def known(*kinds):
        value = dataset("tiny", FILES, *(mirror.url(kind) for kind in kinds))
        monkeypatch.setitem(download.CATALOG, "tiny", value)
        return value

    return known


@pytest.fixture
def patient(monkeypatch):
    """`patient(attempt=1.0, …)` makes a fetch wait so long, and gives what counts its time."""

    def patient(**how):
        value = Patience(**how)
        monkeypatch.setattr(download, "Patience", lambda **_: value)
        return value

    return patient


def names(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_what_is_fetched_is_complete_and_nothing_else_is_left(known, mirror, tmp_path):
    known("good")
    seen = []
    place = fetch("tiny", tmp_path, progress=lambda *told: seen.append(told))
    assert place == tmp_path / "tiny"
    assert {name: (place / name).read_bytes() for name in FILES} == FILES
    assert names(tmp_path) == sorted(FILES)
    assert seen[-1] == ("second.gz", 5, 5)
    fetch("tiny", tmp_path)
    assert mirror.asked == ["/good/first.gz", "/good/second.gz"]  # and not again


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("absent", "404"),
        ("cut", "ended after 150000 bytes|broke off"),
        ("other", "has sha256 0{0}[0-9a-f]{64} instead of"),
        ("longer", "has 300001 bytes instead of 300000"),
        ("untold", "went on after 300000"),
    ],
)
def test_a_bad_mirror_is_followed_by_the_next(known, mirror, tmp_path, kind, reason):
    known(kind, "good")
    assert (fetch("tiny", tmp_path) / "first.gz").read_bytes() == FILES["first.gz"]
    assert mirror.asked[:2] == [f"/{kind}/first.gz", "/good/first.gz"]
    known(kind)
    with pytest.raises(DownloadError, match=reason) as caught:
        fetch("tiny", tmp_path / "second")
    assert "\n" not in str(caught.value)
    assert names(tmp_path / "second") == []  # neither a part nor a lock


@pytest.mark.slow
def test_mirrors_that_hang_are_left_in_short_time(known, patient, tmp_path):
    known("silent", "stuck", "good")
    patience = patient(attempt=1.0, total=60)
    fetch("tiny", tmp_path)
    assert names(tmp_path) == sorted(FILES)
    assert 1.5 < patience.lost < 60


def test_without_an_answer_patience_ends_for_all_mirrors_together(known, mirror, patient, tmp_path):
    known(*["silent"] * 20)
    patient(attempt=0.2, total=0.5)
    with pytest.raises(DownloadError, match=r"no answer within 0\.2 s.*was not tried: no time left"):
        fetch("tiny", tmp_path)
    assert len(mirror.asked) <= 3
    assert Patience().total <= 10


def test_a_name_that_takes_long_to_resolve_does_not_hold_a_run(known, patient, monkeypatch, tmp_path):
    known("good")
    is_over, resolved = threading.Event(), []

    def resolve(*_, **__):
        resolved.append(is_over.wait(60))
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    patient(attempt=0.2, total=0.3)
    try:
        with pytest.raises(DownloadError, match="no answer"):
            fetch("tiny", tmp_path)
        assert not resolved
    finally:
        is_over.set()


def test_a_mirror_that_drips_is_left(known, patient, monkeypatch, tmp_path):
    known("slow")
    patient(attempt=0.6)  # of 0.8 s that it drips: time to begin in, on a busy machine
    monkeypatch.setattr(download, "_SLOWEST", 10_000_000)
    with pytest.raises(DownloadError, match=r"gives only [0-9]+ bytes per second"):
        fetch("tiny", tmp_path)


def test_a_run_does_not_wait_for_a_download_without_end(known, patient, tmp_path):
    some = known("slow")
    patient(until=time.monotonic() + 1.0)
    with pytest.raises(DownloadError, match="in the time that a run waits"):
        obtain(some, tmp_path, may_download=True)


def test_no_mirror_at_all_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Mirror({}) as gone:
        url = gone.url("good")
    monkeypatch.setitem(download.CATALOG, "tiny", dataset("tiny", FILES, url))
    with pytest.raises(DownloadError, match="Connection refused"):
        fetch("tiny", tmp_path)


def test_proxies_of_the_environment_are_used(known, mirror, monkeypatch, tmp_path):
    url = "http://no-such-host.invalid/good/"
    monkeypatch.setitem(download.CATALOG, "tiny", dataset("tiny", FILES, url))
    monkeypatch.setenv("http_proxy", mirror.url("").rstrip("/"))
    fetch("tiny", tmp_path)
    assert names(tmp_path) == sorted(FILES)
    assert mirror.asked == [f"{url}first.gz", f"{url}second.gz"]  # a proxy sees whole addresses


def test_wrong_files_are_replaced_by_fetch_and_right_ones_kept(known, mirror, tmp_path):
    known("good")
    place = tmp_path / "tiny"
    place.mkdir()
    (place / "first.gz").write_bytes(b"rubbish")
    (place / "second.gz").write_bytes(FILES["second.gz"])
    fetch("tiny", tmp_path)
    assert (place / "first.gz").read_bytes() == FILES["first.gz"]
    assert mirror.asked == ["/good/first.gz"]


def test_a_corrupt_or_cut_file_is_an_error_for_a_run_and_not_replaced(subtests, known, mirror, tmp_path):
    for content in (FILES["first.gz"][:1000], bytes(300_000), b""):
        with subtests.test(size=len(content)):
            some = known("good")
            path = tmp_path / "tiny" / "first.gz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            with pytest.raises(UsageError) as caught:
                obtain(some, tmp_path, may_download=True)
            told = str(caught.value)
            for part in (
                str(path),
                sha256(content).hexdigest(),
                some.files[0].sha256,
                "Delete it",
                f"ezpz fetch tiny --folder {tmp_path}",
            ):
                assert part in told
            assert mirror.asked == []


def test_the_order_is_explicit_folder_then_data_folder_then_download(known, mirror, monkeypatch, tmp_path):
    some = known("good")
    explicit, data = tmp_path / "explicit", tmp_path / "data"
    monkeypatch.setenv("EZPZ_DATA", str(data))
    assert obtain(some, None, may_download=True).origin == f"downloaded from {mirror.url('good')}"
    assert len(mirror.asked) == 2
    assert obtain(some, None, may_download=True).origin == f"cache {data / 'tiny'}"
    assert obtain(some, explicit, may_download=True).folder == data / "tiny"
    fetch("tiny", explicit)
    assert obtain(some, explicit, may_download=True).folder == explicit / "tiny"
    assert (
        obtain(some, explicit / "tiny", may_download=False).folder == explicit / "tiny"
    )  # the folder of the files itself
    assert len(mirror.asked) == 4


def test_a_run_that_may_not_download_asks_nobody(known, mirror, monkeypatch, tmp_path):
    monkeypatch.setenv("EZPZ_DATA", str(tmp_path / "data"))
    with pytest.raises(DownloadError, match=f"not in {tmp_path / 'data' / 'tiny'}, and downloading is off"):
        obtain(known("good"), None, may_download=False)
    assert mirror.asked == []
    assert not (tmp_path / "data").exists()


def test_folders_that_take_nothing_are_told(known, mirror, monkeypatch, tmp_path):
    known("good")
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match=f"cannot write data to {tmp_path}/file/tiny: Not a directory.*EZPZ_DATA"):
        fetch("tiny", tmp_path / "file")
    for name in ("EZPZ_DATA", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="EZPZ_DATA, XDG_CACHE_HOME and HOME are unset"):
        fetch("tiny")
    with pytest.raises(DownloadError, match="are unset"):  # a run falls back
        obtain(download.CATALOG["tiny"], None, may_download=True)
    assert mirror.asked == []


def test_a_full_disk_is_told_and_leaves_no_part(known, tmp_path):
    import resource

    known("good")
    code = """
import resource, signal, sys
from ezpz.errors import end_with, EzpzError
from ezpz.train.data import download
from mirror import dataset
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing beyond the limit is an OSError, as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
remote = download.Remote("first.gz", 300_000, sys.argv[2])
download.CATALOG["tiny"] = download.DataSet("tiny", "", (sys.argv[1],), (remote,))
try:
    download.fetch("tiny", sys.argv[3])
except EzpzError as error:
    sys.exit(end_with(error))
"""
    assert resource.RLIMIT_FSIZE is not None
    some = download.CATALOG["tiny"]
    done = python(code, some.mirrors[0], some.files[0].sha256, tmp_path)
    assert done.returncode == 125, done.stderr
    assert f"cannot write data to {tmp_path}/tiny: File too large" in done.stderr
    assert names(tmp_path) == []


def python(code, *args):
    """Run code in a Python that finds this ezpz and the helpers of these tests."""
    path = os.pathsep.join([str(Path(ezpz.__file__).parents[1]), str(Path(__file__).parent)])
    env = {**os.environ, "PYTHONPATH": path, "no_proxy": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], env=env, capture_output=True, text=True, timeout=60, check=False
    )


FETCH = """
import sys
from ezpz.train.data import download
download.CATALOG["tiny"] = eval(sys.stdin.read(), vars(download))
download.fetch("tiny", sys.argv[1])
"""


@pytest.mark.slow
def test_many_processes_at_once_make_one_download_and_one_complete_file(known, mirror, tmp_path):
    some = known("slow")
    path = os.pathsep.join([str(Path(ezpz.__file__).parents[1]), str(Path(__file__).parent)])
    env = {**os.environ, "PYTHONPATH": path, "no_proxy": "127.0.0.1"}
    crowd = [
        subprocess.Popen([sys.executable, "-c", FETCH, str(tmp_path)], env=env, stdin=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for one in crowd:
        one.stdin.write(repr(some))
        one.stdin.close()
    assert [one.wait(60) for one in crowd] == [0] * 6
    assert {name: (tmp_path / "tiny" / name).read_bytes() for name in FILES} == FILES
    assert names(tmp_path) == sorted(FILES)
    assert sorted(mirror.asked) == ["/slow/first.gz", "/slow/second.gz"]


def test_what_ships_is_there_without_a_network():
    assert fetch("digits").name == "digits.csv.gz"
    assert fetch("shakespeare").stat().st_size == 364_404


def test_old_parts_of_killed_processes_are_swept_and_fresh_ones_kept(known, tmp_path):
    known("good")
    place = tmp_path / "tiny"
    place.mkdir()
    old, fresh = place / ".first.gz.n01.7.part", place / ".first.gz.n01.8.part"
    for part in (old, fresh):
        part.write_text("")
    os.utime(old, (1, 1))
    fetch("tiny", tmp_path)
    assert names(tmp_path) == sorted([*FILES, fresh.name])


def test_the_catalog_is_sound():
    for name, known in download.CATALOG.items():
        assert known.name == name
        assert all(len(remote.sha256) == 64 and int(remote.sha256, 16) for remote in known.files)
        assert all(url.startswith("http") and url.endswith("/") for url in known.mirrors)
    assert set(tiny_mnist()) == {remote.name for remote in download.CATALOG["mnist"].files}
