"""Print the time in µs that the training loop spends on recording one step of 8 scalars: `trackers.py NAME FOLDER`.

Each tracker is used as its documentation shows. The time is the mean over all steps after the first, so that what is
written in batches counts with its share; what the end of a run costs does not count.
"""

import csv
import os
import sys
import time
from pathlib import Path

STEPS = {"mlflow": 500}  # it stores each call on its own


def plain_list(_):
    rows = []
    return lambda step, metrics: rows.append((step, metrics)), None


def csv_module(folder):
    file = Path(folder, "metrics.csv").open("w", newline="")  # noqa: SIM115  # closed at the end
    names = ["step", *(f"train/metric{index}" for index in range(8))]
    writer = csv.DictWriter(file, names)
    writer.writeheader()

    def log(step, metrics):
        writer.writerow({"step": step, **metrics})
        file.flush()

    return log, file.close


def ezpz(folder):
    from ezpz.track import History

    history = History("bench", folder)
    return lambda step, metrics: history.update(metrics, step=step, summarize=False), None


def handing_over(names):
    """What handing rows to trackers adds to an update, while their threads work."""

    def make(folder):
        from ezpz.view.trackers import About, Trackers

        trackers = Trackers(names, About("bench", Path(folder), {}, {}, "now"))
        time.sleep(8)  # their libraries are imported
        return trackers.log, lambda: trackers.finish("finished")

    return make


def tensorboard(folder):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)

    def log(step, metrics):
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def wandb(folder):
    import wandb

    run = wandb.init(project="bench", dir=folder, mode="offline", settings=wandb.Settings(silent=True))
    return lambda step, metrics: run.log(metrics, step=step), run.finish


def mlflow(folder):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow

    mlflow.set_tracking_uri(f"file://{folder}/store")  # a new folder: else MLflow lacks its default experiment
    mlflow.start_run()
    return lambda step, metrics: mlflow.log_metrics(metrics, step=step), mlflow.end_run


def trackio(folder):
    os.environ["TRACKIO_DIR"] = folder
    import trackio

    trackio.init(project="bench")
    return lambda step, metrics: trackio.log(metrics, step=step), trackio.finish


MAKERS = {
    "list": plain_list,
    "csv": csv_module,
    "ezpz": ezpz,
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
    "trackio": trackio,
    "to-csv": handing_over("csv"),
    "to-all": handing_over("csv,tensorboard,wandb"),
}


def main():
    name, folder = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    log, close = MAKERS[name](str(Path(folder).resolve()))
    spent, steps = 0.0, STEPS.get(name, 3000)
    for step in range(steps):
        metrics = {f"train/metric{index}": step * 0.5 + index for index in range(8)}
        start = time.perf_counter()
        log(step, metrics)
        if step:
            spent += time.perf_counter() - start
    print(f"value={spent / (steps - 1) * 1e6:.2f}", flush=True)
    if close:
        close()


main()
