"""Device and backend without an accelerator: torch is replaced where a test needs one, by a plain object."""

import copy
import json
import sys

import pytest
from fake_torch import be_rank, distributed, install

from ezpz.dist import backend, device
from ezpz.errors import MachineError, UsageError

MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@pytest.fixture(autouse=True)
def _nothing_is_told(monkeypatch):
    for name in (*MASKS, "TORCH_DEVICE", "TORCH_BACKEND", "EZPZ_OVERSUBSCRIBE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(device, "_bound", None)


def chosen():
    return device.get_torch_device_type(), str(device.device()), backend.get_torch_backend()


THERE = [
    ({}, "", ("cpu", "cpu", "gloo")),
    ({"cuda": 4}, "", ("cuda", "cuda:2", "nccl")),
    ({"cuda": 4, "xpu": 4}, "", ("cuda", "cuda:2", "nccl")),
    ({"xpu": 12}, "", ("xpu", "xpu:2", "xccl")),
    ({"xpu": 4, "mps": 1}, "", ("xpu", "xpu:2", "xccl")),
    ({"mps": 1}, "", ("mps", "mps", "gloo")),
    ({"cuda": 4}, "cpu", ("cpu", "cpu", "gloo")),
    ({"cuda": 4}, "CUDA:1", ("cuda", "cuda:1", "nccl")),
    ({"cuda": 4, "xpu": 4}, "xpu", ("xpu", "xpu:2", "xccl")),
    ({"cuda": 2}, "cuda:1", ("cuda", "cuda:1", "nccl")),  # named by hand, so that ranks share it knowingly
]


def test_the_device_follows_what_is_there_and_the_users_word(subtests, monkeypatch):
    for kinds, wish, expected in THERE:
        with subtests.test(wish=wish, **kinds), monkeypatch.context() as patch:
            install(patch, **kinds)
            be_rank(patch, 2, 4)
            if wish:
                patch.setenv("TORCH_DEVICE", wish)
            assert chosen() == expected


def test_rocm_is_cuda_to_torch_and_to_its_users(monkeypatch):
    install(monkeypatch, hip="6.4", cuda=8)
    be_rank(monkeypatch, 7, 8)
    assert chosen() == ("cuda", "cuda:7", "nccl")


def test_one_visible_device_behind_a_mask_is_the_ranks_own(subtests, monkeypatch):
    for mask in MASKS:
        with subtests.test(mask=mask), monkeypatch.context() as patch:
            install(patch, cuda=1)
            be_rank(patch, 2, 4)
            patch.setenv(mask, "2")
            assert str(device.device()) == "cuda:0"


def test_more_ranks_than_devices_is_an_error_on_every_rank_and_says_how_to_share(subtests, monkeypatch):
    for local, visible in ((3, 2), (0, 2), (1, 1)):
        with subtests.test(local=local, visible=visible), monkeypatch.context() as patch:
            install(patch, cuda=visible)
            be_rank(patch, local, 4)
            expected = rf"local rank {local} of 4 .* {visible} cuda devices are visible.*--ppn {visible}"
            with pytest.raises(MachineError, match=f"{expected}.*--oversubscribe.*TORCH"):
                device.device()


def test_a_launch_that_was_told_to_share_deals_devices_in_blocks_over_gloo(monkeypatch):
    install(monkeypatch, cuda=2)
    monkeypatch.setenv("EZPZ_OVERSUBSCRIBE", "1")
    dealt = []
    for local in range(5):
        be_rank(monkeypatch, local, 5)
        dealt.append(str(device.device()))
    assert dealt == ["cuda:0"] * 3 + ["cuda:1"] * 2
    assert backend.get_torch_backend() == "gloo"


def test_sharing_that_nobody_needs_changes_nothing(monkeypatch):
    install(monkeypatch, cuda=4)
    monkeypatch.setenv("EZPZ_OVERSUBSCRIBE", "1")
    be_rank(monkeypatch, 3, 4)
    assert chosen() == ("cuda", "cuda:3", "nccl")


def test_a_device_that_is_not_there_names_those_that_are(monkeypatch):
    install(monkeypatch, cuda=2)
    monkeypatch.setenv("TORCH_DEVICE", "xpu")
    with pytest.raises(UsageError, match=r"no usable xpu device .*cuda, cpu"):
        device.get_torch_device_type()


def test_a_device_that_torch_does_not_know_names_those_that_it_does(subtests, monkeypatch):
    for text in ("gpu", "cuda:", "cuda:one", "npu", "cuda;1"):
        with subtests.test(text=text), monkeypatch.context() as patch:
            install(patch, cuda=2)
            patch.setenv("TORCH_DEVICE", text)
            with pytest.raises(UsageError, match=r"unknown device .*cuda, xpu, mps, cpu"):
                device.device()


def test_an_index_beyond_the_visible_devices_is_refused_before_the_group_is(monkeypatch):
    install(monkeypatch, cuda=2)
    monkeypatch.setenv("TORCH_DEVICE", "cuda:2")
    with pytest.raises(UsageError, match=r"no device cuda:2 \(from TORCH_DEVICE\): 2 cuda devices .* 0 to 1"):
        device.device()


def npu(monkeypatch, **kinds):
    vendors = distributed([], backends={"hccl": ["npu"]})
    return install(monkeypatch, vendor="npu", dist=vendors, **kinds)


def test_a_vendors_registered_device_comes_before_mps_with_the_backend_that_it_registered(monkeypatch):
    npu(monkeypatch, npu=8, mps=1)
    be_rank(monkeypatch, 5, 8)
    assert chosen() == ("npu", "npu:5", "hccl")
    assert backend.group_backend("hccl", "npu") == "cpu:gloo,npu:hccl"
    monkeypatch.setenv("TORCH_DEVICE", "npu:1")
    assert str(device.device()) == "npu:1"


def test_a_vendors_device_counts_only_when_it_is_available_and_has_a_name(monkeypatch):
    npu(monkeypatch, npu=0)
    assert chosen() == ("cpu", "cpu", "gloo")
    torch = install(monkeypatch)
    torch.privateuseone = torch.cuda
    assert "privateuseone" not in device.device_types()


def test_a_vendors_device_without_a_backend_says_what_to_import(monkeypatch):
    install(monkeypatch, vendor="npu", npu=1)
    with pytest.raises(MachineError, match="no collective backend for npu"):
        backend.get_torch_backend()


@pytest.fixture
def rocm(monkeypatch, tmp_path):
    driver = tmp_path / "kfd"
    driver.touch()
    monkeypatch.setattr(device, "_AMD_DRIVER", driver)
    install(monkeypatch, hip="6.4")
    return driver


def test_two_masks_of_rocm_that_hide_everything_are_both_named(subtests, monkeypatch, rocm):
    for inner in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        for wish in ("", "cuda"):
            with subtests.test(inner=inner, wish=wish), monkeypatch.context() as patch:
                patch.setenv("ROCR_VISIBLE_DEVICES", "3")
                patch.setenv(inner, "3")
                if wish:
                    patch.setenv("TORCH_DEVICE", wish)
                with pytest.raises(
                    MachineError, match=rf"ROCR_VISIBLE_DEVICES=3 and then by {inner}=3 .*unset {inner}"
                ):
                    device.device()


def test_a_host_without_the_driver_or_a_mask_that_hides_on_purpose_means_the_cpu(monkeypatch, rocm):
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "3")
    assert device.get_torch_device_type() == "cpu"
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "-1")
    assert device.get_torch_device_type() == "cpu"
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "3")
    rocm.unlink()
    assert device.get_torch_device_type() == "cpu"


