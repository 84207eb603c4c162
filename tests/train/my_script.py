"""Run the script of docs/data.md as it stands there, with data that note which samples were trained with.

my_script.py PAGE FENCE FOLDER      FENCE: which of the page's blocks begins so
"""

import re
import sys
import types
from pathlib import Path

import torch
from torch.utils.data import Dataset

page, fence, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
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
        with (folder / f"seen-{__import__('os').environ.get('RANK', '0')}").open("a") as file:
            file.write("".join(f"{int(number)} " for number in x.flatten()))
        return super().forward(x / 13)


mine = types.ModuleType("mine")
mine.Pictures, mine.Net = Pictures, Net
sys.modules["mine"] = mine
namespace = {"__name__": "__main__"}
exec(compile(text, "script.py", "exec"), namespace)
weights = torch.cat([parameter.detach().flatten() for parameter in namespace["model"].parameters()]).tolist()
(folder / f"weights-{__import__('os').environ.get('RANK', '0')}").write_text(repr(weights))
if "ezpz" in namespace:
    namespace["ezpz"].cleanup()
