import pytest

from ezpz.errors import UsageError
from ezpz.launch.hostfile import read_hostfile


@pytest.mark.parametrize(
    ("text", "hosts", "slots"),
    [
        ("n01\nn02\n", ("n01", "n02"), None),
        ("n01\r\nn02\r\n", ("n01", "n02"), None),
        ("# mine\n\nn01  # first\nn02", ("n01", "n02"), None),
        ("n01:4\nn02:2\n", ("n01", "n02"), (4, 2)),
        ("n01 slots=4 max_slots=8\nuser@n02.site slots=2\n", ("n01", "user@n02.site"), (4, 2)),
        ("n01\nn01\nn02\n", ("n01", "n02"), (2, 1)),
    ],
)
def test_every_dialect_is_read(tmp_path, text, hosts, slots):
    path = tmp_path / "hosts"
    path.write_text(text)
    assert tuple(read_hostfile(str(path))) == (hosts, slots)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("cannot read the host file", "No such file")),
        (b"", ("no host in",)),
        (b"# only\n", ("no host in",)),
        (b"n01\nn02 slots=many\n", ("line 2", "n02 slots=many")),
        (b"n01 slots=0\n", ("line 1",)),
        (b"n01;rm\n", ("line 1",)),
        (b"n\xff01\n", ("not UTF-8",)),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, content, words):
    path = tmp_path / "hosts"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_hostfile(str(path))
    assert all(word in str(caught.value) for word in (str(path), "--hostfile", *words))
