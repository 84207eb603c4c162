"""Foreign formats, from literal bytes."""

import gzip

import pytest
from mirror import cifar_archive, cifar_records, idx, packed

from ezpz.errors import UsageError
from ezpz.train.data.cifar import read_cifar10, read_records
from ezpz.train.data.idx import read_idx

# Two images of 2 x 3 pixels: magic 2051, then 2, 2, 3 in big-endian.
IMAGES = bytes.fromhex("00000803 00000002 00000002 00000003 000102030405 fafbfcfdfeff")
LABELS = bytes.fromhex("00000801 00000003 070209")


@pytest.fixture
def write(tmp_path):
    def write(data):
        path = tmp_path / "file"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_is_read_plain_and_packed(write, pack):
    assert read_idx(write(pack(IMAGES)), 3).tolist() == [[[0, 1, 2], [3, 4, 5]], [[250, 251, 252], [253, 254, 255]]]
    assert read_idx(write(pack(LABELS)), 1).tolist() == [7, 2, 9]


NO_IDX = [
    (IMAGES, 1, "begins with 2051"),
    (LABELS, 3, "begins with 2049"),
    (bytes.fromhex("03080000 02000000 02000000 03000000") + bytes(12), 3, "begins with 50855936"),  # little-endian
    (b"<!DOCTYPE html>", 3, "begins with 1008813135"),
    (b"", 3, "begins with 0"),
    (IMAGES[:10], 3, "inside its head"),
    (IMAGES[:-1], 3, r"27 bytes, where sizes \(2, 2, 3\) need 28"),
    (IMAGES + b"x", 3, "29 bytes"),
    (idx((0xFFFFFFFF, 0xFFFFFFFF, 2), ()), 3, "need"),
    (packed(IMAGES)[:-9], 3, "end-of-stream|ended"),
    (packed(IMAGES)[:12] + b"\xff" * 9 + packed(IMAGES)[21:], 3, "cannot read"),
]


def test_what_is_no_idx_is_told_in_one_line(subtests, write):
    for data, dimensions, told in NO_IDX:
        with subtests.test(told):
            with pytest.raises(UsageError, match=told) as caught:
                read_idx(write(data), dimensions)
            assert "\n" not in str(caught.value)
            assert str(caught.value).startswith(f"cannot read {write(data)}: ")


def test_an_absent_idx_file_is_told(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_idx(tmp_path / "none", 3)


def test_a_record_is_a_label_then_red_green_and_blue_rows():
    record = bytes([6]) + bytes(range(256)) * 4 + b"\x10" * 1024 + b"\x20" * 1024
    images, labels = read_records(record * 2, "it")
    assert images.shape == (2, 3, 32, 32)
    assert labels.tolist() == [6, 6]
    assert images[1, 0, 1, :3].tolist() == [32, 33, 34]  # row 1 begins with the 33rd byte
    assert {*images[0, 1].ravel().tolist()} == {16}
    assert {*images[0, 2].ravel().tolist()} == {32}


NO_RECORDS = [(b"", "0 bytes"), (bytes(3072), "3072 bytes"), (bytes([10]) + bytes(3072), "a label 10")]


def test_what_is_no_record_is_told(subtests):
    for data, told in NO_RECORDS:
        with subtests.test(told), pytest.raises(UsageError, match=f"{told}.*ezpz fetch cifar10"):
            read_records(data, "it")


def batches(**replaced):
    names = [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)]
    return (
        {name: cifar_records(4) for name in names}
        | {"cifar-10-batches-bin/test_batch.bin": cifar_records(3)}
        | replaced
    )


def test_the_archive_is_read_without_unpacking_it(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "cifar.tar.gz"
    evil = {"../escaped": b"x", "/tmp/escaped": b"x", "cifar-10-batches-bin/readme.html": b"x"}  # a name inside
    cifar_archive(path, evil | batches())
    (train, train_labels), (test, test_labels) = read_cifar10(path)
    assert (train.shape, test.shape) == ((20, 3, 32, 32), (3, 3, 32, 32))
    assert train_labels.tolist() == [0, 1, 2, 3] * 5
    assert test_labels.tolist() == [0, 1, 2]
    assert train[5, :, 0, 0].tolist() == [1, 2, 3]
    assert [found.name for found in tmp_path.rglob("*") if found.is_file()] == ["cifar.tar.gz"]


def test_an_archive_that_is_cut_or_another_one_is_told(tmp_path):
    path = tmp_path / "cifar.tar.gz"
    cifar_archive(path, batches())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="cannot read"):
        read_cifar10(path)
    path.write_bytes(b"no archive")
    with pytest.raises(UsageError, match="cannot read"):
        read_cifar10(path)
    some = batches()
    del some["cifar-10-batches-bin/data_batch_3.bin"]
    cifar_archive(path, some)
    with pytest.raises(UsageError, match=r"has no cifar-10-batches-bin/data_batch_3\.bin"):
        read_cifar10(path)
