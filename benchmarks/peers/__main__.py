"""Lily beside MLX-LM and llama.cpp under one contract: `python3 benchmarks/peers --lily target/release/lily --model DIR`.

Token i of a prompt is ((i * 2654435761) mod 2^32) mod vocab; every run starts from an empty state after two warm-ups of the
same shape; prefill is prompt tokens / time to the first token; then 64 greedy tokens; medians of three. At each length the engines
take turns, because a shared machine drifts. Each engine runs in a process of its own.

- Lily: `lily bench --json`.
- MLX-LM: the same checkpoint bytes. pip install mlx-lm and mlx (Mac), mlx[cuda13] (NVIDIA) or mlx[cpu]; `--mlx-python` names the
  interpreter that has them.
- llama.cpp: a GGUF of the same model, by `--llama-bench PATH` (its llama-bench, which reads random tokens and gives no digest) or `--llama-python PYTHON` (an interpreter with
  llama-cpp-python, built for the device).

Writes results as JSON (`--out`), prints one table, and draws one chart (`--svg`)."""

import argparse
import json
import os
import statistics
import subprocess
import sys

import chart

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTHS = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]


def run(command):
    """Standard output of a command; its own words if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"failed with {done.returncode}: {' '.join(command)}")
    return done.stdout


def lily(args, length):
    command = [args.lily, "bench", "--model", args.model, "--device", args.device, "--lengths", str(length)]
    command += ["--decode", str(args.decode), "--runs", str(args.runs), "--json"]
    result = json.loads(run(command))["results"][0]
    return {"prefill": result["prefill_tokens_per_s"], "decode": result["decode_tokens_per_s"], "digest": result["digest"]}


def measured(python, script, model):
    def measure(args, length):
        command = [python, os.path.join(HERE, script), model, str(length), str(args.decode), str(args.runs)]
        return json.loads(run(command).strip().splitlines()[-1])

    return measure


def llama_bench(args, length):
    common = [args.llama_bench, "-m", args.gguf, "-r", str(args.runs), "-fa", "1", "-ngl", "99", "-o", "json"]
    prefill = json.loads(run(common + ["-p", str(length), "-n", "0"]))
    decode = json.loads(run(common + ["-p", "0", "-n", str(args.decode), "-d", str(length)]))
    return {"prefill": statistics.median(prefill[-1]["samples_ts"]), "decode": statistics.median(decode[-1]["samples_ts"])}


def engines(args):
    """Name and measuring function of every engine that was asked for."""
    found = [("lily", lily)]
    if args.mlx_python:
        found.append(("mlx-lm", measured(args.mlx_python, "mlx_lm_once.py", args.model)))
    if (args.llama_bench or args.llama_python) and not args.gguf:
        raise SystemExit("--gguf is missing: llama.cpp reads a GGUF file of the model")
    if args.llama_bench:
        found.append(("llama.cpp", llama_bench))
    elif args.llama_python:
        found.append(("llama.cpp", measured(args.llama_python, "llama_cpp_once.py", args.gguf)))
    return found


def table(results, names):
    lines = ["| prompt | " + " | ".join(f"{n} prefill | {n} decode" for n in names) + " |"]
    lines.append("|---" * (1 + 2 * len(names)) + "|")
    for row in results:
        cells = [str(row["length"])]
        for name in names:
            found = row["engines"].get(name)
            cells += [f"{found['prefill']:.1f}", f"{found['decode']:.1f}"] if found else ["-", "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        prog="benchmarks/peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lily", default="target/release/lily")
    parser.add_argument("--model", required=True, help="folder of the checkpoint")
    parser.add_argument("--device", default="auto", help="Lily's device")
    parser.add_argument("--mlx-python")
    parser.add_argument("--llama-bench")
    parser.add_argument("--llama-python")
    parser.add_argument("--gguf")
    parser.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")], default=LENGTHS)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", help="file for the results as JSON")
    parser.add_argument("--svg", help="file for the chart")
    args = parser.parse_args()
    chosen = engines(args)
    results = []
    for length in args.lengths:
        row = {"length": length, "engines": {}}
        for name, measure in chosen:
            try:
                found = measure(args, length)
            except RuntimeError as error:
                print(f"{length} {name}: {error}", file=sys.stderr)
                continue
            row["engines"][name] = found
            print(f"{length} {name}: prefill {found['prefill']:.1f}, decode {found['decode']:.1f}", file=sys.stderr)
        results.append(row)
        if args.out:
            with open(args.out, "w") as file:
                json.dump({"model": args.model, "decode": args.decode, "runs": args.runs, "results": results}, file, indent=1)
    names = [name for name, _ in chosen]
    print(table(results, names))
    if args.svg:
        with open(args.svg, "w") as file:
            file.write(chart.svg(results, names))
    return 0


sys.exit(main())
