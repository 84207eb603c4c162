"""Find the run or the launch that a word means, for every verb that takes one.

    outputs/train/2026-11-20-162001    a run folder, a file in it, or a folder of runs, of which the newest is meant
    train/2026-11-20-162001            what `ezpz runs` prints
    2026-11-20-162001                  its last part
    train                              the name of runs, of which the newest is meant
    5f3a90c2                           the id of a launch, or the folder of its record
    12.head, 12                        a job, of whose launches the last is meant; one without a launch is an error
    trai, 5f3a, train/2026-11          the beginning of one of these, 4 characters or more, where it begins no other
    latest                             the newest; so does no word at all

What is said in full goes before a beginning. A launch stands for the run that it recorded, and a run for its launch.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from ezpz import register
from ezpz.errors import UsageError, nearest
from ezpz.fields import Record
from ezpz.files import LARGEST, no_access, open_regular, read_object, refuse_unreadable
from ezpz.records.launch_record import LaunchRecord
from ezpz.records.run_record import RunRecord, epoch
from ezpz.register import SHORTEST, Launch, ambiguous, is_of_job, main_folder, named, not_ahead, read, recorded
from ezpz.track.launches import find_launch
from ezpz.track.run_reader import is_run

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ezpz.register import KnownJob

LATEST = "latest"
_OUTPUTS = "outputs"


class Meant(Record):
    """A launch that is meant, or a run without one.

    Attributes:
        record: The folder of the launch's record; empty where none is kept.
        run: The run folder, where a run was named; empty elsewhere.
    """

    record: str
    run: str = ""


class ListedRun(Record):
    """A run as ``ezpz runs`` lists it.

    Attributes:
        folder: Its folder.
        shown: That, below the folder that is searched.
    """

    folder: Path
    shown: str

    def name(self) -> str:
        """Return the name that its history has."""
        with suppress(OSError):
            with open(self.folder / "run.json", "rb", opener=open_regular) as file:  # Path.open has no opener
                found = re.match(rb'\{\s*("schema": ?\d+,\s*)?"name": ?"([^"\\]+)"', file.read(512))
            name = found[2].decode(errors="replace") if found else RunRecord.read(self.folder / "run.json").name
            return name or self.folder.name
        return self.folder.name

    def full(self, name: str) -> set[str]:
        """Return the words that say this run in full, as `ezpz runs` prints it and without the folder."""
        return {self.shown, self.folder.name, f"{self.shown} ({name})", f"{self.folder.name} ({name})"}


# Folders of runs.

_DEEPEST_NEWEST = 4  # folders below the root: outputs/<name>/<stamp> and some more
_DEEPEST = 8
RUN_FILES = ("metrics.jsonl", "run.json")
# Folders that runs and their tools fill with thousands of files, and in which no run begins.
_PASSED_OVER = {"plots", "logs", "profile", "checkpoints", "wandb", "node_modules", "site-packages", "__pycache__"}


def root() -> Path:
    """Return the folder in which runs are looked for where none is named: outputs, or else the current one."""
    return Path(_OUTPUTS) if Path(_OUTPUTS).is_dir() else Path()


def below(folder: Path, searched: Path) -> str:
    """Return what a run is called in a list of those below a folder."""
    path, base = str(folder), str(searched)
    if base == "." and not path.startswith("/"):  # os.path.relpath takes most of the time of 3,000 runs
        name = path
    else:
        name = path[len(base) + 1 :] if path.startswith(f"{base}/") else os.path.relpath(folder, searched)
    return searched.absolute().name if name == "." else name


def started_at(folder: Path) -> float | None:
    """Return when a run began, in epoch seconds, by the first bytes of its ``run.json``; None where they do not tell.

    A quote in a text is escaped in JSON, so no other field looks like this one.
    """
    with suppress(OSError):
        with open(folder / "run.json", "rb", opener=open_regular) as file:  # Path.open has no opener
            found = re.search(rb'"started": ?"([0-9T:+.-]{1,40})"', file.read(512))
        return epoch(found[1].decode()) if found else RunRecord.read(folder / "run.json").started_at
    return None


def find_runs(searched: Path, depth: int = 0, closed: list[str] | None = None) -> Iterator[Path]:
    """Yield the run folders in a folder and below; links, hidden folders and what cannot be read are passed over.

    Args:
        searched: The folder.
        depth: How far it is below the one that was named.
        closed: Takes the folders that may not be read.
    """
    return map(Path, _find_runs(str(searched), depth, closed))


def _find_runs(searched: str, depth: int, closed: list[str] | None) -> Iterator[str]:
    try:
        with os.scandir(searched) as listed:
            entries = list(listed)
    except PermissionError:
        if closed is not None:
            closed.append(str(searched))
        return
    except OSError:
        return
    names = {entry.name for entry in entries}
    if "pyvenv.cfg" in names:  # a virtual environment
        return
    if "metrics.jsonl" in names or (
        "run.json" in names and (not os.access(searched, os.X_OK) or is_run(Path(searched)))
    ):
        yield searched  # of what may be listed and not read, `open_run` says so
    for entry in entries if depth < _DEEPEST else ():
        hidden = entry.name.startswith(".") or entry.name in _PASSED_OVER
        try:
            if not hidden and entry.is_dir(follow_symlinks=False):
                yield from _find_runs(entry.path, depth + 1, closed)
        except OSError:
            continue


def newest_run(searched: Path, closed: list[str] | None = None) -> Path | None:
    """Return the run folder below a folder, or that folder itself, whose journal or ``run.json`` changed last.

    Folders that hold a run are not searched for more, and neither are hidden ones, nor links to folders, nor what may
    not be read.

    Args:
        searched: The folder.
        closed: Takes the folders that may not be read.
    """

    def pass_over(error: OSError) -> None:
        if isinstance(error, PermissionError) and closed is not None:
            closed.append(str(error.filename))

    found: list[Path] = []
    depth = len(searched.parts)
    for place, folders, files in os.walk(searched, onerror=pass_over):
        path = Path(place)
        if any(name in files for name in RUN_FILES):
            folders.clear()
            found.append(path)
        elif len(path.parts) - depth >= _DEEPEST_NEWEST:
            folders.clear()
        else:
            folders[:] = [name for name in folders if not name.startswith(".")]
    return max(found, key=lambda path: (changed(path), path), default=None)


def changed(folder: Path) -> float:
    """Return when journal or ``run.json`` of a run folder changed last; 0 where it has neither any more, and for a time
    in the future.
    """
    times, now = [0.0], time.time()
    for name in RUN_FILES:
        with suppress(OSError):
            times.append(not_ahead((folder / name).stat().st_mtime, now))
    return max(times)


def folder_of(word: str) -> Path | None:
    """Return the run folder that a path means: that folder, or the newest run below it; None if there is no run yet.

    Args:
        word: A folder, or a file in a run folder.

    Raises:
        UsageError: There is no such folder, it may not be read, or the file is in no run folder.
    """
    path = Path(word).expanduser().absolute()
    refuse_unreadable(path)
    if path.is_file():
        if not is_run(path.parent):
            raise UsageError(
                f"{path} is a file of no run (from the command line): its folder has no metrics.jsonl; expected a run "
                f"folder, or one that holds runs. {_LISTS}"
            )
        return path.parent
    if not path.is_dir():
        raise unknown(word)
    if is_run(path):
        return path
    closed: list[str] = []
    found = newest_run(path, closed)
    if found is None and closed:  # there may be one
        raise no_access(closed[0])
    return found


# What there is to be named.


class _Known:
    """The runs that ``ezpz runs`` lists here, and this user's launches; each is looked for when it is first needed."""

    @cached_property
    def runs(self) -> list[ListedRun]:
        searched = root()
        return [ListedRun(folder, below(folder, searched)) for folder in find_runs(searched)]

    @cached_property
    def names(self) -> list[str]:
        """The names of the runs, in their order."""
        return [run.name() for run in self.runs]

    @cached_property
    def launches(self) -> list[Launch]:
        return list(recorded())

    def all_names(self) -> list[str]:
        """Return all that a word might have been meant to be."""
        words = [*(run.shown for run in self.runs), *self.names, *(run.folder.name for run in self.runs)]
        words += [word for launch in self.launches for word in (launch.launch_id, launch.job) if word]
        return list(dict.fromkeys(words))

    def runs_in_full(self, word: str) -> list[Path]:
        """Return the runs that a word says in full: a folder below outputs/, one run, or all of one name."""
        if word not in {".", ".."} and Path(_OUTPUTS, word).is_dir():
            path = Path(os.path.join(_OUTPUTS, word))  # noqa: PTH118  # as it was typed
            found = sorted(find_runs(path), key=lambda folder: (changed(folder), folder), reverse=True)
            folder = None if found else folder_of(str(path))
            return [folder] if folder else found
        exact = [run.folder for run in self.runs if word in {run.shown, run.folder.name}]
        if exact:
            return self._one(word, exact)
        named_so = [run for run, name in zip(self.runs, self.names, strict=True) if word in {name, *run.full(name)}]
        return sorted((run.folder for run in named_so), key=changed, reverse=True)

    def runs_that_begin(self, word: str) -> list[Path]:
        """Return the runs of the one name that a word begins, the newest first, or the one run that it begins."""
        if len(word) < SHORTEST:
            return []
        names = sorted({name for name in self.names if name.startswith(word)})
        if len(names) > 1:
            raise ambiguous(word, "names of runs", names)
        if names:
            return self.runs_in_full(names[0])
        shown = [run.folder for run in self.runs if run.shown.startswith(word) or run.folder.name.startswith(word)]
        return self._one(word, shown) if shown else []

    def _one(self, word: str, folders: Sequence[Path]) -> list[Path]:
        if len(folders) > 1:
            raise ambiguous(word, "runs", [run.shown for run in self.runs if run.folder in folders])
        return list(folders)

    def launch_in_full(self, word: str) -> Launch | None:
        """Return the launch that a word says in full: by its job, its id or the folder of its record."""
        found = [
            launch
            for launch in self.launches
            if is_of_job(launch, word) or word in {launch.launch_id, os.path.basename(launch.folder)}  # noqa: PTH119
        ]
        last = max(found, key=lambda launch: launch.started, default=None)
        job = register.ask_job(word) if last and is_of_job(last, word) else None
        return self.launch_of(job, word) if job else last

    def launch_of(self, job: KnownJob, word: str) -> Launch:
        """Return the last launch of a job that a word names.

        Raises:
            JobAloneError: It has none; one of an earlier job of the same id is not meant.
        """
        found = [each for each in self.launches if job.is_called(each.job) and not job.began_after(each.started)]
        if not found:
            raise JobAloneError(word, job)
        return max(found, key=lambda launch: launch.started)

    def launch_that_begins(self, word: str) -> Launch | None:
        """Return the launch whose id begins with a word."""
        return named(self.launches, word, last=True)

    def search(self, word: str, *, runs_first: bool) -> list[Path] | Launch | None:
        """Return what a word means that is no path: runs, the newest first, or a launch; None for nothing.

        Args:
            word: What the user has typed.
            runs_first: Which of the two it means where it may mean both.

        Raises:
            JobAloneError: It is a job that has no launch.
            UsageError: It means several.
        """
        if not word:
            return None
        if runs_first:
            found = self.runs_in_full(word) or self.launch_in_full(word)
        else:
            found = self.launch_in_full(word) or self.runs_in_full(word)
        if found:
            return found
        job = register.ask_job(word)
        if job:
            return self.launch_of(job, word)
        if runs_first:
            return self.runs_that_begin(word) or self.launch_that_begins(word)
        return self.launch_that_begins(word) or self.runs_that_begin(word) or None

    def run_of(self, launch: Launch, word: str) -> Path:
        """Return the one run that a launch has recorded.

        Raises:
            UsageError: It has recorded none, or several.
        """
        record = LaunchRecord.read(Path(launch.folder, "run.json"))
        ids = {launch.launch_id, record.launch_id, *(row.launch_id for row in record.attempts)} - {""}
        found = {os.path.realpath(run.folder): run.folder for run in self.runs if _launch_of(run.folder, ids) in ids}
        if record.run_folder and is_run(Path(record.run_folder)):
            found.setdefault(os.path.realpath(record.run_folder), Path(record.run_folder))
        if len(found) > 1:
            raise ambiguous(word, f"runs of launch {launch.launch_id}", [str(folder) for folder in found.values()])
        if not found:
            raise UsageError(
                f"no run of launch {launch.launch_id} is known ({word!r} from the command line); expected a launch "
                f"whose program records one with ezpz.History. `ezpz why {launch.launch_id}` says what became of it."
            )
        return next(iter(found.values())).absolute()


