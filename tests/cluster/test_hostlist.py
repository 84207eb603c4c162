import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ezpz.cluster import expand
from ezpz.errors import UsageError

EXPRESSIONS = [
    ("", []),
    ("n1", ["n1"]),
    (" n1 , n2 ", ["n1", "n2"]),
    ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
    ("n[008-010]", ["n008", "n009", "n010"]),
    ("n[98-102]", ["n98", "n99", "n100", "n101", "n102"]),
    ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ("c[1-2]-ib0", ["c1-ib0", "c2-ib0"]),
    ("1.2.3.[100-101]", ["1.2.3.100", "1.2.3.101"]),
    ("compute-b24-[1-2],compute-b25-[4]", ["compute-b24-1", "compute-b24-2", "compute-b25-4"]),
    ("host[5-6,1]", ["host5", "host6", "host1"]),
    ("a,a", ["a", "a"]),
    ("alpha[3,1], beta", ["alpha3", "alpha1", "beta"]),
]


def test_expressions_expand_in_order(subtests):
    for text, expected in EXPRESSIONS:
        with subtests.test(text=text):
            assert expand(text) == expected


MALFORMED = [
    "n[", "n]1", "n[]", "n[3-1]", "a,,b", "a,", "n[[1]]", "n[1-2", "n[x-y]", "n[0-1,2--5]", "a b", "n[1-999999999]",
]  # fmt: skip


def test_a_malformed_expression_is_shown_with_a_caret(subtests):
    for text in MALFORMED:
        with subtests.test(text=text):
            with pytest.raises(UsageError) as caught:
                expand(text)
            shown, caret = str(caught.value).splitlines()[-2:]
            assert shown.strip() == text
            assert caret.strip() == "^"


ranges = st.tuples(st.integers(0, 150), st.integers(0, 12), st.integers(1, 3)).map(
    lambda t: f"{t[0]:0{t[2]}d}-{t[0] + t[1]:0{t[2]}d}"
)
groups = st.lists(ranges, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
expressions = st.lists(
    st.tuples(st.sampled_from(["n", "nid", "c-b2-"]), groups).map("".join), min_size=1, max_size=3
).map(",".join)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("scontrol"), reason="no scontrol to compare with")
@given(expressions)
def test_slurm_expands_the_same(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp() / "slurm-conf"
    folder.mkdir(exist_ok=True)
    conf = folder / "slurm.conf"
    conf.write_text("ClusterName=toy\nSlurmctldHost=localhost\nNodeName=localhost\nPartitionName=p Nodes=ALL\n")
    env = {"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"}
    answer = subprocess.run(["scontrol", "show", "hostnames", text], env=env, stdout=-1, text=True, check=True)
    assert expand(text) == answer.stdout.split()
