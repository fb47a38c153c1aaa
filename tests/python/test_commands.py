"""`lily run`, `eval` and `synth` as scripts use them: stdout carries the result alone."""

import json

from conftest import ROOT


def test_run_prints_the_answer_alone(lily):
    done = lily("run", "-p", "What is the capital of France?", "--no-think", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout and "think>" not in done.stdout
    assert "tokens/s" in done.stderr and "tokens/s" not in done.stdout


def test_run_reads_stdin_and_a_seed_repeats(lily):
    args = ["run", "--no-think", "--seed", "5", "--max-tokens", "20"]
    first = lily(*args, stdin="Tell me a story about a fox\n")
    assert first.returncode == 0 and len(first.stdout.split()) > 5
    assert lily(*args, stdin="Tell me a story about a fox\n").stdout == first.stdout


def test_run_raw_continues_the_text(lily):
    done = lily("run", "--raw", "-p", "Once upon a time", "--temperature", "0", "--max-tokens", "5")
    assert done.returncode == 0 and done.stdout.startswith(",")


def test_run_refuses_nothing_to_answer_and_devices_that_are_not_there(lily):
    assert lily("run", stdin="").returncode == 1
    done = lily("run", "-p", "x", "--device", "metal")
    assert done.returncode == 1 and "metal" in done.stderr and done.stdout == ""
    done = lily("run", "-p", "x", "--model", "/nowhere")
    assert done.returncode == 1 and "/nowhere" in done.stderr


def test_eval_of_a_fixture_agrees_with_its_own_logits_and_with_the_truth(lily, tmp_path):
    fixture = ROOT / "tests/fixtures/tiny-a"
    cases = json.loads((fixture / "expected.json").read_text())["cases"]
    case = next(case for case in cases if case["name"] == "odd")
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(case["prompt_ids"]))
    logits = tmp_path / "logits.safetensors"
    args = ["eval", "--model", fixture, "--tokens", ids]
    first = lily(*args, "--precision", "f32", "--logits", logits)
    assert first.returncode == 0, first.stderr
    value = json.loads(first.stdout)
    assert value["tokens"] == len(case["prompt_ids"]) and value["perplexity"] > 1
    again = json.loads(lily(*args, "--precision", "f32", "--reference", logits, "--chunk", "3").stdout)
    assert again["max_abs_diff"] < 2e-3 and again["top1_agreement"] == 1.0
    fast = json.loads(lily(*args, "--reference", logits).stdout)
    assert 0 < fast["mean_kl"] < case["mlx_bf16_acc32"]["kl_mean"]


def test_eval_names_what_is_wrong_with_its_tokens(lily, tmp_path):
    for text, word in [("[1, 2.5]", "entry 1"), ("[1, 999999]", "entry 1"), ("[]", "empty"), ("{}", "array")]:
        ids = tmp_path / "ids.json"
        ids.write_text(text)
        done = lily("eval", "--tokens", ids)
        assert done.returncode == 1 and word in done.stderr and done.stdout == "", done.stderr


def test_synth_writes_a_checkpoint_that_runs(lily, tmp_path):
    out = tmp_path / "random"
    args = ["synth", "--config", ROOT / "tests/fixtures/tiny-a/config.json", "--out", out, "--seed", "3"]
    done = lily(*args)
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout
    assert json.loads(lily("plan", "--model", out, "--json").stdout)["dispatches"] > 10
    ids = tmp_path / "ids.json"
    ids.write_text("[1, 2, 3, 4]")
    done = lily("eval", "--model", out, "--tokens", ids)
    assert done.returncode == 0 and json.loads(done.stdout)["tokens"] == 4
    done = lily(*args)
    assert done.returncode == 1 and "exists" in done.stderr