def _launch_of(folder: Path, wanted: Iterable[str]) -> str:
    """Return the id of a run's launch where it is one of those that are wanted; of others no record is decoded."""
    try:
        with open(folder / "run.json", "rb", opener=open_regular) as file:  # Path.open has no opener
            data = file.read(LARGEST)
    except OSError:
        return ""
    is_near = any(launch.encode() in data for launch in wanted)
    return RunRecord.read(folder / "run.json").launch_id if is_near else ""


# What a word means.


def run_named(word: str | None) -> Path:
    """Return the run folder that a user means, for every verb that takes a run.

    Args:
        word: As above; None for the newest run.

    Raises:
        UsageError: There is none, or several are meant.
    """
    if word is None:
        return newest_here()
    if not _is_there(word):
        return runs_named(word)[0]
    launch = launch_at(word)
    folder = _Known().run_of(launch, word) if launch else folder_of(word)
    if folder is None:
        raise no_run_in(word)
    return folder


def runs_named(word: str) -> list[Path]:
    """Return all runs that a word means which is no path, the newest first.

    Args:
        word: As above; of a name of several runs all are meant.

    Raises:
        UsageError: It means none, or several of which none is the newest.
    """
    if word == LATEST:
        return [newest_here()]
    known = _Known()
    found = known.search(word, runs_first=True)
    if found is None:
        raise unknown(word, known)
    return [known.run_of(found, word)] if isinstance(found, Launch) else [folder.absolute() for folder in found]


