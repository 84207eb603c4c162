"""Write the weights of a checkpoint as other programs read them: one process, one tensor at a time, no device.

    weights.safetensors            all weights in one file
    weights.pt                     for `torch.load`: names to tensors, as `model.state_dict()` of the plain model
    folder/model.safetensors …     for Hugging Face's `from_pretrained`, with `config.json` where the model had one

Names and number formats are those of the plain model, whatever wrapped it and however many ranks saved it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.checkpoint import safetensors_files as files
from ezpz.checkpoint.digests import objections
from ezpz.checkpoint.finding import is_folder, is_there, look_at
from ezpz.checkpoint.manifest import Unusable
from ezpz.errors import EzpzError, UsageError
from ezpz.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from ezpz.checkpoint.storage import WholeTensors

__all__ = ["Exported", "export"]

_SHARD = 5 * 10**9  # bytes of the weights in one file of a folder, as Hugging Face's own
_FILES = {".safetensors", ".pt", ".pth"}
_OTHERS = {".bin", ".ckpt", ".gguf", ".h5", ".npz", ".onnx", ".pkl", ".zip"}  # what a folder is not meant by
_OWN = re.compile(r"config\.json|model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
_EXPECTED = "expected FILE.safetensors, FILE.pt, or a folder"

logger = get_logger(__name__)


class Exported(NamedTuple):
    """What was written.

    Attributes:
        path: The file or folder.
        step: Steps done when the checkpoint was saved.
        tensors: How many there are.
        size: Their bytes.
        remarks: What it does not hold, a sentence each.
    """

    path: Path
    step: int
    tensors: int
    size: int
    remarks: list[str]


def export(checkpoint: Path | str, to: Path | str, *, ema: bool = False, overwrite: bool = False) -> Exported:
    """Write the weights of a checkpoint into a file, or a folder. No rank but this process takes part.

    The files of the checkpoint are compared with their digests first. What is written is complete or not there. In
    memory is one tensor, and the largest of its parts twice.

    Args:
        checkpoint: The folder of one checkpoint, such as `find_latest` returns.
        to: A name that ends in ``.safetensors`` or ``.pt`` is a file; another one is a folder.
        ema: Whether to take the average of the weights (`ezpz.train.EMA`), in the formats of the weights.
        overwrite: Whether to replace a file that is there, or a folder that holds nothing but an export.

    Raises:
        UsageError: The checkpoint is none or damaged; ``to`` is there already, or has the ending of another format.
        EzpzError: It cannot be written.
    """
    from ezpz.checkpoint.storage import StorageError, WholeTensors

    source, target = Path(checkpoint).expanduser().absolute(), Path(to).expanduser().absolute()
    _refuse_target(target, to, overwrite=overwrite)
    try:
        manifest = look_at(source)
        damage = objections(source, manifest)
        if damage:
            raise damage[0]
        whole = WholeTensors(source)
        content = _Content(whole, list(manifest.model), "ema" if ema else "model")
        written = _write(content, target, overwrite=overwrite)
    except (Unusable, StorageError) as problem:
        raise UsageError(
            f"cannot export {source}: {problem}; expected a complete checkpoint, with files as they were written. "
            f"Nothing was written. `ezpz checkpoint verify {source.parent}` shows which ones are sound."
        ) from None
    except OSError as error:
        raise EzpzError(
            f"cannot export to {target}: {error.strerror or error}; expected a place with space that can be written. "
            "Name another one, or free space."
        ) from None
    return written._replace(step=manifest.step)


def _ending(target: Path) -> str:
    return target.suffix.lower()


def _refuse_target(target: Path, named: Path | str, *, overwrite: bool) -> None:
    """Refuse a place where nothing can be written, or where something is.

    Raises:
        UsageError: It is such a place.
    """
    shown = f"{os.fspath(named)} (from --to)"
    if _ending(target) in _OTHERS:
        raise UsageError(f"cannot export to {shown}: no format of that ending is known; {_EXPECTED}.")
    if _ending(target) in _FILES and is_folder(target):
        raise UsageError(f"cannot export to {shown}: it is a folder; expected the name of a file. Name another one.")
    if _ending(target) not in _FILES and is_there(target) and not is_folder(target):
        raise UsageError(f"cannot export to {shown}: it is a file, of no known ending; {_EXPECTED}.")
    try:
        inside = [each.name for each in target.iterdir()] if is_folder(target) else []
    except OSError as error:
        raise UsageError(f"cannot export to {shown}: {error.strerror}; expected a new folder.") from None
    foreign = sorted(name for name in inside if not _OWN.fullmatch(name))
    if is_folder(target) and foreign and overwrite:
        raise UsageError(
            f"cannot export to {shown}: the folder holds {foreign[0]}, which no export has written; expected a new "
            "one, or one that holds nothing else. Name another one."
        )
    if not overwrite and (inside or (is_there(target) and not is_folder(target))):
        raise UsageError(
            f"{shown} is there already; expected a new one. Name another, or add --overwrite to replace it."
        )


class _Content:
    """What is exported of a checkpoint, tensors still unread.

    Attributes:
        weights: Shape and number format of each tensor, in the model's order.
        values: What the model's state holds beside tensors.
        state: Both, in the model's order.
        config: Of Hugging Face's model, where it was one.
        size: Bytes of the tensors read so far.
    """

    def __init__(self, whole: WholeTensors, names: list[str], part: str) -> None:
        self._whole, self.size = whole, 0
        places = {name: whole.places["model", name] for name in names if ("model", name) in whole.places}
        self._paths = {name: (part if (part, name) in whole.places else "model", name) for name in places}
        if part not in {path[0] for path in self._paths.values()}:
            raise UsageError(
                "cannot export an average of weights: the checkpoint has none; expected one that was saved with "
                "Checkpoints(…, ema=…). Leave --ema out for the weights."
            )
        self.weights = {
            name: files.Weight(tuple(place.size), str(place.properties.dtype).removeprefix("torch."))
            for name, place in places.items()
        }
        self.values = {path[1]: self._unpacked(path) for path in whole.places if path[0] == "extra"}
        self.state = {name: each for name in names if (each := (self.weights | self.values).get(name)) is not None}
        self.config = self._unpacked(("objects", "rank-0")).get("hugging_face_config")

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Read one after the other."""
        for name, path in self._paths.items():
            tensor = self._whole.read(path).to(self._whole.places["model", name].properties.dtype)
            self.size += tensor.nbytes
            yield name, tensor

    def _unpacked(self, path: tuple[str, ...]) -> Any:
        from ezpz.checkpoint.packing import NotPlainError, unpack
        from ezpz.checkpoint.storage import StorageError

        if path not in self._whole.places:
            return {}
        try:
            return unpack(self._whole.read(path), *path)
        except NotPlainError as error:
            raise StorageError(str(error)) from None


