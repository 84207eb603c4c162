"""The modules that older scripts import: what they offer is here, and what they lack is answered with what to use."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.compat import GONE, INSTEAD, refuse

HOME = Path(ezpz.__file__).parent
# Modules of older code that are no packages of today: files of one text over a stub.
OLDER = (
    *("configs", "flops", "history", "tp", "tracker", "utils", "log/config", "log/console", "log/handler"),
    "models/minimal",
)


def answer(line):
    """Run an import as a script has it, and return the words by which it is refused."""
    with pytest.raises(ImportError) as caught:
        exec(line, {})
    return str(caught.value)


def test_an_older_module_is_a_file_of_one_text():
    """That its names are there is a test of all stubs."""
    texts = {(HOME / f"{name}.py").read_text().replace(f"ezpz.{name.replace('/', '.')}", "MODULE") for name in OLDER}
    (text,) = texts
    assert len(text.splitlines()) <= 8


def names(stub):
    return re.findall(r"as (\w+)", (HOME / f"{stub}.pyi").read_text())


def test_the_log_has_older_names_beside_its_own():
    """Its stub is not beside its file, whose own code it would hide from type checkers."""
    for name in names("log/older"):
        assert getattr(ezpz.log, name) is not None


def test_what_has_another_name_today_is_not_offered_too():
    assert not {name for stub in (*OLDER, "profile", "examples/__init__", "log/older") for name in names(stub)} & {
        *INSTEAD
    }


def test_a_name_that_is_not_here_is_answered_by_what_to_use(subtests):
    for line, words in {
        "from ezpz.history import BaseHistory": "'BaseHistory': use ezpz.History",
        "from ezpz.utils import get_timestampp": "Did you mean get_timestamp?",
        "from ezpz.configs import ZeroConfig": "ezpz.load_ds_config",
        "from ezpz.tracker import setup_tracker": "History(trackers=…)",
        "from ezpz import run_ddp": "'run_ddp': use ezpz launch",
        "from ezpz.dist import init_process_group": "use ezpz.setup_torch()",
        "from ezpz.distributed import get_device": "use ezpz.device()",
        "from ezpz.log import get_logging_config": "use ezpz.get_logger",
        "from ezpz.log.config import something": "'something': the page \"Older scripts\"",
        "from ezpz import gather_for_metrics": "use ezpz.train.evaluate, or ezpz.gather_objects",
        "from ezpz import Accelerator": "use ezpz.setup_torch() and ezpz.prepare(",
        "from ezpz.profile import profiling_context_from_args": "ezpz.add_profile_option",
    }.items():
        with subtests.test(line):
            assert words in answer(line)


def test_asking_for_a_name_is_no_import():
    assert not hasattr(ezpz.utils, "BaseHistory")
    assert getattr(ezpz, "run_ddp", 3) == 3
    with pytest.raises(AttributeError, match=r"'format_compact_summary': use what History\.update returns"):
        ezpz.utils.format_compact_summary  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute '__wrapped__'$"):
        refuse("ezpz", "__wrapped__", [], inspect.currentframe())


def test_any_name_can_be_the_first_that_a_program_imports(clean_env):
    """A file that imports another one must not come by the table on its way; a fork has imported nothing yet."""
    code = """
import os, sys
for first in sys.argv[1:]:
    if not os.fork():
        exec(f"from ezpz import {first}")
        os._exit(0)
    assert os.wait()[1] == 0, first
"""
    names = ("get_torch_device", "wrap_model", "setup", "History", "device")
    subprocess.run([sys.executable, "-c", code, *names], env=clean_env, check=True, timeout=60)


def test_the_module_profile_is_also_the_function():
    from ezpz.profile import get_context_manager

    assert callable(get_context_manager)
    with ezpz.profile("none") as prof:
        prof.step()
    assert sys.modules["ezpz.profile"] is ezpz.profile


def test_what_was_made_of_small_functions():
    from ezpz.configs import TrainConfig
    from ezpz.history import format_pair, summarize_dict
    from ezpz.utils import get_memory_metrics, normalize

    assert format_pair("a", {"b": [1, 2.5]}, precision=2) == "a.b[0]=1\na.b[1]=2.50"
    assert summarize_dict({"loss": 0.5, "iter": 3}, precision=2, keys_to_skip=["iter"]) == "loss=0.50"
    assert normalize("Some_Name..x") == "some-name-x"
    assert get_memory_metrics("cpu") == {}
    config = TrainConfig(seed=3, other="x")
    assert (config.seed, config.backend, config.extras) == (3, "DDP", {"other": "x"})


def test_the_folder_of_an_example_is_the_same_at_every_call(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    from ezpz.examples import get_example_outdir

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EZPZ_LOG_TIMESTAMP", "x")
    monkeypatch.delenv("EZPZ_LOG_TIMESTAMP")
    first = get_example_outdir("ezpz.examples.fsdp")
    assert first.is_dir()
    assert first.parent == tmp_path / "outputs" / "ezpz.examples.fsdp"
    assert get_example_outdir("ezpz.examples.fsdp") == first
    assert get_example_outdir("m", tmp_path / "other") == tmp_path / "other" / "m" / first.name


def test_flops_and_shapes_of_a_model_by_older_calls(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch sets it when it counts
    pytest.importorskip("torch")
    from ezpz.flops import compute_mfu, estimate_model_flops, get_peak_flops, try_estimate
    from ezpz.models import summarize_model
    from ezpz.models.minimal import SequentialLinearNet

    model = SequentialLinearNet(input_dim=4, output_dim=2, sizes=[8])
    forward = 2 * 3 * (4 * 8 + 8 * 2)
    assert estimate_model_flops(model, (3, 4), backward=False) <= forward
    assert 2 * forward < try_estimate(model, input_shape=(3, 4)) <= 3 * forward
    assert try_estimate(model, input_shape=(3, 5)) == 0
    assert get_peak_flops("A100") == 312e12
    assert compute_mfu(312e12, 2.0, device_name="A100") == 50.0
    assert compute_mfu(1e9, 2.0, device_name="no such device") == 0.0
    assert summarize_model(model, depth=2).startswith("SequentialLinearNet: 58 parameters\n  layers: Sequential, 58")


def test_a_module_that_is_no_more_is_answered_by_what_to_use(subtests):
    for module, instead in GONE.items():
        name = module.rpartition(".")[2]
        for line in (f"import {module}", f"from {module} import something", f"from ezpz import {name}"):
            with subtests.test(line):
                assert f"module {module!r} of the older ezpz is gone: use {instead}" in answer(line)


def test_every_older_module_that_answers_is_in_the_table():
    folder = HOME / "compat" / "gone"
    assert {f"ezpz.{path.stem}" for path in folder.glob("*.py")} - {"ezpz.__init__"} == set(GONE)
    assert not [name for name in GONE if list(HOME.glob(f"{name.partition('.')[2]}*"))]
