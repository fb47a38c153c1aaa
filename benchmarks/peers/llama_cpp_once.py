"""One prompt length on llama.cpp through llama-cpp-python: `llama_cpp_once.py GGUF LENGTH DECODE RUNS`."""

import sys

import contract
from llama_cpp import Llama


def main():
    path, length, decode, runs = sys.argv[1], *map(int, sys.argv[2:5])
    model = Llama(path, n_ctx=length + decode + 8, n_batch=2048, n_ubatch=2048, n_gpu_layers=-1, flash_attn=True, verbose=False)

    def best():
        return model.sample(temp=0.0)

    def start(ids):
        model.reset()
        model.eval(ids)
        return best()

    def step(token):
        model.eval([token])
        return best()

    contract.measure(start, step, contract.prompt(length, model.n_vocab()), decode, runs)


main()
