"""Start several worlds on the same hosts, as JSON says: the words of the hosts, and for each world its words and hosts,
and which one it comes after, by number, if not at once.

    worlds.py '[["-n", "2"], [["-n", "2", "--", "true"], [0]], [["-n", "1", "--", "true"], [0], 1], …]'

Prints what became of each, as JSON, and ends as `launch` would.
"""

import contextlib
import json
import os
import sys
import tempfile

from ezpz.errors import EzpzError
from ezpz.launch.agent_messages import Settings
from ezpz.launch.options import parse
from ezpz.launch.planning import PlanBuilder
from ezpz.launch.run.control import Control
from ezpz.launch.run.failures import Limits
from ezpz.launch.run.start import run_of
from ezpz.launch.run.terminal import Screen
from ezpz.launch.survey import survey


def builder_of(words, *, stays=False):
    options = parse(words, os.environ)
    return PlanBuilder(survey(options), options, stays=stays), options


def limits_of(options):
    return Limits(options.start_timeout, options.timeout, options.idle_timeout, options.exit_timeout, True)


def main(hosts, worlds):
    with contextlib.ExitStack() as stack:
        builder, options = builder_of([*hosts, "--", "nothing"], stays=True)
        if builder.needs_hostfile:
            builder.write_hostfile(stack.enter_context(tempfile.TemporaryDirectory()))
        control = Control(Settings(**builder.agent_settings), builder.listening(), len(builder.survey.placement.hosts))
        plan = builder.build(stack.enter_context(builder.choose_rendezvous(must_know=False)), control.variable)
        screen = Screen(2, label=True)
        stack.callback(screen.close)

        class Several(run_of(plan)):
            def hosts_came(self):
                self.begin_after(0)

            def begin_after(self, number):
                for words, places, *_ in [each for each in worlds if (each[2:] or [0]) == [number]]:
                    mine, its = builder_of(words)
                    meeting = stack.enter_context(mine.choose_rendezvous(must_know=False))
                    self.begin(mine.build(meeting), limits_of(its), places)

            def world_ended(self, world):
                self.begin_after(world.number)
                if len(self.worlds) == 1 + len(worlds) and all(each.is_over for each in list(self.worlds.values())[1:]):
                    self.begin_no_more()

        run = Several(plan, limits_of(options), control, screen)
        run.launch_id, run.address, run.more = plan.supervision.launch_id, "", {}
        code = run.run()
    print(json.dumps([each.outcome.code for each in run.worlds.values()]))
    return code


if __name__ == "__main__":
    try:
        first, *rest = json.loads(sys.argv[1])
        sys.exit(main(first, rest))
    except EzpzError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
