"""The command line, as a user meets it: in processes of its own."""

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings

import pytest

from conftest import SMALL_RECIPE
from fedsense.cli import _run as cli
from fedsense.methods import METHODS


def fedsense(*arguments, cwd, **kwargs):
    command = [sys.executable, "-m", "fedsense", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False, **kwargs)


def here(capfd, monkeypatch, folder, *arguments):
    """The same in this process, which has imported everything already: (exit code, output, errors)."""
    monkeypatch.chdir(folder)
    capfd.readouterr()
    code = cli(list(arguments))
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out, said.err


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL_RECIPE)
    return tmp_path


def test_run_json_compare_and_resume(recipe):
    done = fedsense("run", "small.toml", "--json", "--out", "out", cwd=recipe)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document) == {"results", "cost", "folder"}
    assert document["folder"] == "out"
    views = [("local", "personal"), ("local", "generalisation")]
    views += [("fedavg", "personal"), ("fedavg", "generalisation"), ("fedavg", "global")]
    expected = {(m, s, v, k) for m, v in views for s in (0, 1) for k in ("accuracy", "macro-f1")}
    assert {(r["method"], r["seed"], r["view"], r["metric"]) for r in document["results"]} == expected
    for row in document["results"]:
        assert {"method", "seed", "view", "metric", "round", "mean", "std", "clients"} <= set(row)
        assert row["round"] == 4
        values = list(row["clients"].values())
        assert row["mean"] == pytest.approx(sum(values) / len(values))
    costs = {(c["method"], c["seed"]): c for c in document["cost"]}
    assert {"method", "seed", "bytes_down", "bytes_up", "seconds", "peak_memory_bytes"} <= set(costs["local", 0])
    assert costs["local", 0]["bytes_up"] == costs["local", 0]["bytes_down"] == 0
    assert costs["fedavg", 1]["bytes_up"] > costs["fedavg", 1]["bytes_down"] > 0, "the upload also holds n"

    again = fedsense("compare", "out", "--json", cwd=recipe)
    assert json.loads(again.stdout)["results"] == document["results"]
    single = fedsense("compare", "out/fedavg-seed1", "--json", cwd=recipe)
    assert json.loads(single.stdout)["results"] == [
        r for r in document["results"] if (r["method"], r["seed"]) == ("fedavg", 1)
    ]

    table = fedsense("compare", "out", cwd=recipe)
    assert "fedavg" in table.stdout
    assert "final (round 4)" in table.stdout
    assert "SYNTHETIC" in table.stdout
    best = fedsense("compare", "out", "--summary", "best-on-test", cwd=recipe)
    assert "best-on-test (round" in best.stdout

    refused = fedsense("run", "small.toml", "--out", "out", cwd=recipe)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    before = (recipe / "out/fedavg-seed0/scores.jsonl").read_bytes()
    more = fedsense("run", "small.toml", "--out", "out", "--resume", "--set", "rounds=6", cwd=recipe)
    assert more.returncode == 0, more.stderr
    after = (recipe / "out/fedavg-seed0/scores.jsonl").read_bytes()
    assert after.startswith(before)
    assert len(after.splitlines()) == 6
    changed = fedsense("run", "small.toml", "--out", "out", "--resume", "--set", "training.lr=0.5", cwd=recipe)
    assert changed.returncode == 2
    assert "'training.lr' differs" in changed.stderr


