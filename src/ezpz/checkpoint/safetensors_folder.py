"""A folder of safetensors that is written tensor by tensor, and has its name only when it is complete."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ezpz.checkpoint import safetensors_files as files
from ezpz.errors import EzpzError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

__all__ = ["FolderWriter"]


class FolderWriter:
    """Writes tensors that come one by one into a hidden folder, which gets its name at the end."""

    def __init__(self, folder: Path, weights: Mapping[str, files.Weight], shard_bytes: int) -> None:
        self._folder, self._weights = folder, weights
        self._hidden = folder.with_name(f".{folder.name}.{token_hex(4)}.tmp")
        self._plan = files.planned(weights, shard_bytes)
        self._first = {names[0]: (file, names) for file, names in self._plan}
        self._last = {names[-1] for _, names in self._plan}
        self._file: Any = None
        self._error: EzpzError | None = None
        self._guarded(self._begin)

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Write a tensor; after a failure nothing, because the other ranks continue until the end."""
        self._guarded(self._put, name, tensor)

    def finish(self, config: Mapping[str, Any] | None, *, replace: bool = False) -> EzpzError | None:
        """Give the folder its name, or remove it and return what went wrong.

        Args:
            config: Content of ``config.json``; None for none.
            replace: Whether to remove the files of a folder that is there.
        """
        self._guarded(self._finish, config, replace)
        if self._error is not None:
            self.give_up()
        return self._error

    def give_up(self) -> None:
        """Remove what was written."""
        if self._file is not None:
            with suppress(OSError):  # a full disk fails once more
                self._file.close()
        shutil.rmtree(self._hidden, ignore_errors=True)

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        if self._error is not None:
            return
        try:
            action(*args)
        except OSError as error:
            self._error = EzpzError(
                f"cannot export {self._folder}: {error.strerror or error}; expected a folder with space that can be "
                "written. Name another one, or free space."
            )

    def _begin(self) -> None:
        for left in self._folder.parent.glob(f".{self._folder.name}.*.tmp"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._hidden.mkdir(parents=True)

    def _put(self, name: str, tensor: torch.Tensor) -> None:
        import torch

        if name in self._first:
            file, names = self._first[name]
            self._file = (self._hidden / file).open("wb")
            self._file.write(files.header_of({each: self._weights[each] for each in names}))
        self._file.write(files.bytes_of(tensor.to(getattr(torch, self._weights[name].dtype))))
        if name in self._last:
            self._close(self._file)

    def _finish(self, config: Mapping[str, Any] | None, replace: bool) -> None:
        texts = {} if config is None else {"config.json": json.dumps(config, indent=2) + "\n"}
        if len(self._plan) > 1:
            texts[files.INDEX] = files.index_of(self._plan, self._weights)
        for name, text in texts.items():
            file = (self._hidden / name).open("wb")
            file.write(text.encode())
            self._close(file)
        old = self._hidden.with_suffix(".old")
        if replace and self._folder.is_dir():
            self._folder.rename(old)  # a kill from here on loses neither
        self._hidden.rename(self._folder)
        shutil.rmtree(old, ignore_errors=True)

    @staticmethod
    def _close(file: Any) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
