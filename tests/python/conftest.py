"""Where the binary is, and a server on a free port. The tests run the real program as users do."""

import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import anthropic
import httpx
import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("LILY_BIN", ROOT / "target/release/lily"))


def environment():
    """The environment without any LILY_* setting."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LILY_")}


@pytest.fixture(scope="session")
def lily():
    """Runs `lily ARGS…` and returns the finished process."""

    def run(*args, stdin=None, timeout=300):
        return subprocess.run(
            [BINARY, *(arg if isinstance(arg, bytes) else str(arg) for arg in args)],
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment(),
            timeout=timeout,
        )

    return run


class Server:
    """A running `lily serve`. The fixture `no_server_left` ends those that a failed test left."""

    started = []

    def __init__(self, *args, bind="127.0.0.1:0", env=None):
        self.process = subprocess.Popen(
            [BINARY, "serve", *(["--bind", bind] if bind else []), *map(str, args)],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # The miniature gains nothing from more threads, and loses much where other processes want the cores.
            env={**environment(), "LILY_THREADS": "1", **(env or {})},
        )
        Server.started.append(self.process)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found.group(1).replace("0.0.0.0", "127.0.0.1")
                break
        else:
            raise RuntimeError("".join(self.log))
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()
        for _ in range(600):
            if httpx.get(self.url + "/health").status_code == 200:
                return
            time.sleep(0.1)
        raise RuntimeError("the model was not loaded within a minute: " + "".join(self.log))

    def stop(self):
        """Ends it as an operator would; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self):
        """Its exit code, once all of its log is in `log`."""
        code = self.process.wait(timeout=60)
        self.reader.join(10)
        return code


@pytest.fixture(autouse=True)
def no_server_left():
    """Ends what a test started and, failing, did not stop."""
    before = len(Server.started)
    yield
    for process in Server.started[before:]:
        process.kill()


@pytest.fixture(scope="session")
def server():
    running = Server()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=300, max_retries=0)


@pytest.fixture(scope="session")
def claude(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", timeout=300, max_retries=0)


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id
