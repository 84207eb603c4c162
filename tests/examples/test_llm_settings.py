"""The configuration of the language-model trainer: files that people have, names of other versions, refusals."""

import dataclasses
from pathlib import Path

import pytest

from ezpz.errors import UsageError
from ezpz.examples.llm_config import ALIASES, PRESETS, LlmConfig, options
from ezpz.models import LLAMA_SIZES
from ezpz.train import as_dict, as_toml, parse
from ezpz.train.settings import read_settings_file

THEIRS = Path(__file__).parent / "configs"
OURS = Path(__file__).parents[2] / "examples" / "train_configs"
# Sections and keys of mmm's own configuration (src/mmm/configs.py of https://github.com/saforem2/mmm), in its order.
KEYS = """
job config_file dump_folder description use_for_integration_test print_args
profiling enable_profiling save_traces_folder profile_freq enable_memory_snapshot save_memory_snapshot_folder
metrics log_freq enable_tensorboard disable_color_printing save_tb_folder rank_0_only enable_wandb
model name flavor norm_type tokenizer_path
optimizer name lr fused early_step_in_backward
training dataset dataset_path batch_size seq_len warmup_steps max_norm steps data_parallel_replicate_degree
training data_parallel_shard_degree enable_cpu_offload tensor_parallel_degree disable_loss_parallel
training mixed_precision_param mixed_precision_reduce compile gc_freq seed deterministic
training enable_async_tensor_parallel pipeline_parallel_degree pipeline_parallel_split_points pipeline_parallel_schedule
training pipeline_parallel_schedule_csv pipeline_parallel_microbatches enable_compiled_autograd context_parallel_degree
training context_parallel_rotate_method
experimental enable_async_tensor_parallel pipeline_parallel_degree pipeline_parallel_split_points
experimental pipeline_parallel_schedule pipeline_parallel_schedule_csv pipeline_parallel_microbatches
experimental enable_compiled_autograd context_parallel_degree context_parallel_rotate_method
checkpoint enable_checkpoint folder interval_type interval model_weights_only export_dtype create_seed_checkpoint
checkpoint async_mode keep_latest_k load_step
activation_checkpoint mode selective_ac_option
float8 enable_float8_linear enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp scaling_type_input
float8 scaling_type_weight scaling_type_grad_output
comm init_timeout_seconds train_timeout_seconds trace_buf_size
memory_estimation enabled disable_fake_mode
"""


def names():
    return [f"{section}.{key}" for section, *keys in map(str.split, KEYS.strip().splitlines()) for key in keys]


def test_every_key_of_the_seeds_program_is_known():
    parser = options()
    plan = parser.plan
    assert not set(names()) - set(plan.names)
    for name, (own, is_opposite) in plan.names.items():
        default = plan.keys[own].default
        if default is not None and default not in {"", ()}:  # its own default can be typed, whatever it is
            parse(parser, [f"{name}={not default if is_opposite else default}"])


@pytest.mark.parametrize("name", ["debug_model", "llama3_8b"])
def test_the_seeds_files_are_understood_to_the_last_key(name):
    path = THEIRS / f"mmm_{name}.toml"
    args = parse(options(), ["--job.config_file", str(path), "--training.seq_len=4096"])
    values, tables = as_dict(args.config), read_settings_file(str(path), "").tables
    told = {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}
    assert len(told) == {"debug_model": 44, "llama3_8b": 36}[name]
    for key, value in told.items():
        section, _, own = key.partition(".")
        if key == "training.seq_len":
            assert (values[section][own], args.origins[key]) == (4096, "the command line")
        else:
            assert values[section][own] == (value.lower() if key == "model.flavor" else value), key
            assert args.origins[key].startswith(f"mmm_{name}.toml, line ")
    assert args.preset is None
    assert LLAMA_SIZES[args.config.model.flavor]


