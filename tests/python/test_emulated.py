"""`--device emulated`: the Metal kernels, executed on the processor."""


def test_the_emulated_kernels_give_the_tokens_of_the_processor(lily):
    args = ["run", "-p", "What is the capital of France?", "--no-think", "--temperature", "0", "--max-tokens", "6"]
    emulated = lily(*args, "--device", "emulated", "--max-seq", "512")
    assert emulated.returncode == 0, emulated.stderr
    assert "Metal kernels on the CPU" in emulated.stderr
    assert emulated.stdout == lily(*args).stdout and "Paris" in emulated.stdout


def test_exact_float32_is_refused_where_the_processor_does_not_compute(lily, tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text("[1, 2]")
    done = lily("eval", "--tokens", ids, "--precision", "f32", "--device", "emulated")
    assert done.returncode == 1 and "--precision f32" in done.stderr and done.stdout == ""
