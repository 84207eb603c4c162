"""A folder of images by class: found, cut, resized, flipped, and the same batch for the same position."""

import sys

import numpy as np
import pytest
import torch

from ezpz.errors import UsageError
from ezpz.train import BatchIndices, ImageFolder, image_data, image_folder_name

Image = pytest.importorskip("PIL.Image")
COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


def draw(path, colour, size=(40, 30)):
    """Write an image: black on its left half, one colour on its right."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((size[1], size[0], 3), dtype=np.uint8)
    pixels[:, size[0] // 2 :] = colour
    Image.fromarray(pixels).save(path)


def make(folder, count=12, suffix=".png"):
    for name, colour in COLOURS.items():
        for number in range(count):
            draw(folder / name / f"{number:03d}{suffix}", colour)
    return folder


def test_classes_are_folders_and_every_tenth_image_is_for_tests(tmp_path):
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "empty").mkdir()
    make(tmp_path)
    (tmp_path / "red" / "notes.txt").write_text("no image")
    data = ImageFolder(tmp_path, 16, workers=2)
    assert (data.classes, data.trained, data.tested) == (sorted(COLOURS), 33, 3)
    images, labels = data.take(torch.arange(36))
    assert images.shape == (36, 3, 16, 16)
    assert images.dtype == torch.float32
    assert 0 <= images.min() <= images.max() == 1
    assert labels.bincount().tolist() == [12, 12, 12]
    assert labels[33:].tolist() == [0, 1, 2]
    for image, label in zip(images, labels, strict=True):  # the middle: black left, its colour right
        assert image[:, 8, 1].tolist() == [0, 0, 0]
        assert (image[:, 8, 14] * 255).tolist() == list(COLOURS[data.classes[label]])
    assert data.take(torch.arange(0))[0].shape == (0, 3, 16, 16)


def test_a_folder_may_say_what_is_for_tests(tmp_path):
    make(tmp_path / "train", 4, ".jpg")
    make(tmp_path / "val", 2)
    data = ImageFolder(tmp_path, 8)
    assert (data.trained, data.tested, len(data.classes)) == (12, 6, 3)
    draw(tmp_path / "val" / "pink" / "1.png", (255, 0, 255))
    with pytest.raises(UsageError, match=r"the class 'pink' is in .*val and not in .*train"):
        ImageFolder(tmp_path, 8)


def test_batches_are_a_function_of_seed_and_position(tmp_path):
    data = ImageFolder(make(tmp_path), 16, workers=2)
    order = BatchIndices(data.trained, 6, seed=3)
    batches = data.augmented(order, seed=5)
    first = [batches(position) for position in range(8)]
    again = data.augmented(order, seed=5)
    for position in (6, 7, 2, 0):  # resumed elsewhere, and asked for in any order
        assert torch.equal(again(position)[0], first[position][0])
        assert torch.equal(again(position)[1], first[position][1])
    other = data.augmented(order, seed=6)
    assert not torch.equal(other(0)[0], first[0][0])
    assert torch.equal(other(0)[1], first[0][1])
    assert torch.equal(first[0][1], data.take(order(0))[1])


def test_an_image_is_cut_the_same_way_on_any_number_of_ranks_and_anew_in_each_epoch(tmp_path):
    data = ImageFolder(make(tmp_path), 16, workers=2)
    count = data.trained
    alone = data.augmented(BatchIndices(count, 12, seed=3), seed=5)
    steps = -(-2 * count // 12)
    whole = torch.cat([alone(position)[0] for position in range(steps)])
    two = [data.augmented(BatchIndices(count, 4, rank=rank, world_size=2, seed=3), seed=5) for rank in (0, 1)]
    parts = torch.cat([each(position)[0] for position in range(2 * count // 8) for each in two])
    assert torch.equal(parts, whole[: len(parts)])
    assert torch.equal(two[1].at(12)[0], whole[16:20])  # resumed between positions of this batch size
    order = BatchIndices(count, count, seed=3)
    first, second = (order(epoch).tolist() for epoch in (0, 1))
    changed = sum(not torch.equal(whole[first.index(n)], whole[count + second.index(n)]) for n in range(count))
    assert changed > count // 2


def test_half_of_the_images_are_flipped_and_each_is_cut_anew(tmp_path):
    data = ImageFolder(make(tmp_path, 20), 16, workers=2)
    batches = data.augmented(BatchIndices(data.trained, 30, seed=3), seed=5)
    images = torch.cat([batches(position)[0] for position in range(10)])
    black = images[:, :, 8, 1].sum(1) < 0.05, images[:, :, 8, 14].sum(1) < 0.05
    flipped, kept = (black[1] & ~black[0]).sum(), (black[0] & ~black[1]).sum()
    assert flipped + kept > 100
    assert 0.3 < flipped / (flipped + kept) < 0.7
    edges = (images[:, :, 8].sum(1) > 0.5).sum(1)  # where the colour begins depends on the cut
    assert len(edges.unique()) > 5


def test_an_image_is_turned_as_its_camera_says_and_grey_or_clear_ones_have_three_colours(tmp_path):
    make(tmp_path, 2)
    path = tmp_path / "red" / "000.jpg"
    draw(path, (255, 0, 0))
    with Image.open(path) as image:
        exif = image.getexif()
        exif[0x0112] = 3  # upside down
        image.save(path, exif=exif, quality=95)
    Image.new("L", (30, 30), 128).save(tmp_path / "green" / "grey.png")
    Image.new("RGBA", (30, 30), (9, 9, 9, 0)).save(tmp_path / "blue" / "clear.png")
    data = ImageFolder(tmp_path, 16)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*"))
    turned, _ = data.take(torch.tensor([names.index("red/000.jpg")]))
    assert turned[0, 0, 8, 1] > 0.9
    assert turned[0, 0, 8, 14] < 0.1
    assert data.take(torch.tensor([names.index("green/grey.png"), names.index("blue/clear.png")]))[0].shape[1] == 3


def test_what_is_no_folder_of_images_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*nowhere: No such file or directory .*one folder of images"):
        ImageFolder(tmp_path / "nowhere", 8)
    with pytest.raises(UsageError, match="has no images in folders"):
        ImageFolder(tmp_path, 8)
    draw(tmp_path / "red" / "1.png", COLOURS["red"])
    with pytest.raises(UsageError, match="has images of 'red' alone"):
        ImageFolder(tmp_path, 8)
    draw(tmp_path / "blue" / "1.png", COLOURS["blue"])
    (tmp_path / "blue" / "2.jpg").write_bytes(b"no image at all")
    data = ImageFolder(tmp_path, 8)
    with pytest.raises(UsageError, match=r"cannot read the image .*blue/2\.jpg: .*identify"):
        data.take(torch.arange(3))


def test_without_pillow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(UsageError, match=r"needs the package pillow .*pip install pillow"):
        ImageFolder(tmp_path, 8)


def test_names_of_data():
    known = image_data(["mnist", "digits"])
    assert [known(word) for word in ("mnist", "images:a b", "hf:me/it")] == ["mnist", "images:a b", "hf:me/it"]
    assert [image_folder_name(word) for word in ("images:a:b", "mnist", "images:")] == ["a:b", "", ""]
    for word in ("minst", "images:", "hf:", "folder"):
        with pytest.raises(Exception, match=r"is no data set\..* Expected mnist, digits, images:FOLDER or hf:NAME$"):
            known(word)