@pytest.mark.parametrize("name", ["debug_model", "llama3_8b"])
def test_our_own_files_say_what_the_seeds_do_but_for_tokenizer_vocabulary_and_a_shipped_text(name):
    ours, theirs = (
        parse(options(), ["--config", str(path)]).config
        for path in (OURS / f"{name}.toml", THEIRS / f"mmm_{name}.toml")
    )
    changed = {
        (section, key)
        for section, table in as_dict(ours).items()
        for key, value in table.items()
        if as_dict(theirs)[section][key] != value
    }
    own = {
        "llama3_8b": {("model", "vocab_size")},
        "debug_model": {("job", "use_for_integration_test"), ("training", "dataset")},  # a text that ships
    }
    assert changed == {("job", "config_file"), ("model", "tokenizer_path"), *own[name]}


def test_names_of_newer_files_mean_the_same(tmp_path):
    path = tmp_path / "newer.toml"
    path.write_text(
        """
[job]
print_config = true
[metrics]
save_for_all_ranks = false
[model]
flavor = "8B"
hf_assets_path = "./Llama"
[optimizer]
eps = 1e-8
[lr_scheduler]
warmup_steps = 3
[training]
local_batch_size = 2
dtype = "float32"
[parallelism]
data_parallel_replicate_degree = 2
tensor_parallel_degree = 4
disable_loss_parallel = true
pipeline_parallel_degree = 1
context_parallel_degree = 1
[checkpoint]
enable = true
last_save_model_only = true
[compile]
enable = true
[debug]
seed = 7
deterministic = true
[memory_estimation]
enable = false
"""
    )
    config = parse(options(), ["--config", str(path)]).config
    assert config.job.print_args
    assert config.metrics.rank_0_only
    assert (config.model.flavor, config.model.tokenizer_path) == ("8b", "./Llama")
    training = config.training
    assert (training.warmup_steps, training.batch_size, training.seed, training.deterministic) == (3, 2, 7, True)
    assert (training.data_parallel_replicate_degree, training.tensor_parallel_degree) == (2, 4)
    assert (training.enable_loss_parallel, training.compile) == (False, True)
    assert (config.checkpoint.enable_checkpoint, config.checkpoint.model_weights_only) == (True, True)


def test_without_a_file_it_is_the_debug_preset_which_a_small_machine_can_train():
    args = parse(options(), ["--outdir", "out", "--training.steps", "5"])
    assert (args.preset, args.name, args.outdir) == ("debug", "llm", "out")
    assert args.config.training.steps == 5
    assert args.config.training.dataset == "shakespeare"
    assert args.config.training.mixed_precision_param == "fp32"
    assert args.config.training.batch_size * args.config.training.seq_len <= 4096
    assert args.origins["model.flavor"] == "preset debug"
    assert set(args.origins) == set(options().plan.keys)
    assert PRESETS["debug"].keys() <= set(args.origins)


def test_the_resolved_configuration_is_a_file_that_says_the_same(tmp_path):
    path = tmp_path / "resolved.toml"
    config = parse(options(), ["--training.tensor_parallel_degree", "2", "training.dataset_path=a b"]).config
    path.write_text(as_toml(config))
    again = parse(options(), ["--config", str(path)]).config
    assert dataclasses.replace(again, job=config.job) == config
    assert list(as_dict(config)) == [section.name for section in dataclasses.fields(LlmConfig)]


UNSUPPORTED = """
float8.enable_float8_linear=true float8.enable_fsdp_float8_all_gather=true
float8.precompute_float8_dynamic_scale_for_fsdp=true float8.scaling_type_input=delayed
float8.scaling_type_weight=delayed float8.scaling_type_grad_output=delayed
experimental.enable_async_tensor_parallel=true experimental.enable_compiled_autograd=true
experimental.context_parallel_degree=2 experimental.context_parallel_rotate_method=alltoall
experimental.pipeline_parallel_degree=2 experimental.pipeline_parallel_split_points=layers.2
experimental.pipeline_parallel_schedule=GPipe experimental.pipeline_parallel_schedule_csv=x.csv
experimental.pipeline_parallel_microbatches=4 parallelism.context_parallel_degree=2
training.enable_cpu_offload=true training.mixed_precision_reduce=bfloat16 training.dtype=bfloat16
model.norm_type=layernorm optimizer.early_step_in_backward=true optimizer.eps=1e-6
metrics.rank_0_only=false metrics.save_for_all_ranks=true
checkpoint.load_step=100 checkpoint.create_seed_checkpoint=true checkpoint.async_mode=async_with_pinned_mem
activation_checkpoint.mode=memory_budget memory_estimation.enabled=true memory_estimation.disable_fake_mode=true
"""


