"""Odd machines: no mpiexec or a strange one, folders that are gone or full, masks without devices. Cases 36 to 40."""

from __future__ import annotations

from plans import ONCE, TELL, told
from playing import Case, fail

from lab.process import program
from lab.ssh import LAUNCH


def mpiexecs(**texts):
    """Programs of the stage's own `bin`, which is the first on PATH."""

    def setup(stage):
        (stage.folder / "bin").mkdir()
        for name, text in texts.items():
            program(stage.folder / "bin" / name, text)

    return setup


def own_bin(*words):
    def wrap(stage, _line):
        return ["env", f"PATH={stage.folder}/bin:{stage.env()['PATH']}", *LAUNCH, *words]

    return wrap


def shell(script):
    """The launch as `"$@"` of a bash script in the stage's folder."""

    def wrap(stage, line):
        return ["bash", "-c", f"set -e; D={stage.folder}; {script}", "wrapped", *line]

    return wrap


MACHINES = (
    Case(
        number="36",
        name="an mpiexec whose --version says nothing known",
        setup=mpiexecs(mpiexec="#!/bin/sh\necho a wrapper of ours\n"),
        wrap=own_bin("-n", "2", "true"),
        code=125,
        cause=r"^ezpz: .*a wrapper of ours",
        not_on=ONCE,
    ),
    Case(
        number="36",
        name="an mpiexec whose --version hangs",
        setup=mpiexecs(mpiexec="#!/bin/sh\nexec sleep 600\n"),
        wrap=own_bin("-n", "2", "true"),
        code=125,
        cause=r"^ezpz: .*mpiexec does not say",
        grace=10,
        not_on=ONCE,
    ),
    Case(
        number="36", name="no mpiexec at all", ranks=TELL, wrap=lambda _s, line: line, code=0, after=told, not_on=ONCE
    ),
    Case(
        number="37",
        name="another -n among --launcher-args",
        ranks="exit 0",
        options=("--launcher-args=-n 2",),
        code=(0, 2, 125),
        not_on={"local": "no launcher between", "ssh": "no launcher between", "torchrun": "its option is another"},
    ),
    Case(
        number="39",
        name="a working folder that was deleted",
        ranks="echo fine",
        wrap=shell('mkdir "$D/gone"; cd "$D/gone"; rmdir "$D/gone"; exec "$@"'),
        code=(0, 2, 125),
    ),
    Case(
        number="39",
        name="a working folder that cannot be written",
        ranks=TELL,
        wrap=shell(
            'mkdir "$D/ro"; mount -t tmpfs -o ro tmpfs "$D/ro"; cd "$D/ro"; '
            'code=0; "$@" || code=$?; cd /; umount "$D/ro"; exit $code'
        ),
        code=0,
        after=told,
        not_on=dict.fromkeys(("srun", "ssh"), "each host of the lab has its own mounts"),
    ),
    Case(
        number="39",
        name="no HOME",
        ranks=TELL,
        env={"HOME": None},
        code=0,
        after=told,
        not_on={"openmpi": "prterun itself needs a home folder"},
    ),
    Case(
        number="39",
        name="a TMPDIR of 150 characters",
        ranks=TELL,
        wrap=shell('T="$D/' + "t" * 150 + '"; mkdir "$T"; export TMPDIR="$T"; exec "$@"'),
        code=0,
        after=told,
        not_on={
            "openmpi": "its own sockets end at 108 characters",
            "openmpi4": "its own sockets end at 108 characters",
        },
    ),
    Case(
        number="39",
        name="no place in TMPDIR",
        ranks=TELL,
        wrap=shell(
            'mkdir "$D/full"; mount -t tmpfs -o size=16k tmpfs "$D/full"; '
            'dd if=/dev/zero of="$D/full/all" 2>/dev/null || :; export TMPDIR="$D/full"; '
            'code=0; "$@" || code=$?; umount -l "$D/full"; exit $code'
        ),
        code=(0, 2, 125),
        not_on=dict.fromkeys(("mpich", "openmpi", "openmpi4", "impi", "torchrun"), "it keeps files of its own there")
        | dict.fromkeys(("srun", "ssh"), "each host of the lab has its own mounts"),
    ),
    Case(
        number="39",
        name="no /dev/shm",
        ranks=TELL,
        wrap=lambda _stage, line: [
            "unshare",
            "--mount",
            "bash",
            "-c",
            'mount -t tmpfs -o ro tmpfs /dev/shm; exec "$@"',
            "-",
            *line,
        ],
        code=0,
        after=told,
        not_on={"ssh": "each host of the lab has its own mounts", "srun": "each host of the lab has its own mounts"},
    ),
    *(
        Case(
            number="40",
            name=f"CUDA_VISIBLE_DEVICES={mask!r} on a host without devices",
            ranks='echo "$LOCAL_RANK${CUDA_VISIBLE_DEVICES-unset}"',
            env={"CUDA_VISIBLE_DEVICES": mask, "EZPZ_NGPU_PER_HOST": None},
            options=("-n", "2"),
            code=0,
            after=lambda run, mask=mask: (
                sorted(run.output().decode().split()) == [f"0{mask}", f"1{mask}"] or fail(run.output())
            ),
            not_on=ONCE,
        )
        for mask in ("", "-1")
    ),
)