def test_same_seed_twice_gives_the_same_bits(recipe):
    for out, workers in (("a", 1), ("b", 3)):
        done = fedsense("run", "small.toml", "--out", out, "--set", f"workers={workers}", cwd=recipe)
        assert done.returncode == 0, done.stderr
    for run in ("local-seed0", "fedavg-seed1"):
        assert (recipe / "a" / run / "scores.jsonl").read_bytes() == (recipe / "b" / run / "scores.jsonl").read_bytes()
        server = "checkpoints/server-00004.safetensors"
        assert (recipe / "a" / run / server).read_bytes() == (recipe / "b" / run / server).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "small.toml", "--set", "training.lrr=1"], "did you mean 'lr'"),
        (["run", "nowhere.toml"], "no recipe file 'nowhere.toml'"),
        (["run", "small.toml", "--set", "data.name=3"], "data.name is 3; it must be text"),
        (["run", "small.toml", "--set", "model.name=[1]"], "model.name is [1]; it must be text"),
        (["run", "small.toml", "--set", "seeds=[]"], "seeds"),
        (["run", "small.toml", "--set", "seeds=[1,1]"], "name one twice"),
        (["run", "small.toml", "--set", "rounds=true"], "whole number"),
        (["run", "small.toml", "--set", "device=cuda:7"], "cannot be used here"),
        (["run", "small.toml", "--set", "evaluation.views=[]"], "name at least one"),
        (["run", "small.toml", "--set", "data.val=0", "--set", "evaluation.summary=validation"], "validation data"),
        (["run", "small.toml", "--out", "small.toml"], "is a file"),
        (["run", "."], "is a folder"),
        (["run", "small.toml", "--previous"], "goes with --resume"),
        (["run", "small.toml", "--rsume"], "No such option"),
        (["run", "small.toml", "--set", "model.name=protohar-cnn", "--set", "data.window=20"], "protohar-cnn"),
        (["compare", "nowhere"], "holds no runs"),
        (["list", "method"], "methods"),
        (["lst"], "No such command"),
    ],
)
def test_a_users_mistake_is_a_message_and_exit_code_2(recipe, capfd, monkeypatch, arguments, message):
    code, _, errors = here(capfd, monkeypatch, recipe, *arguments)
    assert code == 2
    assert message in re.sub(r"[\s│]+", " ", errors)


def test_a_failure_is_one_document_too(recipe, capfd, monkeypatch):
    code, output, errors = here(capfd, monkeypatch, recipe, "run", "small.toml", "--set", "ronds=1", "--json")
    assert code == 2
    assert "did you mean 'rounds'" in errors
    document = json.loads(output)
    assert "did you mean 'rounds'" in document.pop("error")
    assert document == {"results": [], "cost": [], "folder": None}


TORCHS = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to …"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "out of memory, ask for fewer samples or clients"),
        (MemoryError("Unable to allocate 7 TiB."), "out of memory: Unable to allocate 7 TiB, ask for fewer"),
        (RuntimeError(f"{TORCHS}\nException raised from"), "out of memory: you tried to …, ask for fewer"),
    ],
)
def test_a_lack_of_memory_is_one_line(tmp_path, capfd, monkeypatch, error, message):
    def greedy(arguments):
        raise error

    monkeypatch.setattr("fedsense.cli._command", greedy)
    code, output, errors = here(capfd, monkeypatch, tmp_path, "data", "check", "synthetic-imu", "--json")
    assert code == 2
    assert errors.startswith(f"error: {message}")
    assert errors.count("\n") == 1
    assert message in json.loads(output)["error"]


def test_other_errors_of_ours_keep_their_traceback(monkeypatch):
    def faulty(arguments):
        raise RuntimeError("a mistake in the code")

    monkeypatch.setattr("fedsense.cli._command", faulty)
    with pytest.raises(RuntimeError, match="a mistake"):
        cli(["demo"])


