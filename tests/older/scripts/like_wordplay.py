"""Calls of an older text trainer: names at the top, a device from a type and the local rank, Hydra's log handler."""

import json
import logging
import logging.config
import os
from dataclasses import asdict, dataclass

import torch

import ezpz as ez
from ezpz import get_local_rank, get_rank, get_torch_device, get_world_size, timeitlogit
from ezpz.history import History

RANK = ez.get_rank()
DEVICE = os.environ.get("TORCH_DEVICE", get_torch_device())
LOG = {
    "version": 1,
    "handlers": {
        "term": {
            "class": "ezpz.log.handler.RichHandler",
            "show_time": True,
            "enable_link_path": False,
            "level": "DEBUG",
        }
    },
    "root": {"handlers": ["term"], "level": "INFO"},
    "disable_existing_loggers": False,
}


@dataclass
class Config:
    device_type: str
    steps: int = 3


@timeitlogit(rank=RANK, verbose=False)
def train(model, config):
    history = History()
    device = f"{DEVICE}:{get_local_rank()}"
    for step in range(config.steps):
        loss = model(torch.ones(2, 3).to(config.device_type)).square().mean()
        loss.backward()
        history.update({"timers/iter": step, "timers/dt": 0.1})
        history.update({"train/loss": loss.item()})
    return device


logging.config.dictConfig(LOG)
rank = ez.setup(framework="pytorch", backend="DDP", seed=None)
config = Config(device_type=get_torch_device())
json.dumps(asdict(config))
model = torch.nn.Linear(3, 1).to(DEVICE)
model = ez.wrap_model_for_ddp(model)
assert train(model, config) == f"cpu:{get_local_rank()}"
logging.getLogger("wordplay").info("from Hydra's handler")
assert (rank, get_world_size()) == (get_rank(), 2)
print("like_wordplay ended", flush=True)