def test_older_scripts_get_the_type_and_add_the_index_themselves(monkeypatch):
    install(monkeypatch, cuda=4)
    be_rank(monkeypatch, 2, 4)
    kind = device.get_torch_device()
    assert f"{kind}:2" == str(device.device()) == "cuda:2"
    assert isinstance(kind, str)
    assert {"cuda": 1}[kind] == 1
    assert (kind.type, kind.index, json.dumps({"device": copy.deepcopy(kind)})) == ("cuda", None, '{"device": "cuda"}')
    monkeypatch.setenv("TORCH_DEVICE", "cuda:1")
    assert (device.get_torch_device(), str(device.device())) == ("cuda", "cuda:1")


def test_the_older_pattern_that_names_a_device_which_is_not_there_is_answered_by_what_to_use(monkeypatch):
    install(monkeypatch, cuda=1)
    be_rank(monkeypatch, 2, 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    wrong = RuntimeError("CUDA error: invalid device ordinal")
    assert not device.advice_on_index(wrong)  # before a device is bound nothing is known
    device.bind_device(device.device())
    advice = device.advice_on_index(wrong)
    assert advice.startswith("cuda:2 does not exist here: the device of local rank 2 is cuda:0")
    assert "ezpz.device()" in advice
    assert "\n" not in advice
    assert not device.advice_on_index(RuntimeError("out of memory"))
    be_rank(monkeypatch, 0, 4)
    assert not device.advice_on_index(wrong)  # the index was right there


def test_older_keywords_select_the_type_and_the_form(monkeypatch):
    torch = install(monkeypatch, cuda=4)
    be_rank(monkeypatch, 2, 4)
    assert device.device("cpu") == torch.device("cpu")
    assert device.get_torch_device_type("cpu") == "cpu"
    assert device.get_torch_device(as_torch_device=False) == "cuda"
    assert type(device.get_torch_device(as_torch_device=True)) is torch.device
    with pytest.raises(UsageError, match=r"no usable xpu device \(from device_type=xpu\)"):
        device.get_torch_device_type("xpu")


CHOICES = [
    (None, "", "cuda:2"),
    (1, "", "cuda:1"),
    ("cuda:3", "", "cuda:3"),
    ("cuda", "", "cuda:2"),
    ("cpu", "", "cpu"),
    (1, "cpu", "cpu"),
    (1, "cuda:0", "cuda:0"),
    (1, "cuda", "cuda:1"),
    ("cpu", "cuda", "cuda:2"),
    ("cuda:3", "cuda", "cuda:3"),
]


def test_a_programs_choice_of_device_stands_below_torch_device(subtests, monkeypatch):
    for asked, wish, expected in CHOICES:
        with subtests.test(asked=asked, wish=wish), monkeypatch.context() as patch:
            install(patch, cuda=4)
            be_rank(patch, 2, 4)
            if wish:
                patch.setenv("TORCH_DEVICE", wish)
            assert str(device.choose_device(asked)) == expected


IMPOSSIBLE = [(4, "0 to 3"), (-1, "0 to 3"), ("cuda:9", "0 to 3"), ("xpu", "no usable xpu"), (True, "True")]


def test_a_programs_impossible_choice_is_refused(subtests, monkeypatch):
    for asked, error in IMPOSSIBLE:
        with subtests.test(asked=asked), monkeypatch.context() as patch:
            install(patch, cuda=4)
            be_rank(patch, 2, 4)
            with pytest.raises(UsageError, match=rf"{error}"):
                device.choose_device(asked)


def test_while_a_group_stands_the_bound_device_is_the_answer_and_afterwards_the_environment(monkeypatch):
    torch = install(monkeypatch, cuda=4)
    be_rank(monkeypatch, 2, 4)
    device.bind_device(torch.device("cuda", 3))
    assert torch.calls == [("cuda", "set_device", "cuda:3")]
    assert str(device.device()) == "cuda:2"
    torch.distributed.is_initialized = lambda: True
    assert str(device.device()) == "cuda:3"
    assert str(device.device("cpu")) == "cpu"


def test_a_cpu_and_mps_have_nothing_to_bind(monkeypatch):
    torch = install(monkeypatch, mps=1)
    for kind in ("cpu", "mps"):
        device.bind_device(torch.device(kind))
    assert torch.calls == []


BESIDE_GLOO = [
    ("gloo", "cpu", "gloo"),
    ("nccl", "cuda", "cpu:gloo,cuda:nccl"),
    ("xccl", "xpu", "cpu:gloo,xpu:xccl"),
    ("ccl", "xpu", "cpu:gloo,xpu:ccl"),
    ("gloo", "cuda", "gloo"),
    ("gloo", "mps", "cpu:gloo,mps:gloo"),
    ("cpu:mpi,cuda:nccl", "cuda", "cpu:mpi,cuda:nccl"),
]


def test_accelerators_get_gloo_beside_their_own_backend(subtests, monkeypatch):
    for name, kind, expected in BESIDE_GLOO:
        with subtests.test(name=name, kind=kind), monkeypatch.context() as patch:
            install(patch)
            assert backend.group_backend(name, kind) == expected


def test_a_torch_without_gloo_for_mps_is_not_asked_for_it(monkeypatch):
    install(monkeypatch).distributed.Backend.default_device_backend_map.pop("mps")
    assert backend.group_backend("gloo", "mps") == "gloo"


BOUND = [
    ("cuda:1", "nccl", "cuda:1"),
    ("cuda:1", "cpu:gloo,cuda:nccl", "cuda:1"),
    ("xpu:0", "xccl", "xpu:0"),
    ("npu:0", "hccl", "npu:0"),
    ("cuda:1", "gloo", None),
    ("xpu:0", "ccl", None),
    ("cuda", "nccl", None),
    ("cpu", "gloo", None),
    ("mps", "gloo", None),
]


def test_the_group_is_bound_to_accelerators_with_an_index_alone(subtests, monkeypatch):
    for index, name, bound in BOUND:
        with subtests.test(index=index, backend=name), monkeypatch.context() as patch:
            torch = install(patch, cuda=2, xpu=2)
            assert backend.device_id_for_group(torch.device(index), name) == (torch.device(bound) if bound else None)


def test_a_mask_per_tile_is_warned_of_once_per_host_because_xccl_would_hang(monkeypatch, capsys):
    torch = install(monkeypatch, xpu=1)
    monkeypatch.setenv("ZE_AFFINITY_MASK", "1")
    for local in range(3):
        be_rank(monkeypatch, local, 3)
        backend.device_id_for_group(torch.device("xpu", 0), "xccl")
    assert capsys.readouterr().out.count("unset ZE_AFFINITY_MASK") == 1
    torch.xpu.device_count = lambda: 3
    be_rank(monkeypatch, 0, 3)
    backend.device_id_for_group(torch.device("xpu", 0), "xccl")
    assert not capsys.readouterr().out


def test_xpu_without_any_backend_says_what_to_install(monkeypatch):
    torch = install(monkeypatch, xpu=2, dist=distributed([], built_in=("gloo",)))
    monkeypatch.setitem(sys.modules, "oneccl_bindings_for_pytorch", None)
    with pytest.raises(MachineError, match=r"no collective backend for xpu.*gloo cannot move xpu tensors"):
        backend.get_torch_backend()
    torch.distributed.is_xccl_available = lambda: True
    assert backend.get_torch_backend() == "xccl"


def test_ccl_counts_once_its_binding_imports(monkeypatch):
    install(monkeypatch, xpu=2, dist=distributed([], built_in=("gloo",), backends={"ccl": ["xpu"]}))
    monkeypatch.setitem(sys.modules, "oneccl_bindings_for_pytorch", object())
    assert backend.get_torch_backend() == "ccl"
    monkeypatch.setenv("TORCH_BACKEND", "ccl")
    assert backend.get_torch_backend() == "ccl"


def test_cuda_without_nccl_uses_gloo_and_says_so(monkeypatch, capsys):
    install(monkeypatch, cuda=1, dist=distributed([], built_in=("gloo",)))
    assert backend.get_torch_backend() == "gloo"
    assert "no nccl" in capsys.readouterr().out


NAMED = [
    ({}, "GLOO", "gloo"),
    ({"cuda": 1}, "cpu:gloo, cuda:nccl", "cpu:gloo,cuda:nccl"),
    ({"cuda": 1}, "gloo", "gloo"),
    ({"cuda": 1}, "ucc", "ucc"),
    ({"cuda": 1}, "mycomm", "mycomm"),
    ({"xpu": 1}, "fake", "fake"),
]


def test_a_backend_that_the_user_names_is_taken(subtests, monkeypatch):
    for kinds, wish, expected in NAMED:
        with subtests.test(wish=wish, **kinds), monkeypatch.context() as patch:
            install(patch, dist=distributed([], backends={"mycomm": ["cuda"]}), **kinds)
            patch.setenv("TORCH_BACKEND", wish)
            assert backend.get_torch_backend() == expected


CANNOT_BE = [
    ("nickel", r"unknown backend 'nickel' \(from TORCH_BACKEND=nickel\); expected one of gloo, nccl"),
    ("cpu:gloo,cuda:nickel", "unknown backend 'nickel'"),
    ("undefined", "unknown backend 'undefined'"),
    ("ccl", "once oneccl_bindings_for_pytorch is installed"),
    ("mpi", "no backend mpi .*this torch was built without it"),
    ("xccl", r"backend xccl \(from TORCH_BACKEND\) moves xpu tensors, and this rank's device is cuda"),
    ("cpu:gloo", "no backend for cuda in 'cpu:gloo'"),
    ("cpu:gloo,cuda:", "unreadable backend"),
    ("cpu:gloo,nccl", "unreadable backend"),
    ("cuda:nccl,cuda:gloo", "one device twice"),
]


def test_a_backend_that_cannot_be_says_why(subtests, monkeypatch):
    for wish, error in CANNOT_BE:
        with subtests.test(wish=wish), monkeypatch.context() as patch:
            install(patch, cuda=1)
            patch.setitem(sys.modules, "oneccl_bindings_for_pytorch", None)
            patch.setenv("TORCH_BACKEND", wish)
            with pytest.raises(UsageError, match=error):
                backend.get_torch_backend()


def test_gloo_for_xpu_is_obeyed_with_a_warning_of_what_will_fail(monkeypatch, capsys):
    install(monkeypatch, xpu=1)
    monkeypatch.setenv("TORCH_BACKEND", "gloo")
    assert backend.get_torch_backend() == "gloo"
    assert "collectives of xpu tensors will fail" in capsys.readouterr().out


def test_the_part_of_a_backend_that_serves_a_device_is_found():
    assert backend.backend_for("cpu:gloo,cuda:nccl", "cuda") == "nccl"
    assert backend.backend_for("cpu:gloo", "cuda") == ""
    assert backend.backend_for("nccl", "cuda") == "nccl"
