"""Stand in for packages that the older programs import and that are not here (no wheel, or a GPU's): nothing of theirs
is part of what is tried.

Python imports this file at its start when its folder is on PYTHONPATH. A package that is installed is used instead.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pathlib
import pickle
import sys
import time
import types

NAMES = ("aim", "deepspeed", "enrich", "IPython", "matplotx", "mpi4py", "opinionated", "torchviz", "unitarity")
ALSO = os.environ.get("OLDER_ALSO", "").split()  # of one program alone: others would take it for the real one


class AnyType(type):
    """Lets a class that stands in for a module have whatever that module has."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(cls)(name, (Anything,), {})


class Anything(metaclass=AnyType):
    """A class, a function or an object, as the program takes it; all it does is to be there."""

    def __init__(self, *args, **keywords):
        pass

    def __call__(self, *args, **keywords):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Styles(dict):
    """Styles of matplotlib by any name: none of them changes anything."""

    def __missing__(self, name):
        return {}


class World:
    """MPI's world, as the launcher's variables tell it: no MPI is here."""

    def Get_rank(self):  # noqa: N802  # mpi4py's name
        return int(os.environ.get("RANK", "0"))

    def Get_size(self):  # noqa: N802  # mpi4py's name
        return int(os.environ.get("WORLD_SIZE", "1"))

    calls = 0

    def bcast(self, value, root=0):
        """Send a value by a file of this launch."""
        World.calls += 1
        launch = os.environ.get("EZPZ_LAUNCH_ID", "alone")
        path = pathlib.Path(f"{os.environ['OLDER_STAND_INS']}-{launch}-{World.calls}")
        if self.Get_rank() == root:
            new = path.with_suffix(".new")
            new.write_bytes(pickle.dumps(value))
            new.rename(path)
        while not path.exists():
            time.sleep(0.01)
        return pickle.loads(path.read_bytes())

    def Barrier(self):  # noqa: N802  # mpi4py's name
        for root in range(self.Get_size()):
            self.bcast(None, root)


class StandIn(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = {
            "RichHandler": lambda: importlib.import_module("rich.logging").RichHandler,
            "Console": lambda: importlib.import_module("rich.console").Console,
            "MPI": lambda: importlib.import_module("mpi4py.MPI"),
            "COMM_WORLD": World,
            "get_ipython": lambda: lambda: None,
            "STYLES": dict if self.__name__.startswith("enrich") else Styles,
            "styles": Styles,
            "io": lambda: StandIn(f"{self.__name__}.io"),
            "version_info": lambda: (99, 0),
            "is_tensor": lambda: lambda value: False,  # matplotlib asks TensorFlow where it is imported
        }
        if name in made:
            return made[name]()
        return AnyType(name, (Anything,), {})


def note(what):
    if os.environ.get("RANK", "0") == "0":
        with pathlib.Path(os.environ["OLDER_STAND_INS"]).open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")


def before_torchvision():
    """Name the operator that torchvision's wheel lacks where torch is another build (CPU beside CUDA)."""
    import torch

    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        sys.modules["older_stand_in_library"] = library  # operators live as long as it does


def before_l2hmc():
    """Let dataclasses take an instance of another one as a default, as Python 3.10 and older do."""
    import dataclasses

    original = dataclasses._process_class

    def process(cls, *args, **keywords):
        made = original(cls, *args, **keywords)
        if made.__dict__.get("__hash__", object) is None:
            made.__hash__ = object.__hash__  # what Python 3.11 asks of a default
        return made

    if sys.version_info >= (3, 11):
        note("dataclasses of Python 3.10")
        dataclasses._process_class = process


def after_ddp():
    """Let DDP of a model on the CPU ignore ``device_ids``, which name a GPU in programs that were written for one."""
    from torch.nn.parallel import distributed

    original = distributed.DistributedDataParallel.__init__

    def init(self, module, device_ids=None, *args, **keywords):
        on_cpu = {parameter.device.type for parameter in module.parameters()} == {"cpu"}
        if on_cpu and device_ids:
            note("DDP(device_ids=)")
        original(self, module, None if on_cpu else device_ids, *args, **keywords)

    distributed.DistributedDataParallel.__init__ = init


def after_fsdp():
    """Let torch's first FSDP, which asks for a GPU, shard on the CPU where there is none."""
    import torch
    from torch.distributed.fsdp import fully_sharded_data_parallel as file

    original = file.FullyShardedDataParallel.__init__

    def init(self, module, *args, **keywords):
        if not torch.accelerator.is_available() and "device_id" not in keywords:
            note("a GPU for FSDP1")
            keywords["device_id"] = torch.device("cpu")
        original(self, module, *args, **keywords)

    file.FullyShardedDataParallel.__init__ = init


def after_wandb_util():
    """Give ``wandb.util`` a function that newer releases have moved."""
    util = sys.modules["wandb.util"]
    if not hasattr(util, "generate_id"):
        note("wandb.util.generate_id")
        util.generate_id = lambda length=8: importlib.import_module("wandb.sdk.lib.runid").generate_id(length)


class Around(importlib.abc.Loader):
    """Loads a module as ever, with something done before or after."""

    def __init__(self, loader, before, after):
        self.loader, self.before, self.after = loader, before, after

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.before()
        self.loader.exec_module(module)
        self.after()


class Hooks(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        nothing = dict
        hooks = {
            "torchvision": (before_torchvision, nothing),
            "wandb.util": (nothing, after_wandb_util),
            "l2hmc": (before_l2hmc, nothing),
            "torch.nn.parallel.distributed": (nothing, after_ddp),
            "torch.distributed.fsdp.fully_sharded_data_parallel": (nothing, after_fsdp),
        }
        if name not in hooks:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = Around(spec.loader, *hooks[name])
        return spec


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {*NAMES, *ALSO}:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        note(spec.name.partition(".")[0])
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


if "OLDER_STAND_INS" in os.environ:
    sys.meta_path.insert(0, Hooks())
    sys.meta_path.append(Finder())  # behind all others: what is installed comes first