def newest_here() -> Path:
    """Return the newest run where runs are looked for.

    Raises:
        UsageError: There is none.
    """
    folder = folder_of(str(root()))
    if folder is None:
        raise no_runs()
    return folder


def last_runs(count: int, without: Iterable[Path] = ()) -> list[Path]:
    """Return the runs here that changed last, the newest last.

    Args:
        count: How many.
        without: Folders of runs that are not meant.
    """
    passed = {os.path.realpath(folder) for folder in without}
    found = [folder.absolute() for folder in find_runs(root()) if os.path.realpath(folder) not in passed]
    return sorted(found, key=lambda folder: (changed(folder), folder))[-count:]


def is_run_word(word: str, metrics: Callable[[str], Sequence[str]]) -> bool:
    """Tell whether a word that may also be a metric means a run.

    Args:
        word: What the user has typed.
        metrics: Returns the metrics that a word would mean; only a path goes before them.
    """
    if word == LATEST or _is_run_path(word):
        return True
    if Path(word).expanduser().is_file():
        return not metrics(word)
    try:
        is_named = _Known().search(word, runs_first=True) is not None
    except UsageError:  # several
        is_named = True
    return is_named and not metrics(word)


def launch_named(word: str | None) -> Meant:
    """Return the launch that a user means, for every verb that takes one, whether it runs or has ended.

    Args:
        word: As above; None for the launch that began last.

    Raises:
        UsageError: There is none, or several are meant.
    """
    if word is None or (word == LATEST and not _is_there(word)):
        newest = next(recorded(), None)
        if newest is None:
            raise UnknownError(
                f"no launch in {main_folder()} (the default); expected the record of one. Start one with `launch`, "
                "or name a run or the record of a launch."
            )
        return Meant(newest.folder)
    if _is_there(word):
        record = _record_at(word)
        return Meant(str(record)) if record else _of_run(run_named(word))
    known = _Known()
    found = known.search(word, runs_first=False)
    if found is None:
        raise unknown(word, known)
    return Meant(found.folder) if isinstance(found, Launch) else _of_run(found[0].absolute())


