"""`lily run`, `eval` and `synth` as scripts use them: stdout carries the result alone."""

import json
import pathlib

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


def test_eval_never_writes_over_its_own_input(lily, tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text("[1, 2, 3]")
    reference = tmp_path / "ref.safetensors"
    assert lily("eval", "--tokens", ids, "--logits", reference).returncode == 0
    before = reference.read_bytes()
    stdout = pathlib.Path("/dev/stdout")
    for logits, extra in [(ids, []), (reference, ["--reference", reference]), (stdout, [])]:
        done = lily("eval", "--tokens", ids, "--logits", logits, *extra)
        assert done.returncode == 1 and "accepted: another file" in done.stderr
    assert ids.read_text() == "[1, 2, 3]" and reference.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ids.json", "ref.safetensors"]


def overflow(checkpoint, tensor):
    """Sets all bf16 numbers of a tensor to the largest there is."""
    for shard in checkpoint.glob("*.safetensors"):
        data = bytearray(shard.read_bytes())
        header = int.from_bytes(data[:8], "little")
        found = json.loads(data[8 : 8 + header]).get(tensor)
        if found:
            begin, end = (8 + header + at for at in found["data_offsets"])
            data[begin:end] = b"\x7f\x7f" * ((end - begin) // 2)
            shard.write_bytes(data)
            return
    raise KeyError(tensor)


def test_a_model_whose_numbers_overflow_is_an_error_and_not_an_answer(lily, tmp_path):
    out = tmp_path / "model"
    config = ROOT / "tests/fixtures/tiny-a/config.json"
    assert lily("synth", "--config", config, "--out", out).returncode == 0
    overflow(out, "language_model.lm_head.scales")
    ids = tmp_path / "ids.json"
    ids.write_text("[1, 2, 3, 4]")
    commands = [["eval", "--tokens", ids]]
    commands += [["run", "--raw", "-p", "Hello", "--max-tokens", "4", "--temperature", t] for t in ("0", "1")]
    for command in commands:
        done = lily(*command, "--model", out)
        assert done.returncode == 1 and "logit" in done.stderr, (command, done.stdout, done.stderr)


def test_files_without_an_end_are_refused(lily, tmp_path):
    for args in (["eval", "--tokens", "/dev/zero"], ["synth", "--config", "/dev/zero", "--out", tmp_path / "x"]):
        done = lily(*args, timeout=60)
        assert done.returncode == 1 and "accepted: at most" in done.stderr, done.stderr


def test_a_geometry_without_full_attention_is_refused_before_anything_is_written(lily, tmp_path):
    out = tmp_path / "none"
    done = lily("synth", "--preset", "35b", "--layers", "3", "--out", out, timeout=60)
    assert done.returncode == 1 and "layer_types" in done.stderr and not out.exists()


def test_arguments_that_are_not_utf8_are_no_panic(lily):
    for args in (["run", "-p", b"\xff"], ["plan", "--model", b"/tmp/\xff"]):
        done = lily(*args)
        assert done.returncode in (1, 2) and "panicked" not in done.stderr, done.stderr


def test_options_that_no_server_can_keep_are_refused(lily):
    for option, value in [
        ("--kv-memory", "0"),
        ("--max-body", "0"),
        ("--name", ""),
        ("--cors-origin", "https://app.example/path"),
        ("--api-key", "a b"),
        ("--bind", "foo"),
    ]:
        done = lily("serve", option, value, timeout=60)
        assert done.returncode == (1 if option == "--bind" else 2) and option in done.stderr, (option, done.stderr)