def test_a_warning_is_a_line_and_said_once(tmp_path):
    code = """
import warnings
from fedsense import cli
def command(arguments):
    for text in ("the disk\\n is full", "it is late", "the disk is full"):
        for _ in range(2):
            warnings.warn(text, stacklevel=1)
    warnings.warn_explicit("it is late", RuntimeWarning, "elsewhere.py", 3)
    return 0
cli._command = command
cli.main([])
"""
    command = [sys.executable, "-W", "always", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["warning: the disk is full", "warning: it is late"]


def test_a_warning_stays_an_error_where_it_is_one(monkeypatch):
    monkeypatch.setattr("fedsense.cli._command", lambda arguments: warnings.warn("careful", stacklevel=1))
    with pytest.raises(UserWarning, match="careful"):
        cli(["demo"])


def test_a_refused_recipe_claims_no_folder(recipe, capfd, monkeypatch):
    wrong = ["--set", "model.name=protohar-cnn", "--set", "data.window=20"]
    assert here(capfd, monkeypatch, recipe, "run", "small.toml", *wrong, "--out", "out")[0] == 2
    assert not (recipe / "out").exists()
    (recipe / "out").mkdir()
    assert here(capfd, monkeypatch, recipe, "run", "small.toml", *wrong, "--out", "out")[0] == 2
    assert (recipe / "out").is_dir()  # the user's own
    short = ["--set", "rounds=1", "--set", "seeds=[0]", "--set", "method=local", "--out", "out"]
    assert here(capfd, monkeypatch, recipe, "run", "small.toml", *short)[0] == 0


def test_resume_where_nothing_was_done_yet_begins(recipe, capfd, monkeypatch):
    short = ["--set", "rounds=1", "--set", "seeds=[0]", "--set", "method=local", "--out", "out", "--resume"]
    assert here(capfd, monkeypatch, recipe, "run", "small.toml", *short)[0] == 0


def test_shorthand_can_be_overridden(tmp_path, capfd, monkeypatch):
    text = 'data = "synthetic-imu"\nmodel = "flic-mlp"\nmethod = "fedprox"\nrounds = 1\n'
    (tmp_path / "short.toml").write_text(text)
    options = ["--set", "data.clients=2", "--set", "data.samples=16", "--set", "method.fedprox.mu=0.5", "--json"]
    code, output, _ = here(capfd, monkeypatch, tmp_path, "run", "short.toml", *options)
    assert code == 0
    assert len(json.loads(output)["results"][0]["clients"]) == 2


def test_two_experiments_are_compared_not_averaged(recipe, capfd, monkeypatch):
    for out, rate in (("slow", 0.001), ("fast", 0.1)):
        options = ["--set", "seeds=[0]", "--set", "method=fedavg", "--set", f"training.lr={rate}", "--out", out]
        assert here(capfd, monkeypatch, recipe, "run", "small.toml", *options)[0] == 0
    rows = json.loads(here(capfd, monkeypatch, recipe, "compare", "slow", "fast", "--json")[1])["results"]
    assert {row["method"] for row in rows} == {"slow/fedavg", "fast/fedavg"}


@pytest.mark.parametrize("options", [["data.test=0", "data.val=0"], ['evaluation.views=["global"]', "method=local"]])
def test_nothing_to_score_is_no_disaster(recipe, capfd, monkeypatch, options):
    words = [word for option in options for word in ("--set", option)]
    code, output, errors = here(capfd, monkeypatch, recipe, "run", "small.toml", "--out", "out", *words)
    assert code == 0, errors
    assert "local" in output


def test_a_method_that_fails_does_not_take_the_others_with_it(recipe, capfd, monkeypatch):
    options = ["--out", "out", "--set", "method.fedavg.lr=1e38"]
    code, output, errors = here(capfd, monkeypatch, recipe, "run", "small.toml", *options)
    assert code == 1
    assert "fedavg diverged" in errors
    assert output.index("fedavg · seed 0 failed: fedavg diverged") < output.index("local · seed 1"), (
        "it is said at once"
    )
    _, output, _ = here(capfd, monkeypatch, recipe, "compare", "out", "--json")
    last = {(row["method"], row["seed"]): row["round"] for row in json.loads(output)["results"]}
    assert last["local", 0] == last["local", 1] == 4
    assert last.get(("fedavg", 0), 0) < 4


def test_progress_says_how_much_is_left_of_all_runs(recipe, capfd, monkeypatch):
    _, output, _ = here(capfd, monkeypatch, recipe, "run", "small.toml", "--out", "out")
    assert re.search(r"^local · seed 0: 4 rounds in \d+ s, personal 0\.\d+.*; 3 more runs, about \d+ s$", output, re.M)
    assert re.search(r"^local · seed 1: .*; 1 more run, about \d+ s$", output, re.M)
    assert re.search(r"^fedavg · seed 1: 4 rounds in \d+ s, personal [^;]*$", output, re.M), "then nothing is left"
    more = ["--set", "seeds=[0, 1, 2]", "--resume"]
    _, output, _ = here(capfd, monkeypatch, recipe, "run", "small.toml", "--out", "out", *more)
    assert "seed 0:" not in output, "what was done before is not told again"
    assert re.search(r"^local · seed 2: .*; 1 more run, about", output, re.M)


def test_too_few_rounds_for_a_method_to_be_itself_are_told(recipe, capfd, monkeypatch):
    """λ of FedAPA after four of 50 rounds is (1 − cos(4π/50))/2 = 1.57 % of what it will be."""
    methods = 'method=["fedavg", "fedapa", {name="fedclar", warm_up=4}, {name="modcl", pretrain_rounds=4}]'
    _, output, _ = here(capfd, monkeypatch, recipe, "run", "small.toml", "--out", "out", "--set", methods)
    assert [line for line in output.splitlines() if line.startswith("note: ")] == [
        "note: fedapa, 4 rounds: its contrast warms up for 50 rounds (warm_up), and comes to 1.6% of its weight",
        "note: fedclar, 4 rounds: clients are grouped after round 4 (warm_up), and train as in FedAvg until then",
        "note: modcl, 4 rounds: labels are not looked at before round 5 (pretrain_rounds)",
    ], "once, not for every seed"
    kinds = {"fedapa": {"warm_up": 4}, "fedclar": {"warm_up": 3}, "modcl": {"pretrain_rounds": 3}, "fedavg": {}}
    assert not any(METHODS[name](**options).too_few(4) for name, options in kinds.items())


def test_on_a_terminal_runs_that_are_over_leave_a_line_and_one_is_live(recipe, capfd, monkeypatch):
    """So that the run under way is on the screen, however many there are."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, output, _ = here(capfd, monkeypatch, recipe, "run", "small.toml", "--out", "out")
    frames = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output).replace("\r", "\n").splitlines()
    bars = [line.split() for line in frames if "round" in line and "·" in line]
    assert {" ".join(words[:4]) for words in bars} == {f"{m} · seed {s}" for m in ("local", "fedavg") for s in (0, 1)}
    last = max(i for i, line in enumerate(frames) if line.startswith("fedavg · seed 1") and "round 4/4" in line)
    assert any(re.match(r"in all .* run 4/4 .*about \d+ s left", line) for line in frames[:last])
    assert not any(line.startswith("in all") for line in frames[last:]), "in the end nothing is left of it"
    assert "local · seed 0" not in "\n".join(frames[last - 3 : last]), "it is not drawn again"


def wait_for(process, path, seconds=150):
    """Until the file is there, or the process has ended."""
    end = time.monotonic() + seconds
    while not list(path.parent.glob(path.name)) and process.poll() is None:
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.005)


LONG = ["--set", "rounds=40", "--set", "seeds=[0]", "--set", "participation=0.7"]


@pytest.fixture
def start(recipe):
    """Start the command in the background; what is still running at the end of the test is killed.

    A shell may have had SIGINT ignored in what it runs in the background, and that is inherited: it is put back.
    """
    processes = []

    def begin(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "fedsense", *arguments],
            cwd=recipe,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


LONG_RUN = ["run", "small.toml", *LONG, "--out", "cut"]
ENDLESS_RUN = [*LONG_RUN, "--set", "rounds=100_000"]


def test_killed_at_any_moment_and_resumed_equals_uninterrupted(recipe, start):
    whole = fedsense("run", "small.toml", *LONG, "--out", "whole", cwd=recipe)
    assert whole.returncode == 0, whole.stderr
    process, kills = start(*LONG_RUN), 0
    for moment in (
        "local-seed0/checkpoints/round-*.json",
        "fedavg-seed0/scores.jsonl",
        "fedavg-seed0/checkpoints/clients-*",
    ):
        wait_for(process, recipe / "cut" / moment)
        kills += process.poll() is None
        process.kill()
        process.communicate()
        process = start(*LONG_RUN, "--resume")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert kills >= 2, "the runs ended before they could be killed"
    for run in ("local-seed0", "fedavg-seed0"):
        for name in ("scores.jsonl", "checkpoints/server-00040.safetensors"):
            assert (recipe / "whole" / run / name).read_bytes() == (recipe / "cut" / run / name).read_bytes(), (
                run,
                name,
            )
    a, b = (json.loads((recipe / out / "summary.json").read_text())["results"] for out in ("whole", "cut"))
    assert a == b


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_is_130_and_says_how_to_go_on(recipe, start, how):
    process = start(*ENDLESS_RUN)
    wait_for(process, recipe / "cut" / "local-seed0" / "checkpoints" / "round-*.json")
    os.kill(process.pid, how)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    assert "Traceback" not in output + errors
    command = shlex.split(re.search(r"fedsense (run .* --resume)", errors).group(1))
    shorter = [word.replace("rounds=100_000", "rounds=99_999") for word in command]
    refused = fedsense(*shorter, cwd=recipe)
    assert refused.returncode == 2
    assert "more, not fewer" in refused.stderr
    resumed = start(*command)
    first = next(line for line in resumed.stdout if line.startswith("local"))
    assert int(re.search(r"round (\d+)/", first).group(1)) > 1, "it goes on where it was"


def test_no_worker_outlives_a_killed_run(recipe, start):
    process = start(*ENDLESS_RUN)
    wait_for(process, recipe / "cut" / "local-seed0" / "checkpoints" / "round-*.json")
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    assert children, "the run has workers"
    process.kill()
    process.communicate()
    end = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in children):  # noqa: PTH110
        assert time.monotonic() < end, "workers are still there"
        time.sleep(0.05)


def test_two_processes_do_not_share_a_folder(recipe, start):
    process = start(*ENDLESS_RUN)
    wait_for(process, recipe / "cut" / "local-seed0" / "checkpoints" / "round-*.json")
    second = fedsense("run", "small.toml", *LONG, "--set", "rounds=100_000", "--out", "cut", "--resume", cwd=recipe)
    process.kill()
    process.communicate()
    assert second.returncode == 2
    assert "another process is running" in second.stderr


def test_a_damaged_checkpoint_is_refused_and_the_one_before_works(recipe, capfd, monkeypatch):
    """A run of six rounds cut back to its third, the newest of two checkpoints; then that one is damaged."""
    monkeypatch.setattr("fedsense.engine.rounds.CHECKPOINT_SHARE", 1e9)  # a checkpoint every round
    options = ["--set", "seeds=[0]", "--set", "method=local"]
    for out, rounds in (("whole", 6), ("cut", 3)):
        code, _, errors = here(
            capfd, monkeypatch, recipe, "run", "small.toml", *options, "--set", f"rounds={rounds}", "--out", out
        )
        assert code == 0, errors
    again = ["run", "small.toml", *options, "--set", "rounds=6", "--out", "cut", "--resume"]
    newest = recipe / "cut/local-seed0/checkpoints/clients-00003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-20])
    code, _, errors = here(capfd, monkeypatch, recipe, *again)
    assert code == 1
    assert "checkpoint of round 3 refused: clients-00003.safetensors is truncated" in errors
    assert "round 2 is sound: go on from it with --resume --previous" in errors
    code, _, errors = here(capfd, monkeypatch, recipe, *again, "--previous")
    assert code == 0, errors
    for name in ("scores.jsonl", "checkpoints/clients-00006.safetensors"):
        assert (recipe / "whole/local-seed0" / name).read_bytes() == (recipe / "cut/local-seed0" / name).read_bytes()


def test_changed_data_are_noticed(recipe, capfd, monkeypatch):
    assert here(capfd, monkeypatch, recipe, "run", "small.toml", "--out", "out")[0] == 0
    path = recipe / "out/fedavg-seed0/run.json"
    about = json.loads(path.read_text())
    about["fingerprint"] = "0" * 32
    path.write_text(json.dumps(about))
    code, _, errors = here(capfd, monkeypatch, recipe, "run", "small.toml", "--out", "out", "--resume")
    assert code == 2
    assert "began with something else: its data differ" in errors


@pytest.mark.parametrize("kind", ["methods", "models", "datasets", "recipes"])
def test_list(kind, tmp_path, capfd, monkeypatch):
    rows = json.loads(here(capfd, monkeypatch, tmp_path, "list", kind, "--json")[1])
    assert rows
    for row in rows:
        assert row["name"]
        assert row["description"]
        assert row["paper"]
    code, shown, _ = here(capfd, monkeypatch, tmp_path, "list", kind)
    assert code == 0
    for row in rows:
        assert row["name"] in shown
    if kind == "methods":
        places = [shown.index(group) for group in dict.fromkeys(row["group"] for row in rows)]
        assert places == sorted(places)
        lines = [line.split()[0] for line in shown.splitlines() if line and not line.startswith(" ")]
        assert [name for name in lines if name in METHODS] == [row["name"] for row in rows]
        assert [row["name"] for row in rows if row["group"] == "references"] == ["local", "centralized"]
    if kind == "models":
        sizes = {row["name"]: row["parameters"] for row in rows}
        assert [sizes[f"convnet4-{size}"] for size in ("tiny", "middle", "large")] == [7_956, 18_436, 463_748]


def test_folders_without_out_are_numbered(recipe, capfd, monkeypatch):
    short = ["--set", "rounds=1", "--set", "seeds=[0]", "--set", "method=local"]
    for _ in range(2):
        assert here(capfd, monkeypatch, recipe, "run", "small.toml", *short)[0] == 0
    assert sorted(p.name for p in (recipe / "runs").iterdir()) == ["small", "small-2"]


def test_an_experiment_that_is_not_finished_is_named_and_gone_on_with(recipe, capfd, monkeypatch):
    short = ["--set", "rounds=1", "--set", "seeds=[0]", "--set", "method=local"]
    here(capfd, monkeypatch, recipe, "run", "small.toml", *short)
    (recipe / "runs" / "small" / "summary.json").unlink()  # what is written last
    _, _, err = here(capfd, monkeypatch, recipe, "run", "small.toml", *short)
    assert "runs/small is not finished, and --resume goes on with it; this begins anew, in runs/small-2" in err
    _, out, err = here(capfd, monkeypatch, recipe, "run", "small.toml", *short, "--resume")
    assert "everything is in runs/small (" in out
    assert "not finished" not in err
    assert "runs/small-2 (" in here(capfd, monkeypatch, recipe, "run", "small.toml", *short, "--resume")[1]
    words = ["run", "small.toml", *short, "--resume", "--set", "training.lr=0.5"]
    code, _, err = here(capfd, monkeypatch, recipe, *words)
    assert code == 2
    assert "'training.lr' differs from what runs/small-2 began with (nothing then, 0.5 now)" in err


def test_what_is_gone_on_with_is_of_this_recipe(recipe, capfd, monkeypatch):
    """An older one that is not finished, of another learning rate, is let be; options that came later are no change."""
    short = ["--set", "rounds=1", "--set", "seeds=[0]", "--set", "method=local"]
    here(capfd, monkeypatch, recipe, "run", "small.toml", *short, "--set", "training.lr=0.5")
    (recipe / "runs" / "small" / "summary.json").unlink()
    _, _, err = here(capfd, monkeypatch, recipe, "run", "small.toml", *short)
    assert "not finished" not in err
    more = [*short[:2], "--set", "seeds=[0, 1]", *short[4:], "--resume"]
    code, out, err = here(capfd, monkeypatch, recipe, "run", "small.toml", *more)
    assert code == 0, err
    assert "everything is in runs/small-2 (" in out
    path = recipe / "runs" / "small-2" / "recipe.json"
    began = json.loads(path.read_text())
    del began["training"]["clip"]  # as of a version that did not have it
    path.write_text(json.dumps(began))
    code, _, err = here(capfd, monkeypatch, recipe, "run", "small.toml", *more)
    assert code == 0, err


def test_help_and_version(tmp_path):
    assert "demo" in fedsense("--help", cwd=tmp_path).stdout
    assert fedsense("--version", cwd=tmp_path).stdout.strip() == "0.1.0"
    assert "--resume" in fedsense("run", "--help", cwd=tmp_path).stdout


def test_help_does_not_wait_for_torch(tmp_path):
    code = "import sys; from fedsense.cli import _run; _run(['run', '--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_a_full_disk_is_told_with_what_to_do(monkeypatch, capfd):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedsense.comparing.find_experiments", full)
    assert cli(["compare", "runs/mine"]) == 1
    assert "the disk is full. What runs had saved is kept" in capfd.readouterr().err


def test_a_file_that_cannot_be_written_is_told_in_words(monkeypatch, capfd):
    def nowhere(*_):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "there/x.md.partial")

    monkeypatch.setattr("fedsense.comparing.find_experiments", nowhere)
    assert cli(["compare", "runs/mine"]) == 2
    assert capfd.readouterr().err == "error: there/x.md: no such file or directory\n"
