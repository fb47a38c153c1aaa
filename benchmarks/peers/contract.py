"""What every engine is asked to do, for engines that are driven from Python. Knows no engine."""

import json
import statistics
import time


def prompt(length, vocab):
    """Token ids of a prompt."""
    return [(i * 2654435761) % 2**32 % vocab for i in range(length)]


def measure(start, step, ids, decode, runs):
    """Medians over `runs` after two runs that do not count.

    start(ids) begins an empty state, reads the prompt and gives the first token when it is there; step(token) gives the next.
    Prints one JSON object: prefill and decode in tokens per second, and the tokens' digest. Tokens that change between runs
    are an error.
    """
    prefill, rates, seen = [], [], set()
    for turn in range(runs + 2):
        begin = time.perf_counter()
        token = start(ids)
        first = time.perf_counter()
        tokens = [token]
        for _ in range(decode):
            tokens.append(step(tokens[-1]))
        end = time.perf_counter()
        seen.add(tuple(tokens))
        if turn > 1:
            prefill.append(len(ids) / (first - begin))
            rates.append(decode / (end - first))
    if len(seen) != 1:
        raise SystemExit(f"prompt length {len(ids)}: the tokens changed between runs")
    # FNV-1a over the decoded tokens, as `lily bench` has it.
    digest = 0xCBF29CE484222325
    for byte in b"".join(token.to_bytes(4, "little") for token in next(iter(seen))[1:]):
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    print(json.dumps({"prefill": statistics.median(prefill), "decode": statistics.median(rates), "digest": f"{digest:016x}"}))
