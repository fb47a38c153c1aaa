"""One prompt length on MLX-LM: `mlx_lm_once.py CHECKPOINT LENGTH DECODE RUNS`."""

import sys

from pathlib import Path

import contract
import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

# Tokens of a prefill step: mlx-lm's own default.
CHUNK = 2048


def main():
    folder, length, decode, runs = sys.argv[1], *map(int, sys.argv[2:5])
    model, config = load_model(Path(folder))
    vocab = config.get("vocab_size") or config["text_config"]["vocab_size"]
    state = {}

    def start(ids):
        # mlx-lm's own loop: it submits a step before it has read the token of the one before.
        state["steps"] = generate_step(
            mx.array(ids),
            model,
            max_tokens=decode + 1,
            sampler=lambda x: mx.argmax(x, axis=-1),
            prompt_cache=make_prompt_cache(model),
            prefill_step_size=CHUNK,
        )
        return int(next(state["steps"])[0])

    def step(_token):
        return int(next(state["steps"])[0])

    contract.measure(start, step, contract.prompt(length, vocab), decode, runs)


main()
