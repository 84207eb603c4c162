"""A watcher from outside: ranks count eggs, hosts add them up, and the launcher refuses, ends and records."""

from pathlib import Path

from ezpz.fields import number_field, rank_field
from ezpz.launch.shim_messages import Message
from ezpz.launch.watchers import HostSide, LauncherSide, Wait, Watcher

WATCHER = Watcher(
    "eggs",
    "eggs",
    host=":Nest",
    launcher=":Basket",
    words=("laid",),
    reports=("nest",),
    orders=("enough",),
    begins=True,
)


class Laid(Message):
    kind = "laid"
    eggs: int = number_field(0)


class Brood(Message):
    kind = "nest"
    rank: int = rank_field()
    eggs: int = number_field(0)


class Enough(Message):
    kind = "enough"


WORDS, REPORTS, ORDERS = (Laid,), (Brood,), (Enough,)


class Nest(HostSide):
    def __init__(self, handle):
        super().__init__(handle)
        self.eggs, self.enough = {}, False

    def hear(self, rank, message):
        self.eggs[rank.rank] = self.eggs.get(rank.rank, 0) + message.eggs
        if not self.handle.waits():
            self.handle.after(0.05, self.tell)

    def tell(self):
        for rank, eggs in self.eggs.items():
            self.handle.report(Brood(rank=rank, eggs=eggs))

    def obey(self, order):
        self.handle.note("a nest has enough")

    def finish(self):
        self.tell()


class Basket(LauncherSide):
    def __init__(self, handle):
        super().__init__(handle)
        self.eggs = {}

    def before_begin(self):
        if Path("closed").exists():
            Path("closed").unlink()
            return "the henhouse is closed"
        if Path("broken").exists():
            raise OSError("the henhouse is broken")
        return ""

    def hear(self, host, report):
        self.eggs[report.rank] = report.eggs
        if sum(self.eggs.values()) == 6:
            self.handle.order(Enough())
        if sum(self.eggs.values()) >= 100:
            self.handle.end_run("too many eggs", 9)

    def before_term(self):
        return Wait("left the nest", 1.0) if Path("nest").exists() else None

    def term_waits(self):
        if Path("nest").read_text() == "broken":
            raise OSError("the nest is broken")
        self.handle.after(60 if Path("nest").read_text() else 0.1, self.handle.pass_term_on)

    def end(self, outcome):
        if self.eggs:
            self.handle.note(f"{sum(self.eggs.values())} eggs")
        return {"eggs": {str(rank): self.eggs[rank] for rank in sorted(self.eggs)}}