def record_named(word: str | None) -> Path:
    """Return the folder of the record of the launch that a user means, for every verb that tells of launches alone.

    Args:
        word: As `launch_named` takes it.

    Raises:
        UsageError: There is none, several are meant, or a run whose launch has no record here.
    """
    meant = launch_named(word)
    if not meant.record:
        raise _without_record(word or meant.run, RunRecord.read(Path(meant.run, "run.json")))
    return Path(meant.record)


def _without_record(word: str, run: RunRecord) -> UsageError:
    """Return the error for a run that is named where a launch is needed."""
    why, expected = without_launch(run), "one that `launch` started"
    if run.launch_id:
        expected = f"it in {main_folder()}, where the newest 100 are kept"
    return UsageError(
        f"{word} (from the command line) names a run, and {why}; expected {expected}. What the run itself recorded: "
        f"`ezpz why {shlex.quote(word)}`."
    )


def without_launch(run: RunRecord) -> str:
    """Return why nothing is known here of the launch of a run, in words."""
    if not run.raw:
        return "its run.json, which tells its launch, is missing or damaged"
    if run.launch_id:
        return f"no record of its launch, {run.launch_id}, is kept here"
    return "it was started without `launch`"


def last_started() -> Meant:
    """Return what was started last: a launch, or the newest run here where that is younger and of no launch that is
    known here.

    Raises:
        UsageError: There is neither.
    """
    launch = next(recorded(), None)
    run = newest_run(root()) if launch is None or Path(_OUTPUTS).is_dir() else None
    record = RunRecord.read(run / "run.json") if run else RunRecord()
    is_later = launch is None or (record.started_at or 0.0) > launch.started
    if run and is_later and not (record.launch_id and find_launch(record.launch_id)):
        return Meant("", str(run.absolute()))
    return launch_named(None)


