"""Two models and two optimizers in one run's checkpoints: a GAN, and a student with its teacher."""

import json

import pytest

from ezpz.checkpoint import Checkpoints, export
from ezpz.errors import UsageError

torch = pytest.importorskip("torch")


class Gan:
    """Two networks that train against each other in a loop of their own."""

    def __init__(self, folder, seed, *, late=False, groups=1):
        torch.manual_seed(seed)
        self.nets = {"generator": torch.nn.Linear(3, 4), "critic": torch.nn.Sequential(torch.nn.Linear(4, 1))}
        critic = list(self.nets["critic"].parameters())
        parts = [{"params": each} for each in critic] if groups > 1 else critic
        self.optimizers = {
            "generator": torch.optim.Adam(self.nets["generator"].parameters(), lr=0.1),
            "critic": torch.optim.SGD(parts, lr=0.2, momentum=0.9),
        }
        self.schedules = {
            word: torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for word, each in self.optimizers.items()
        }
        self.late = late  # the generator begins later than the critic
        self.checkpoints = Checkpoints(
            folder, model=self.nets, optimizer=self.optimizers, schedule=dict(reversed(self.schedules.items()))
        )

    def train(self, steps):
        losses = []
        for _ in range(steps):
            for word in ("critic",) if self.late else ("critic", "generator"):
                made = self.nets["critic"](self.nets["generator"](torch.randn(5, 3)))
                loss = made.pow(2).mean() if word == "critic" else -made.mean()
                for each in self.optimizers.values():
                    each.zero_grad()
                loss.backward()
                self.optimizers[word].step()
                self.schedules[word].step()
                losses.append(loss.item())
        return losses


@pytest.mark.parametrize("late", [False, True])
def test_two_networks_and_their_optimizers_go_on_as_if_nothing_had_been(tmp_path, late):
    run = Gan(tmp_path, 1, late=late)
    run.train(3)
    path = run.checkpoints.save(3)
    assert bool(run.optimizers["generator"].state) != late  # a save makes no state
    run.late = False
    unbroken = run.train(4)
    other = Gan(tmp_path, 2)
    assert other.checkpoints.load(path) == 3
    assert bool(other.optimizers["generator"].state) != late
    assert other.train(4) == unbroken
    said = json.loads((path / "checkpoint.json").read_text())
    assert list(said["model"]) == ["generator.weight", "generator.bias", "critic.0.weight", "critic.0.bias"]
    assert said["optimizer"]["kind"] == "critic: SGD, generator: Adam"
    assert said["schedule"] == "critic: ExponentialLR, generator: ExponentialLR"
    assert sorted(torch.load(export(path, tmp_path / "weights.pt").path)) == sorted(said["model"])


def test_what_does_not_fit_is_named_by_its_word(tmp_path):
    run = Gan(tmp_path, 1)
    run.train(1)
    path = run.checkpoints.save(1)
    net, optimizer = run.nets["generator"], run.optimizers["generator"]
    for given, said in (
        ({"model": net, "optimizer": optimizer}, "weight is|it lacks weight"),
        ({"model": run.nets, "optimizer": {"generator": optimizer}}, "its optimizer is critic: SGD, generator: Adam"),
        ({"model": {"critic": run.nets["critic"], "student": net}}, "it lacks student.weight"),
    ):
        with pytest.raises(UsageError, match=said):
            Checkpoints(tmp_path, **given).load(path)
    with pytest.raises(UsageError, match=r"groups of \[2, 2\] parameters, and this one of \[1, 1, 2\]"):
        Gan(tmp_path, 2, groups=2).checkpoints.load(path)
    Checkpoints(tmp_path, model=run.nets).load(path)  # the weights alone


def test_words_and_shared_weights_are_looked_at(tmp_path):
    net = torch.nn.Linear(2, 2)
    for given, said in (
        ({"model": {"a.b": net}}, "the word 'a.b' for model="),
        ({"model": {}}, "no one at all for model="),
        ({"model": {"keys": net}}, "from model= of Checkpoints"),
        (
            {"model": net, "optimizer": {word: torch.optim.SGD(net.parameters(), lr=1) for word in ("one", "two")}},
            "the optimizers 'one' and 'two' hold the same weights",
        ),
    ):
        with pytest.raises(UsageError, match=said):
            Checkpoints(tmp_path, **given)


class Rows:
    def __init__(self):
        self.losses = []

    def update(self, row, **_):
        self.losses.append(row["loss"])

    def sync(self):
        pass


def distil(folder, steps, resume=None):
    """Train a student after a teacher that nothing trains, in a loop."""
    from ezpz.train import Loop

    torch.manual_seed(3)
    teacher, student = torch.nn.Linear(3, 2).requires_grad_(requires_grad=False), torch.nn.Linear(3, 2)
    if resume is not None:
        torch.nn.init.zeros_(teacher.weight)
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    checkpoints = Checkpoints(
        folder,
        model={"student": student, "teacher": teacher},
        optimizer={"student": optimizer},
        schedule={"student": schedule},
    )
    rows = Rows()
    Loop(
        student,
        optimizer,
        lambda model, batch: (model(batch) - teacher(batch)).pow(2).mean(),
        lambda position: torch.randn(4, 3, generator=torch.Generator().manual_seed(position)),
        steps=steps,
        batch_size=4,
        schedule=schedule,
        log=lambda _: None,
        checkpoints=checkpoints,
        save_every=2,
        resume=resume,
    ).run(rows)
    return rows.losses


def test_a_loop_trains_a_student_and_saves_its_teacher_too(tmp_path):
    unbroken = distil(tmp_path / "a", 6)
    assert distil(tmp_path / "b", 2) == unbroken[:2]
    assert distil(tmp_path / "b", 6, tmp_path / "b" / "checkpoints" / "step-00000002") == unbroken[2:]
