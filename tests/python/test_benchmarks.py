"""The serving harness runs against the real server; its soak is here a short one."""

import subprocess
import sys

import pytest
from conftest import ROOT, Server


@pytest.fixture(scope="module")
def measure():
    """A server of its own, and what runs the harness against it."""
    server = Server("--cache-memory", "24MiB")

    def run(*args):
        command = [sys.executable, ROOT / "benchmarks/serving", "--url", server.url, *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    yield run
    assert server.stop() == 0


def test_a_short_soak_finds_no_fault_and_no_growth(measure, tmp_path):
    done = measure("soak", "--minutes", 0.2, "--rate", 12, "--csv", tmp_path / "soak.csv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failures" in done.stdout
    assert len((tmp_path / "soak.csv").read_text().splitlines()) >= 10


def test_an_agents_conversation_is_mostly_cached(measure):
    done = measure("conversation")
    assert done.returncode == 0, done.stderr
    summary = done.stdout.splitlines()[-1]
    assert float(summary.split()[-2].rstrip("%")) > 80, done.stdout


def test_gaps_and_throughput_are_printed(measure):
    done = measure("gaps", "--length", 1200)
    assert done.returncode == 0 and "while 1200 tokens are read" in done.stdout, done.stdout + done.stderr
    done = measure("throughput", "--streams", 1, 3, "--tokens", 24)
    assert done.returncode == 0 and "3 streams:" in done.stdout, done.stdout + done.stderr