def running_named(word: str, running: Iterable[Launch]) -> Launch | None:
    """Return the running launch that a user means; None where the word names nothing.

    Args:
        word: As above; by a job or a name that several share, one of them must be the only one that runs.
        running: The launches that run.

    Raises:
        UsageError: Several are meant, or one that does not run.
    """
    launches = list(running)
    found = None if _is_there(word) else named(launches, word)
    if found and not names_another(word, found):
        return found
    if word == LATEST and not _is_there(word):
        return max(launches, key=lambda launch: launch.started, default=None)
    launch, folders = _meant(word)
    ids = {launch.launch_id} if launch else set(_ids_of(folders))
    chosen = [launch for launch in launches if launch.launch_id in ids]
    if is_folder(word):  # which of its runs is the newest changes from one moment to the next
        below = set(_ids_of(find_runs(Path(word).expanduser())))
        sharing = [launch for launch in launches if launch.launch_id in below]
        chosen = sharing if sharing[1:] else chosen
    if len(chosen) > 1:
        raise ambiguous(word, "launches", [launch.launch_id for launch in chosen])
    if not chosen and ids:
        raise UsageError(
            f"launch {' and '.join(sorted(ids)[:2])} does not run ({word!r} from the command line); expected one that "
            f"does. `ezpz why {shlex.quote(word)}` says how it ended; `ezpz kill --job {min(ids)}` ends what is left "
            "of it."
        )
    if folders and not ids:
        raise _without_record(word, RunRecord.read(folders[0] / "run.json"))
    return chosen[0] if chosen else None


def names_another(word: str, launch: Launch) -> bool:
    """Tell whether a word that only begins the id of a launch names runs in outputs/, or a job: in full goes first."""
    if word == launch.launch_id or is_of_job(launch, word):
        return False
    return register.ask_job(word) is not None or (Path(_OUTPUTS).is_dir() and bool(_Known().runs_in_full(word)))


def id_named(word: str) -> str:
    """Return the id of the launch that a word means, whether it runs or not; empty where it names nothing here.

    Raises:
        UsageError: Several are meant.
    """
    launch, folders = _meant(word)
    ids = [launch.launch_id] if launch else sorted(set(_ids_of(folders)))
    if len(ids) > 1:
        raise ambiguous(word, "launches", ids)
    return next(iter(ids), "")


def _meant(word: str) -> tuple[Launch | None, list[Path]]:
    """Return the launch that a word means, or its runs, all of them where several have one name."""
    if _is_there(word):
        launch = launch_at(word)
        return launch, [] if launch else [run_named(word)]
    found = _Known().search(word, runs_first=False)
    return (found, []) if isinstance(found, Launch) else (None, found or [])


