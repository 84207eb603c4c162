import hashlib
import re
from importlib.resources import files

from ezpz.train import load_digits


def test_the_digits_are_the_uci_set():
    images, labels = load_digits()
    assert tuple(images.shape) == (1797, 64)
    assert (images.min().item(), images.max().item()) == (0.0, 1.0)
    # Class counts as scikit-learn documents them for this file.
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_file_is_the_one_that_its_attribution_describes():
    folder = files("ezpz.train")
    told = re.search(r"SHA-256: (\w{64})", folder.joinpath("digits.md").read_text(encoding="utf-8")).group(1)
    assert hashlib.sha256(folder.joinpath("digits.csv.gz").read_bytes()).hexdigest() == told
