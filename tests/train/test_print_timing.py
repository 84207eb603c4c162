from ezpz.train import print_timing


def test_the_first_step_stands_apart_from_median_p95_and_max(capsys):
    print_timing({"dt": [9.0, 1.0, 2.0, 3.0]})
    row = next(line for line in capsys.readouterr().out.splitlines() if "dt" in line)
    assert [float(word) for word in row.replace("│", " ").split()[1:]] == [9.0, 2.0, 2.9, 3.0]
    print_timing({"dt": [9.0]})
    assert capsys.readouterr().out.count("9.000000") == 4