def _write(content: _Content, target: Path, *, overwrite: bool) -> Exported:
    remarks = []
    if _ending(target) not in {".pt", ".pth"}:
        odd = next((name for name, weight in content.weights.items() if weight.dtype not in files.WRITTEN), "")
        if odd:
            raise UsageError(
                f"cannot export {odd} as safetensors: it has the number format {content.weights[odd].dtype}, which "
                f"that format lacks; expected one of {', '.join(files.WRITTEN)}. Export to FILE.pt."
            )
        remarks += [f"safetensors hold tensors alone: {name} is left out" for name in content.values]
    target.parent.mkdir(parents=True, exist_ok=True)
    if _ending(target) in _FILES:
        _write_file(content, target)
    else:
        remarks += _write_folder(content, target, overwrite=overwrite)
    return Exported(target, 0, len(content.weights), content.size, remarks)


def _write_file(content: _Content, target: Path) -> None:
    hidden = target.with_name(f".{target.name}.{token_hex(4)}.tmp")
    try:
        with hidden.open("wb") as file:
            if _ending(target) == ".safetensors":
                file.write(files.header_of(content.weights))
                for _, tensor in content.tensors():
                    file.write(files.bytes_of(tensor))
            else:
                from ezpz.checkpoint.torch_files import TorchFileWriter

                writer = TorchFileWriter(file, content.state)
                for _, tensor in content.tensors():
                    writer.put(tensor)
                writer.finish()
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(target)
    finally:
        hidden.unlink(missing_ok=True)


def _write_folder(content: _Content, target: Path, *, overwrite: bool) -> list[str]:
    from ezpz.checkpoint.safetensors_folder import FolderWriter

    config: Mapping[str, Any] | None = None
    remarks = []
    try:
        config = json.loads(content.config) if content.config else None
    except (TypeError, ValueError):
        remarks.append("its config.json is damaged, and left out")
    if config is None:
        remarks.append(
            "no config.json: the model had no config of Hugging Face's when it was saved; from_pretrained needs one"
        )
    writer = FolderWriter(target, content.weights, _SHARD)
    try:
        for name, tensor in content.tensors():
            writer.put(name, tensor)
    except BaseException:  # Ctrl-C too: what is half written goes
        writer.give_up()
        raise
    error = writer.finish(config, replace=overwrite)
    if error is not None:
        raise error
    return remarks
