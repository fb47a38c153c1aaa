"""Where the binary is. The tests run the real program as users do."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("LILY_BIN", ROOT / "target/release/lily"))


@pytest.fixture(scope="session")
def lily():
    """Runs `lily ARGS…` and returns the finished process; its environment carries no LILY_* setting."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LILY_")}

    def run(*args, stdin=None, timeout=300):
        return subprocess.run(
            [BINARY, *map(str, args)],
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=env,
            timeout=timeout,
        )

    return run