def test_what_is_known_but_not_supported_is_said_so(subtests):
    told = r"is not supported: .+ \(from the command line\); expected .+\. Leave it out\."
    spelled = [[word] for word in UNSUPPORTED.split()]
    for words in (*spelled, ["--training.dtype=bfloat16"], ["--training.dtype", "bfloat16"]):
        with subtests.test(words=words):
            with pytest.raises(UsageError, match=told) as caught:
                parse(options(), words)
            assert str(caught.value).startswith(words[0].removeprefix("--").partition("=")[0])


WRONG = {
    "model.flavor=9B": "model.flavor='9B' is wrong",
    "model.flavor=8bb": "Did you mean 8b?",
    "model.flavor=debugmodl": "Did you mean debugmodel?",
    "model.name=llama4": "expected one of llama3. Did you mean llama3?",
    "training.mixed_precision_param=bf17": "expected one of fp32, bf16, fp16. Did you mean bf16?",
    "training.dtype=bf17": "training.dtype='bf17' is wrong",
    "training.data_parallel_shard_degree=0": "a whole number from 1 on, or -1 for all ranks that are left.",
    "training.steps=1e3": "training.steps='1e3' is wrong",
    "optimizer.name=SGD": "expected one of AdamW, Adam.",
    "optimizer.beta1=1": "expected a number from 0 to below 1.",
    "checkpoint.interval_type=minutes": "expected one of steps, seconds.",
    "checkpoint.async_mode=asinc": "expected one of disabled, async. Did you mean async?",
    "activation_checkpoint.selective_ac_option=0": "expected op, or a whole number from 1 on in quotes.",
    "activation_checkpoint.selective_ac_option=ops": "expected op, or",
    "traning.steps=5": "Did you mean training.steps?",
    "training.sequence_len=5": "Did you mean training.seq_len?",
    "job.config_fil=x": "Did you mean job.config_file?",
}


def test_what_is_wrong_is_refused_with_what_is_near(subtests):
    for word, told in WRONG.items():
        with subtests.test(word):
            with pytest.raises(UsageError) as caught:
                parse(options(), [word])
            assert told in str(caught.value)


def test_spellings_that_people_have_are_accepted():
    words = [
        *("model.flavor=8B", "model.name=llama", "optimizer.name=adamw", "training.mixed_precision_param=BFLOAT16"),
        *(
            "checkpoint.interval_type=step",
            "checkpoint.export_dtype=bf16",
            "activation_checkpoint.selective_ac_option=op",
        ),
        *("training.data_parallel_shard_degree=4", "training.dataset=c4_mini", "--training.disable-loss-parallel"),
    ]
    config = parse(options(), words).config
    assert (config.model.flavor, config.model.name, config.optimizer.name) == ("8b", "llama3", "AdamW")
    assert config.training.mixed_precision_param == "bf16"
    assert (config.checkpoint.interval_type, config.checkpoint.export_dtype) == ("steps", "bfloat16")
    assert config.activation_checkpoint.selective_ac_option == "op"
    assert (config.training.data_parallel_shard_degree, config.training.dataset) == (4, "c4_test")
    assert not config.training.enable_loss_parallel


def test_other_names_stand_for_keys_that_are_there():
    plan = options().plan
    assert set(ALIASES) == set(plan.names) - set(plan.keys)
    for name, target in ALIASES.items():
        assert name != target.removeprefix("not ")
