"""Messages between a launcher and its agents as most tests want them: what a test does not name is nothing."""

from ezpz.launch import agent_messages


def settings(**more):
    fields = {"log_dir": "", "idle": None, "input": False, "recorder": "", "collectives": "", "parting": 0.0}
    fields |= {"by_rank": False, "live": False, "stays": False, "watchers": []}
    return agent_messages.Settings(**{**fields, **more})


def failed(**more):
    fields = {"rank": 3, "pid": 7, "code": -9, "at": 1.5, "why": "", "words": "", "shown": True, "step": -1}
    return agent_messages.RankFailed(**{**fields, "memory": agent_messages.NOTHING_COUNTED, "room": [], **more})
