"""Throughput at several parallel streams, and the gaps between a stream's tokens with and without a long prompt being read
beside it."""

import random
import threading
import time

from client import moments, percentile


def prompt(server, tokens, seed):
    """Ids of ordinary words, other ones for each seed, so that nothing is in the cache."""
    words = "the fox ran over a hill to the river and saw a bird sing in the tree while rain fell on old stones".split()
    draw = random.Random(str(seed))
    ids = []
    while len(ids) < tokens:
        text = " ".join(draw.choice(words) for _ in range(4000))
        ids += server.call("/tokenize", {"content": text})["tokens"]
    return ids[:tokens]


# How tokens are chosen: the largest logit, as people use the model, or the latter with a probability for each token.
SAMPLING = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1, "top_k": 20, "top_p": 0.95, "seed": 1},
    "logprobs": {"temperature": 1, "top_k": 20, "top_p": 0.95, "seed": 1, "logprobs": 5},
}


def body(ids, max_tokens, sampling="greedy"):
    return {"prompt": ids, "max_tokens": max_tokens, "ignore_eos": True, **SAMPLING[sampling]}


def throughput(server, counts, tokens, sampling):
    """Tokens per second of all streams together: the sum of what each gets between its first text and its last."""
    print(f"throughput, {sampling}, {tokens} tokens a stream, prompts of 64 tokens")
    for count in counts:
        results = [None] * count

        def read(index):
            results[index] = moments(server, body(prompt(server, 64, (sampling, count, index)), tokens, sampling))

        threads = [threading.Thread(target=read, args=[index]) for index in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        together = sum((usage["completion_tokens"] - 1) / (times[-1] - times[0]) for times, usage in results)
        print(f"{count:>3} streams: {together:>8.1f} tokens/s together, {together / count:>8.1f} each")


def gaps(server, length):
    """Percentiles of the time between two tokens of a running stream."""
    print(f"{'gap between tokens, ms':<42} {'tokens':>6} {'p50':>7} {'p90':>7} {'p99':>7} {'most':>7}")
    quiet, _ = moments(server, body(prompt(server, 64, "quiet"), 500))
    show("alone", quiet)
    ids = prompt(server, length, time.time())
    stream, enough = [], threading.Event()
    beside = body(prompt(server, 64, "beside"), 20_000)
    reading = threading.Thread(target=lambda: stream.extend(moments(server, beside, enough)[0]))
    reading.start()
    time.sleep(1)
    begin = time.monotonic()
    _, usage = moments(server, body(ids, 1))
    end = time.monotonic()
    enough.set()
    reading.join()
    show(f"while {usage['prompt_tokens']} tokens are read in {end - begin:.1f} s", [t for t in stream if begin <= t <= end])


def show(what, times):
    between = [(b - a) * 1e3 for a, b in zip(times, times[1:])]
    row = [percentile(between, share) for share in (0.5, 0.9, 0.99)] + [max(between)]
    print(f"{what:<42} {len(times):>6} " + " ".join(f"{value:>7.1f}" for value in row))
