"""What readers make of the rows that `launch` keeps of the hardware: charts, a table, efficiency, present values."""

import json
import math
import re
import time

import pytest
from test_report import Page, check, ordinary, write_run

from ezpz.fields import replace
from ezpz.records.hardware_record import HardwareRow, HardwareSummary
from ezpz.track.run_reader import open_run
from ezpz.view.hardware_rows import newest_values, per_joule, read_hardware
from ezpz.view.report import build_page
from ezpz.view.report.hardware_charts import hardware_map


def sampled(folder, *, hosts=2, devices=4, rows=40, end=1795190000.0):
    """Write the rows of a run whose last device of the last host idles and whose first host is capped."""
    lines = []
    for turn in range(rows):
        for host in range(hosts):
            cards = []
            for device in range(devices):
                idle = (host, device) == (hosts - 1, devices - 1)
                power = 72.0 if idle else 610.0 + 30 * math.sin(turn / 5 + device)
                memory = [(1 if idle else 62) * 2**30] * 3
                cards.append(
                    {
                        "id": str(device),
                        "name": "NVIDIA H100",
                        "given": True,
                        "power": [power, power - 20, power + 20],
                        "used": [0, 0, 0] if idle else [97, 90, 99],
                        "clock": [345, 345, 345] if idle else [1410 if host == 0 else 1980] * 3,
                        "memory": memory,
                        "memory_total": [80 * 2**30] * 3,
                        "joules": power * 30,
                        "throttled": {"power cap": 0.9} if host == 0 else {},
                    }
                )
            now = {"cpu": [4.2, 4, 5], "memory": [9 * 2**30] * 3}
            t = end - 30.0 * (rows - 1 - turn)
            lines.append({"v": 1, "t": t, "s": 30.0, "host": f"n{host:02d}", "now": now, "devices": cards})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "hardware.jsonl").write_text(text + '{"v":1,"t":17')  # a row in the making
    return folder


@pytest.fixture
def run(tmp_path):
    return sampled(write_run(tmp_path / "run", [(step, ordinary(step)) for step in range(50)]).folder)


def test_the_report_shows_power_memory_and_clocks_and_every_device(run):
    page = Page(build_page(open_run(run)))
    check(page)
    things = ("Power of devices (W)", "Memory of devices (GiB)", "Clocks of devices (MHz)", "Busy cores of the ranks")
    for title in things:
        assert title in page.source
    assert "over seconds 0 to 1200" in page.source
    assert "mean of 8" in page.source
    assert "device 3" in page.source
    idle = '<td style="--share:0.00">72\u00a0W<small>0\u00a0%, 345\u00a0MHz, 86.4\u00a0kJ</small></td>'
    assert page.source.count(idle) == page.source.count("--share:0.00") == 1
    assert page.source.count("--share:1.00") >= 2
    assert re.search(r"1,410\u00a0MHz, 7\d\d\u00a0kJ, power\u00a0cap</small>", page.source)
    assert '<th scope="row">n01<small>2.30\u00a0MJ</small></th>' in page.source
    assert re.search(r'<p class="scale">Mean power 72 W <i></i> 6\d\d W</p>', page.source)
    few = sampled(run, hosts=1, devices=2)
    assert "n00:1" in build_page(open_run(few))


def test_a_run_without_rows_has_no_such_part(tmp_path):
    bare = write_run(tmp_path / "run", [(step, ordinary(step)) for step in range(5)]).folder
    assert 'id="hardware"' not in build_page(open_run(bare))
    (bare / "hardware.jsonl").write_text('{"v":2}\n[]\nnonsense\n{"v":1,"t":"x","host":"n","now":{},"devices":[]}\n')
    assert read_hardware(open_run(bare)) == []
    assert 'id="hardware"' not in build_page(open_run(bare))


def row(t, host, *devices, s=30.0):
    return HardwareRow.of({"v": 1, "t": t, "s": s, "host": host, "now": {}, "devices": list(devices)})


def test_devices_without_power_are_coloured_by_what_is_known_and_many_hosts_are_cut(run):
    rows = [
        row(30.0 * turn, f"n{host:03d}", {"id": "0", **figures})
        for turn in range(2)
        for host, figures in enumerate([{"used": [50, 0, 99]}, {"used": [100, 9, 99]}, {}])
    ]
    shares = re.findall(r'--share:([0-9.]+)">([^<]+)<', hardware_map(rows))
    assert shares == [("0.00", "50\u00a0%"), ("1.00", "100\u00a0%"), ("0.00", "unknown")]
    many = [replace(rows[0], host=f"n{host:03d}") for host in range(300)]
    assert hardware_map(many).count("<tr>") == 257
    assert "44 more hosts are in hardware.jsonl" in hardware_map(many)
    assert hardware_map([replace(rows[0], devices=[])]) == ""


def test_the_mean_of_a_device_weighs_rows_and_a_public_report_names_no_host(run):
    device = {"id": "0", "joules": 6e6, "power": [100.0] * 3}
    rows = [row(10.0, "n", device, s=10.0), row(100.0, "n", {**device, "power": [200.0] * 3}, s=90.0)]
    assert "190\u00a0W<small>12.0\u00a0MJ</small>" in hardware_map(rows)
    assert "n00" not in build_page(open_run(run), public=True)


EFFICIENCIES = [
    (8000.0, "tok/s", {"joules": 400_000.0, "seconds": 100.0}, (2.0, "tok/J")),
    (8000.0, "it/s", {"joules": 400_000.0, "seconds": 100.0}, None),
    (8000.0, "TFLOP/s", {"joules": 400_000.0, "seconds": 100.0}, None),
    (8000.0, "tok/s", {"joules": 0, "seconds": 100.0}, None),
    (8000.0, "tok/s", {"seconds": 100.0}, None),
    (None, None, {"joules": 1.0, "seconds": 1.0}, None),
    (8000.0, "tok/s", {}, None),
]


def test_tokens_and_samples_per_joule_and_nothing_else(subtests):
    for rate, unit, hardware, expected in EFFICIENCIES:
        with subtests.test(f"{rate} {unit} {hardware}"):
            assert per_joule(rate, unit, HardwareSummary.of(hardware)) == expected


def test_present_values_are_one_line_with_their_age_and_old_ones_are_none(run):
    end = time.time() - 7
    sampled(run, end=end)
    at, line = newest_values(open_run(run))
    assert at == end
    assert newest_values(open_run(run), at) == (at, "")
    assert line.startswith("hardware: 8 devices, 72 to ")
    assert "0 to 97 %" in line
    assert "345 to 1,980 MHz" in line
    assert "78 % of memory, 8.4 cores, 18.0 GiB on 2 hosts" in line
    assert line.endswith("s ago")
    sampled(run, end=time.time() - 3600)
    assert newest_values(open_run(run)) == (0.0, "")
