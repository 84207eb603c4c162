"""What a script may ask of numbers that do not exist, and what it must still get for real."""

import io
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import ezpz

ezpz.setup_torch(seed=3)
model = (
    nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, 4)).to("cpu", torch.float64).float()
)
data = TensorDataset(torch.arange(80.0).reshape(10, 8), torch.arange(10))
loader = DataLoader(data, batch_size=4, sampler=RandomSampler(data))
seen = [y for _, labels in loader for y in labels.tolist()]
assert sorted(seen) == list(range(10)) != seen, seen  # shuffled, and complete: data is real
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, labels in loader:
    loss = nn.functional.cross_entropy(model(inputs), labels % 4)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    optimizer.zero_grad()
assert (loss.item(), float(norm), f"{loss:.2f}") == (1.0, 1.0, "1.00")
assert not torch.isnan(loss)
assert not loss.isinf()
assert torch.isfinite(loss)
assert loss < 2 and not loss < 0.5  # noqa: PT018  # as 1 is
weight = model[0].weight.detach()
assert not torch.isnan(weight).any()
assert torch.isfinite(weight).all()
assert torch.equal(weight, weight) and torch.allclose(weight, weight)  # noqa: PT018  # one question, asked twice
assert weight[0].tolist() == [1.0] * 8
assert weight.numpy().sum() == 64 * 8
saved = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen}, saved)
saved.seek(0)
loaded = torch.load(saved, weights_only=True)
model.load_state_dict(loaded["model"])
optimizer.load_state_dict(loaded["optimizer"])
assert loaded["seen"] == seen
total = ezpz.all_reduce(torch.tensor([3.0]))
assert total.tolist() == [3.0], "a number that the script knows stays what it is"
if "select" in sys.argv:
    weight[weight > 0]
