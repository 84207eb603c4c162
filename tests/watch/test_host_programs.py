"""What a host can run: packages that cannot be imported, files that hide modules, another python3, a broken mpiexec."""

import os
import sys

import pytest

from ezpz.watch.doctor.host_programs import first_python, import_packages, mpi_programs

TORCH = """
class Tensor:
    def __matmul__(self, other): return self
    def sum(self): return self
    def item(self): return 1.0
    def numpy(self): {numpy}
def ones(*sizes): return Tensor()
zeros = ones
"""
WORKS = TORCH.format(numpy="return self")
# What stands in torch/__init__.py, numpy/__init__.py and files of the working folder; then, per package, its problem.
IMPORTS = [
    (WORKS, "", {}, {"numpy": "", "torch": ""}),
    ("print('torch prints', end='')\n" + WORKS, "print(1)", {}, {"numpy": "", "torch": ""}),
    ("raise ImportError('libx.so: undefined symbol: y')", "", {},
     {"numpy": "", "torch": "ImportError: libx.so: undefined symbol: y"}),
    ("import absent_package", "", {}, {"torch": "ModuleNotFoundError: No module named 'absent_package'"}),
    ("raise SystemExit(3)", "", {}, {"torch": "SystemExit: 3"}),
    ("import os; os.kill(os.getpid(), 4)", "", {}, {"torch": "its process ended with SIGILL"}),
    ("import os; os.write(2, b'MKL FATAL ERROR'); os._exit(2)", "", {},
     {"torch": "its process ended with 2: MKL FATAL ERROR"}),
    (TORCH.format(numpy="raise RuntimeError('Numpy is not available')"), "", {},
     {"torch": "RuntimeError: Numpy is not available"}),
    (WORKS, "raise ImportError('\\n\\nREAD THIS\\n\\nOriginal error was: no libopenblas\\n')", {},
     {"numpy": "ImportError: Original error was: no libopenblas", "torch": ""}),
    ("from random import Random\n" + WORKS, "", {"random.py": ""}, {"numpy": "", "torch": "cannot import name"}),
    ("import smtplib\n" + WORKS, "", {"smtplib.py": "1 +"}, {"torch": "SyntaxError: invalid syntax"}),
    ("import smtplib\n" + WORKS, "", {"smtplib.py": ""}, {"numpy": "", "torch": ""}),
    ("from random import Random\nraise OSError('file too short')", "", {"random.py": "Random = 1"},
     {"torch": "OSError: file too short"}),
]  # fmt: skip
HIDDEN = [[]] * 9 + [["random"], ["smtplib"], ["smtplib"], []]  # of torch


@pytest.mark.parametrize("number", range(len(IMPORTS)))
def test_a_package_that_cannot_be_imported_is_told_with_the_last_line_of_its_error(number, clean_env, tmp_path):
    torch, numpy, files, problems = IMPORTS[number]
    for name, text in (("torch", torch), ("numpy", numpy)):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text(text)
    (tmp_path / "work").mkdir()
    for name, text in files.items():
        (tmp_path / "work" / name).write_text(text)
    found = import_packages(str(tmp_path / "work"), {**clean_env, "PYTHONPATH": str(tmp_path / "packages")})
    assert set(found) == {"numpy", "torch"}
    for name, problem in problems.items():
        assert problem in found[name]["problem"] if problem else not found[name]["problem"], found
        assert found[name]["origin"] == str(tmp_path / "packages" / name / "__init__.py")
        assert (found[name]["seconds"] is None) == bool(problem)
    assert found["torch"]["hidden"] == HIDDEN[number]


def _program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_another_python3_that_comes_first_is_named_and_one_that_leads_here_is_not(clean_env, tmp_path):
    here = clean_env["PATH"]
    assert first_python(clean_env) == {}
    _program(tmp_path / "same" / "python3", f'exec {sys.executable} "$@"')
    assert first_python({**clean_env, "PATH": f"{tmp_path}/same{os.pathsep}{here}"}) == {}
    path = _program(tmp_path / "other" / "python3", "echo /opt/other; echo 3.9.2; echo False")
    other = {"path": path, "version": "3.9.2", "has_torch": False}
    assert first_python({**clean_env, "PATH": f"{tmp_path}/other{os.pathsep}{here}"}) == other
    _program(tmp_path / "broken" / "python3", "exit 1")
    assert first_python({**clean_env, "PATH": f"{tmp_path}/broken{os.pathsep}{here}"}) == {}
    assert first_python({**clean_env, "PATH": str(tmp_path)}) == {}


MPI = [
    ("echo 'mpiexec (Open MPI) 5.0.11'", "openmpi5 5.0.11", ""),
    ("echo 'mpiexec: libfabric.so.1: cannot open shared object file' >&2; exit 127", "",
     "its process ended with 127: mpiexec: libfabric.so.1: cannot open shared object file"),
    ("kill -SEGV $$", "", "its process ended with SIGSEGV"),
    ("echo hello", "", "it does not say which MPI it is"),
]  # fmt: skip


def test_each_mpiexec_on_path_says_which_mpi_it_is_or_why_it_does_not_run(clean_env, tmp_path, subtests):
    for number, (text, name, problem) in enumerate(MPI):
        with subtests.test(text=text):
            folder = tmp_path / str(number)
            path = _program(folder / "mpiexec", text)
            (folder / "links").mkdir()
            (folder / "links" / "mpirun").symlink_to(path)
            environ = {**clean_env, "PATH": os.pathsep.join([str(folder), str(folder / "links"), "/bin"])}
            found = [each for each in mpi_programs(environ) if each["path"].startswith(str(tmp_path))]
            assert found == [{"path": path, "name": name, "problem": problem, "is_needed": True}]
            [found, *_] = mpi_programs({**environ, "SLURM_JOB_ID": "7"})
            assert not found["is_needed"]  # srun starts the ranks
