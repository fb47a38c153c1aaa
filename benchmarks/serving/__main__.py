"""Measures a running `lily serve`: `python3 benchmarks/serving [--url URL] conversation|gaps|throughput|soak`. Needs
Python 3.9 and nothing else."""

import argparse
import sys

import conversation
import soak
import streams
from client import Server


def main():
    parser = argparse.ArgumentParser(prog="benchmarks/serving", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--key", help="API key")
    commands = parser.add_subparsers(dest="command", required=True)
    talk = commands.add_parser("conversation", help="cached and computed tokens of a ten-turn conversation with tools")
    talk.add_argument("--thinking", choices=["kept", "stripped", "off"], default="kept")
    gaps = commands.add_parser("gaps", help="gaps of a stream with and without a long prompt being read")
    gaps.add_argument("--length", type=int, default=30_000, help="tokens of the long prompt")
    many = commands.add_parser("throughput", help="tokens per second of parallel streams")
    many.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 8])
    many.add_argument("--tokens", type=int, default=256)
    many.add_argument("--sampling", choices=list(streams.SAMPLING), default="greedy")
    long = commands.add_parser("soak", help="mixed requests for an hour, memory every minute")
    long.add_argument("--minutes", type=float, default=60)
    long.add_argument("--rate", type=float, default=2.0, help="requests a second")
    long.add_argument("--csv", default="soak.csv", help="file to write")
    args = parser.parse_args()
    server = Server(args.url, args.key)
    if args.command == "conversation":
        conversation.run(server, args.thinking)
    elif args.command == "gaps":
        streams.gaps(server, args.length)
    elif args.command == "throughput":
        streams.throughput(server, args.streams, args.tokens, args.sampling)
    else:
        return soak.run(server, args.minutes, args.rate, args.csv)
    return 0


sys.exit(main())