def _ids_of(folders: Iterable[Path]) -> Iterator[str]:
    """Yield the ids of the launches of runs."""
    for folder in folders:
        mine = RunRecord.read(folder / "run.json").launch_id
        kept = find_launch(mine) if mine else None
        newest = read(str(kept[0])) if kept else None  # of several attempts
        if newest or mine:
            yield newest.launch_id if newest else mine


def launch_at(word: str) -> Launch | None:
    """Return the launch whose record is at a path; None where it is another folder or file.

    Raises:
        UsageError: It may not be read.
    """
    folder = _record_at(word)
    return read(str(folder / "run.json")) if folder else None


def _record_at(word: str) -> Path | None:
    """Return the folder of the record of a launch that is at a path, also of one that was damaged."""
    path = Path(word).expanduser()
    folder = path if path.is_dir() else path.parent
    for place in (folder, folder / "run.json"):
        refuse_unreadable(place)
    if (path.is_file() and path.name != "run.json") or (folder / "metrics.jsonl").is_file():
        return None
    return folder.resolve() if "launch_id" in read_object(folder / "run.json") else None


def _of_run(folder: Path) -> Meant:
    record = RunRecord.read(folder / "run.json")
    record.refuse_newer(folder / "run.json")
    kept = find_launch(record.launch_id) if record.launch_id else None
    return Meant(str(kept[0].parent.resolve()) if kept else "", str(folder))


def _is_there(word: str) -> bool:
    """Tell whether a word is a path of something.

    Raises:
        UsageError: It may not be read.
    """
    path = Path(word).expanduser()
    refuse_unreadable(path)
    try:
        return bool(word) and path.exists()
    except (OSError, ValueError):  # a name too long
        return False


def is_folder(word: str) -> bool:
    """Tell whether a word is the path of a folder that is no record of a launch: it may hold a run later on."""
    return _is_there(word) and Path(word).expanduser().is_dir() and _record_at(word) is None


def _is_run_path(word: str) -> bool:
    path = Path(word).expanduser()
    return path.is_dir() or (path.name in RUN_FILES and path.is_file())


# What is wrong.


class UnknownError(UsageError):
    """A word names nothing, or there is nothing to be named."""


class JobAloneError(UnknownError):
    """A word names a job of a scheduler, of which no launch is known.

    Attributes:
        job: The job.
    """

    def __init__(self, word: str, job: KnownJob) -> None:
        self.job = job
        output = "" if job.state == "queued" else f", `ezpz logs {job.job}` its output"
        super().__init__(
            f"job {job.job} ({job.state}) has no launch ({word!r} from the command line); expected "
            f"one in which `launch` has begun. `ezpz status {job.job}` shows it{output}."
        )


def unknown(word: str, known: _Known | None = None, more: str = "") -> UnknownError:
    """Return the error for a word that names nothing, for every verb; it names what is near."""
    near = nearest(word, (known or _Known()).all_names(), 3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return UnknownError(
        f"no run or launch {word!r} (from the command line): no folder here, and no name, id or job; expected one of "
        f"these, or {SHORTEST} characters that begin one.{hint} `ezpz runs` lists runs, `ezpz status` launches.{more}"
    )


_LISTS = "`ezpz runs` lists them; those of other tools are read by `ezpz compare`."


def no_run_in(word: str, more: str = "") -> UsageError:
    """Return the error for a folder in which there is no run, for every verb."""
    return UsageError(
        f"no run in {word} (from the command line): no metrics.jsonl, in it or below; expected a folder that "
        f"ezpz.History has made, or one that holds such folders. {_LISTS}{more}"
    )


def no_runs() -> UsageError:
    """Return the error where there is no run at all."""
    where = "outputs/ holds none" if Path(_OUTPUTS).is_dir() else "there is no outputs/, and no run below this folder"
    return UsageError(
        f"no run here yet (the default): {where}; expected one that ezpz.History recorded. Make one with `ezpz test`, "
        "go to the folder where you trained, or name a run's folder."
    )
