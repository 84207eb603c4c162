import os
import time

import pytest

from ezpz.errors import UsageError
from ezpz.launch.hostfile import read_hostfile


def test_every_dialect_is_read(tmp_path, subtests):
    path = tmp_path / "hosts"
    for name, (text, hosts, slots) in {
        "plain": ("n01\nn02\n", ("n01", "n02"), None),
        "from Windows": ("n01\r\nn02\r\n", ("n01", "n02"), None),
        "with a byte order mark": ("\ufeffn01\n", ("n01",), None),
        "no newline at the end": ("n01", ("n01",), None),
        "comments and blanks": ("# mine\n\nn01  # first\n   \n\tn02 ", ("n01", "n02"), None),
        "MPICH": ("n01:4\nn02:2\n", ("n01", "n02"), (4, 2)),
        "MPICH: no number is 1": ("n01:4\r\nn02\r\n", ("n01", "n02"), (4, 1)),
        "Open MPI": ("n01 slots=4 max_slots=8\nn02.site slots=2\n", ("n01", "n02.site"), (4, 2)),
        "Open MPI with blanks": ("n01 slots = 4 max-slots=8", ("n01",), (4,)),
        "an upper number names no slots": ("n01 max_slots=8", ("n01",), None),
        "a line per rank": ("n01\nn01\nn02\n", ("n01", "n02"), (2, 1)),
        "a line per rank, in turn": ("n01\nn02\nn01\n", ("n01", "n02"), (2, 1)),
        "repeated lines add": ("n01:2\nn02\nn01 slots=3\n", ("n01", "n02"), (5, 1)),
        "addresses": ("10.0.0.1 slots=8\n10.0.0.2 slots=8", ("10.0.0.1", "10.0.0.2"), (8, 8)),
    }.items():
        with subtests.test(name):
            path.write_bytes(text.encode())
            named = read_hostfile(str(path))
            assert (named.hosts, named.slots, named.path) == (hosts, slots, str(path))


def test_the_first_line_of_a_host_and_who_named_its_slots_are_kept(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two\nn01\n\nn02\nn01\n")
    assert (read_hostfile(str(path)).lines, read_hostfile(str(path)).explicit) == ((2, 4), False)
    path.write_text("n01 slots=1\n")
    assert (read_hostfile(str(path)).slots, read_hostfile(str(path)).explicit) == ((1,), True)


def test_a_bad_file_is_named_with_its_line(tmp_path, subtests):
    path = tmp_path / "hosts"
    for content, words in [
        (None, ("cannot read the host file", "No such file")),
        (b"", ("no host in", "e.g. `n01` or `n01:4`")),
        (b"# only\n\r\n", ("no host in",)),
        (b"n01\nn02 slots=many\n", ("line 2", "n02 slots=many", "numbers from 1 to 999999")),
        (b"n01 slots=0\n", ("line 1", "numbers from 1")),
        (b"n01:0\n", ("line 1", "numbers from 1")),
        (b"n01:-4\n", ("line 1", "numbers from 1")),
        (b"n01 slots=4 max_slots=all\n", ("line 1", "numbers from 1")),
        (b"n01:" + b"9" * 5000, ("line 1", "9…", "numbers from 1")),
        (b"n01 4\n", ("line 1", "'n01 4'", "expected `HOST`, `HOST:4` or `HOST slots=4`.")),
        (b"n01 slot=4\n", ("line 1", "and no slot=")),
        (b"\nn01:2 binding=numa\n", ("line 2",)),
        (b"n01 user=me\n", ("line 1", "and no user=")),
        (b"n01\nme@n02 slots=2\n", ("line 2", "without a user: put `User me` into ~/.ssh/config")),
        (b"n01;rm\n", ("line 1",)),
        (b"n[01-04]\n", ("line 1",)),
        (b"-n01\n", ("line 1",)),
        (b"a b c\n", ("line 1",)),
        ("nœud".encode(), ("line 1",)),
        (b"n\xff01\n", ("not UTF-8",)),
        (b"\x7fELF\x01\x02", ("line 1",)),
    ]:
        with subtests.test(content=content and content[:20]):
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(UsageError) as caught:
                read_hostfile(str(path))
            assert all(word in str(caught.value) for word in (str(path), "--hostfile", *words)), caught.value
            assert "\n" not in str(caught.value)


def test_a_pipe_is_a_host_file_and_a_folder_is_none(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the host file .*: Is a directory; expected one host per line"):
        read_hostfile(str(tmp_path))
    reader, writer = os.pipe()
    os.write(writer, b"n01\nn02\n")
    os.close(writer)
    try:
        assert read_hostfile(f"/dev/fd/{reader}").hosts == ("n01", "n02")
    finally:
        os.close(reader)


def test_ten_thousand_lines_are_read_at_once(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("".join(f"nid{index:06d} slots=12\n" for index in range(10_000)))
    begin = time.process_time()
    named = read_hostfile(str(path))
    assert time.process_time() - begin < 1
    assert (len(named.hosts), set(named.slots), named.lines[-1]) == (10_000, {12}, 10_000)
