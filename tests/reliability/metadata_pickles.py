"""Writes and reads the `.metadata` of a checkpoint with the Python that runs it: each has its own way to pickle.

    metadata_pickles.py write FOLDER
    metadata_pickles.py read FOLDER…

Where torch is not installed, classes of the same names and modules stand in, with the ways of pickling that torch 2.13
gave them; the pickler, the enumerations, data classes and paths are this Python's own. Reads with `ezpz.checkpoint` and
checks that what is read is what was written.
"""

import copyreg
import dataclasses
import enum
import pickle
import sys
import types
from pathlib import Path
from typing import Any


def stand_in():
    """Put modules called torch… where Python finds them, with all that `ezpz.checkpoint.storage` names."""

    class Size(tuple):  # noqa: SLOT001
        def __reduce__(self):
            return Size, (tuple(self),)

    class Named:
        def __init__(self, name):
            self.name = name

    class dtype(Named):  # noqa: N801
        def __reduce__(self):
            return self.name  # of this module, as a global

    class layout(Named):  # noqa: N801
        pass

    class _MEM_FORMAT_ENCODING(enum.Enum):  # noqa: N801
        TORCH_CONTIGUOUS_FORMAT = 0
        TORCH_CHANNELS_LAST = 1

    @dataclasses.dataclass
    class TensorProperties:
        dtype: Any
        memory_format: Any = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT

        def __getstate__(self):
            return self.dtype, strided, False, self.memory_format, False

        def __setstate__(self, state):
            self.dtype, _, _, self.memory_format, _ = state

    def plain(name, fields, **more):
        return dataclasses.make_dataclass(name, [(field, Any, None) for field in fields.split()], **more)

    float32, strided = dtype("float32"), layout("torch.strided")

    def _get_layout(name):
        return {"torch.strided": strided}[name]

    copyreg.pickle(layout, lambda value: (_get_layout, (value.name,)))
    checkpoint = "torch.distributed.checkpoint"
    metadata = (
        _MEM_FORMAT_ENCODING,
        TensorProperties,
        plain("ChunkStorageMetadata", "offsets sizes"),
        plain("TensorStorageMetadata", "properties size chunks"),
        plain("BytesStorageMetadata", ""),
        plain("StorageMeta", "checkpoint_id save_id load_id modules"),
        plain("Metadata", "state_dict_metadata planner_data storage_data storage_meta version"),
        plain("MetadataIndex", "fqn offset index", frozen=True),
    )
    put("torch", Size, dtype, layout, float32=float32)
    put("torch.serialization", _get_layout)
    put("torch.futures", Future=object)
    put("torch.distributed")
    classes = {value.__name__: value for value in metadata}
    put(f"{checkpoint}.metadata", *metadata)
    put(f"{checkpoint}.filesystem", plain("_StorageInfo", "relative_path offset length"), FileSystem=object)
    put(checkpoint, Metadata=classes["Metadata"], FileSystemReader=object, FileSystemWriter=object,
        CheckpointException=RuntimeError)  # fmt: skip
    sys.modules["torch"].distributed = sys.modules["torch.distributed"]
    sys.modules["torch.distributed"].checkpoint = sys.modules[checkpoint]


def put(module, *values, **more):
    made = sys.modules[module] = types.ModuleType(module)
    for value in values:
        value.__module__, value.__qualname__ = module, value.__name__
        setattr(made, value.__name__, value)
    for name, value in more.items():
        setattr(made, name, value)
        if module == "torch":
            type(value).__module__ = module


def content():
    import torch
    from torch.distributed.checkpoint import filesystem, metadata

    tensor = metadata.TensorStorageMetadata(
        metadata.TensorProperties(torch.float32),
        torch.Size((2, 3)),
        [metadata.ChunkStorageMetadata(torch.Size((0, 0)), torch.Size((2, 3)))],
    )
    return metadata.Metadata(
        state_dict_metadata={"model.weight": tensor, "step": metadata.BytesStorageMetadata()},
        planner_data={"model.weight": ("model", "weight"), "step": ("step",)},
        storage_data={
            metadata.MetadataIndex("model.weight", torch.Size((0, 0)), 0): filesystem._StorageInfo(
                "__0_0.distcp", 0, 1261
            )
        },
        storage_meta=metadata.StorageMeta(Path("/runs/one"), "saved", None, []),
        version="1.0.0",
    )


def main(how, *folders):
    try:
        import torch  # noqa: F401
    except ImportError:
        stand_in()
    for folder in map(Path, folders):
        if how == "write":
            with (folder / ".metadata").open("wb") as file:
                pickle.dump(content(), file)
        else:
            from ezpz.checkpoint.storage import read_metadata

            found = read_metadata(folder)
            if found != content():
                raise SystemExit(f"{folder}: read {found}")
            print(f"read {folder.name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
