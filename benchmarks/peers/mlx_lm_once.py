"""One prompt length on MLX-LM: `mlx_lm_once.py CHECKPOINT LENGTH DECODE RUNS`."""

import sys

import contract
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from pathlib import Path

# Tokens of a prefill step: mlx-lm's own default.
CHUNK = 2048


def main():
    folder, length, decode, runs = sys.argv[1], *map(int, sys.argv[2:5])
    model, config = load_model(Path(folder))
    vocab = config.get("vocab_size") or config["text_config"]["vocab_size"]
    state = {}

    def start(ids):
        state["cache"] = make_prompt_cache(model)
        tokens = mx.array(ids)
        logits = None
        for at in range(0, len(ids), CHUNK):
            logits = model(tokens[None, at : at + CHUNK], cache=state["cache"])
            mx.eval([c.state for c in state["cache"]])
        return int(mx.argmax(logits[0, -1]).item())

    def step(token):
        logits = model(mx.array([[token]]), cache=state["cache"])
        return int(mx.argmax(logits[0, -1]).item())

    contract.measure(start, step, contract.prompt(length, vocab), decode, runs)


main()
