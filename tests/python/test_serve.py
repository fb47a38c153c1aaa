"""`lily serve` as operators run it: signals, settings, warnings, the request log."""

import json
import re
import signal
import socket
import time

import httpx
import openai
import pytest
from conftest import Server

# Does not end by itself.
ENDLESS = {"prompt": "Once upon a time", "max_tokens": 20_000, "ignore_eos": True, "stream": True}


def data(line):
    return json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else None


def begun(response):
    """The lines of a stream after its first token; whoever drops them hangs up."""
    lines = response.iter_lines()
    next(line for line in lines if data(line))
    return lines


def test_a_signal_lets_running_streams_finish_and_refuses_new_requests():
    server = Server()
    body = {**ENDLESS, "max_tokens": 600}
    with httpx.Client(base_url=server.url, timeout=60) as client, httpx.Client(base_url=server.url) as other:
        assert other.get("/health").status_code == 200
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = begun(response)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.HTTPError):
                for _ in range(200):
                    refused = httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1})
                    assert refused.status_code == 503, refused.text
            events = [line for line in lines if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert data(events[-2])["choices"][0]["finish_reason"] == "length"
    assert server.wait() == 0


def test_what_outlasts_the_drain_timeout_is_told_and_the_exit_code_is_still_0():
    server = Server("--drain-timeout", 1)
    with httpx.stream("POST", server.url + "/v1/completions", json=ENDLESS, timeout=60) as response:
        lines = begun(response)
        server.process.send_signal(signal.SIGINT)
        events = [value for line in lines if (value := data(line))]
    assert events[-1]["error"]["code"] == "unavailable"
    assert server.wait() == 0


def test_a_second_signal_ends_it_at_once():
    server = Server()
    with httpx.stream("POST", server.url + "/v1/completions", json=ENDLESS, timeout=60) as response:
        lines = begun(response)
        server.process.send_signal(signal.SIGINT)
        # Both signals must be seen, so the second waits until the first is.
        for _ in range(1000):
            if any("shutting down" in line for line in server.log):
                break
            time.sleep(0.01)
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 130
        del lines


def test_without_requests_a_signal_ends_it_and_stdout_is_empty():
    server = Server()
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 0
    assert server.process.stdout.read() == ""


def test_connections_without_a_whole_request_do_not_hold_up_the_end():
    server = Server()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as silent, socket.create_connection((host, int(port))) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
        assert httpx.get(server.url + "/health").status_code == 200
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 15, "the limit for a head is 30 s"
        del silent


def test_an_address_that_others_reach_is_warned_about_and_loopback_is_not():
    server = Server("--api-key", "secret", bind="0.0.0.0:0")
    assert httpx.get(server.url + "/v1/models").status_code == 401
    assert server.stop() == 0
    assert any("WARN" in line and "reachable from other machines" in line for line in server.log)
    assert not any("secret" in line for line in server.log)
    quiet = Server()
    assert quiet.stop() == 0
    assert not any("WARN" in line for line in quiet.log)


def test_a_bad_address_is_named(lily):
    done = lily("serve", "--bind", "256.0.0.1:1")
    assert done.returncode == 1 and "--bind" in done.stderr and done.stdout == ""


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "lily.toml"
    file.write_text('[serve]\nname = "from-file"\nbind = "127.0.0.1:0"\nmax-body = "1000"\n')

    def name(*args, env=None):
        server = Server("--settings", file, *args, bind=None, env=env)
        long = httpx.post(server.url + "/v1/completions", json={"prompt": "x" * 2000})
        assert long.status_code == 413, "the file's limit holds"
        found = httpx.get(server.url + "/v1/models").json()["data"][0]["id"]
        assert server.stop() == 0
        return found

    assert name() == "from-file"
    assert name(env={"LILY_NAME": "from-environment"}) == "from-environment"
    assert name("--name", "from-flag", env={"LILY_NAME": "from-environment"}) == "from-flag"


def test_the_log_has_a_line_a_request_with_the_id_that_the_response_carries():
    server = Server()
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    raw = client.completions.with_raw_response.create(model="lily", prompt="Once", max_tokens=3)
    whole = raw.headers["x-request-id"]
    with httpx.stream("POST", server.url + "/v1/completions", json={**ENDLESS, "max_tokens": 3}) as response:
        streamed = response.headers["x-request-id"]
        response.read()
    with httpx.stream("POST", server.url + "/v1/completions", json=ENDLESS) as response:
        left = response.headers["x-request-id"]
        begun(response)
    refused = httpx.post(server.url + "/v1/completions", json={"prompt": "x", "top_p": 7}).headers["x-request-id"]
    assert server.stop() == 0

    def lines(id):
        return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in server.log if id in line]

    assert len({whole, streamed, left, refused}) == 4
    assert "completion=3" in lines(whole)[0] and "status=200" in lines(whole)[0]
    assert "stream done" in lines(streamed)[1] and "completion=3" in lines(streamed)[1]
    assert "client gone" in lines(left)[1]
    assert "status=400" in lines(refused)[0] and "top_p" in lines(refused)[0]
    assert "\x1b" not in "".join(server.log), "colours are for terminals"


def test_a_full_queue_raises_rate_limit_error():
    server = Server("--parallel", 1, "--queue", 0)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    with httpx.stream("POST", server.url + "/v1/completions", json=ENDLESS, timeout=60) as response:
        lines = begun(response)
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="lily", prompt="x")
        del lines
        assert int(caught.value.response.headers["retry-after"]) >= 1
    assert server.stop() == 0


def test_the_prefix_cache_survives_a_restart(tmp_path):
    body = {
        "messages": [
            {"role": "system", "content": "You are a patient teacher of geography. " * 40},
            {"role": "user", "content": "What is the capital of Norway?"},
        ],
        "temperature": 0,
        "max_tokens": 30,
        "chat_template_kwargs": {"enable_thinking": False},
    }

    def ask():
        server = Server("--cache-dir", tmp_path / "cache")
        done = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60).json()
        assert server.stop() == 0
        usage = done["usage"]
        return done["choices"][0]["message"]["content"], usage["prompt_tokens_details"]["cached_tokens"], usage

    cold, cached, _ = ask()
    assert cached == 0
    warm, cached, usage = ask()
    assert warm == cold and cached >= usage["prompt_tokens"] - 32, usage
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-9] + b"\x00" * 9)
    broken, cached, _ = ask()
    assert (broken, cached) == (cold, 0), "what is damaged on disk is not used"
