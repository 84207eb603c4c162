"""Find the environment variables that the code of ezpz reads or sets, for the page that explains each."""

import ast
import re
from pathlib import Path

from lab.checkout import ROOT

SRC = ROOT / "src"
# Text in the code of one of these forms is the name of a variable, wherever it stands; of others only what is asked of
# an environment.
_FAMILIES = re.compile(
    r"(?:SLURMD?|SBATCH|PBS|PALS|PMIX?|OMPI|PRTE|MV2|MVP|MPIR|FLUX|I_MPI|HYDRA|TORCHELASTIC|TORCH_NCCL|TORCH_FR|NCCL"
    r"|GLOO|CCL|FI|TP|HF|WANDB|WB|MLFLOW|XDG|ZE|ALPS|ONEAPI|LOCAL|GROUP|ROLE|MASTER|HTTPS?|ALL)_[A-Z0-9_]*[A-Z0-9]"
    r"|MPI_LOCALN?RANK(?:ID|S)|TORCH_(?:HOME|DEVICE|BACKEND)|[A-Z]+_VISIBLE_DEVICES"
)
_OURS = re.compile(r"\bEZPZ_[A-Z0-9_]*[A-Z0-9]\b")
_NAME = re.compile(r"[A-Z][A-Z0-9_]+")
_ENVIRONMENT = re.compile(r"(?:environ(?:ment)?|(?:^|[._])env)$")


def ours():
    """Return the variables that begin with EZPZ_, of Python and of the shell."""
    files = [path for path in SRC.rglob("*") if path.suffix in {".py", ".sh"} or path.parent.name == "bin"]
    return {name for path in files if path.is_file() for name in _OURS.findall(path.read_text(encoding="utf-8"))}


def foreign():
    """Return the variables of others that the Python code asks for."""
    found = set()
    for path in SRC.rglob("*.py"):
        found |= foreign_in(path)
    return {name for name in found if not name.startswith("EZPZ_")}


def foreign_in(path: Path):
    """Return the names in one file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if text(node) and _FAMILIES.fullmatch(text(node)):
            found.add(text(node))
        asked = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_environment(node.func.value):
            asked = node.args[:1] if node.func.attr in {"get", "pop", "setdefault"} else []
        elif isinstance(node, ast.Subscript) and is_environment(node.value):
            asked = [node.slice]
        elif isinstance(node, ast.Compare) and any(map(is_environment, node.comparators)):
            asked = [node.left]
        found |= {text(name) for name in asked if text(name) and _NAME.fullmatch(text(name))}
    return found


def text(node):
    """Return the text that a node of the code is, else nothing."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_environment(node):
    return bool(_ENVIRONMENT.search(ast.unparse(node)))
