"""Run a script of a page as it stands there, with data that note which samples were trained with.

my_script.py PAGE FENCE FOLDER [STRATEGY …]     FENCE: which of the page's blocks begins so

With strategies it is run once under each of them in place of ddp, and the weights go into FOLDER/STRATEGY-RANK.
"""

import os
import re
import sys
import types
from pathlib import Path

import torch
from torch.utils.data import Dataset

page, fence, folder, strategies = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:]
rank = os.environ.get("RANK", "0")
blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
(text,) = [block for block in blocks if block.startswith(fence)]


class Pictures(Dataset):
    """13 samples, whose number is their only feature."""

    def __len__(self):
        return 13

    def __getitem__(self, index):
        return torch.tensor([float(index)]), index % 2


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 2)

    def forward(self, x):
        with (folder / f"seen-{rank}").open("a") as file:
            file.write("".join(f"{int(number)} " for number in x.flatten()))
        return super().forward(x / 13)


mine = types.ModuleType("mine")
mine.Pictures, mine.Net = Pictures, Net
sys.modules["mine"] = mine
PREPARED = "ezpz.prepare(model, optimizer, loader"


def run(name, text):
    namespace = {"__name__": "__main__"}
    exec(compile(text, "script.py", "exec"), namespace)
    whole = [getattr(each, "full_tensor", lambda each=each: each)() for each in namespace["model"].parameters()]
    (folder / f"{name}-{rank}").write_text(repr(torch.cat([each.detach().flatten() for each in whole]).tolist()))
    return namespace


for strategy in strategies:
    changed = text.replace('"ddp"', repr(strategy)).replace(PREPARED, f"{PREPARED}, strategy={strategy!r}")
    assert changed != text or strategy == "ddp"
    namespace = run(strategy, changed.replace("ezpz.cleanup()", ""))
if not strategies:
    namespace = run("weights", text)
if "ezpz" in namespace:
    namespace["ezpz"].cleanup()
