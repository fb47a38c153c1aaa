"""A long run of mixed requests at a fixed rate: chats that grow, tools, formats, other dialects, clients that hang up,
wrong requests. Writes the server's memory and counters to a CSV file, a row a minute. Fails if an answer changes, a
request goes wrong, or memory grows after the first tenth of the time."""

import csv
import json
import random
import threading
import time

from client import Refused

FIELDS = ["minute", "rss_mib", "requests", "answered", "refused_queue", "cancelled", "errors", "cache_mib", "kv_pages_used"]
QUESTION = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 60,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}
# MiB that memory may grow by after the first tenth: sizes of single requests differ by less.
GROWTH = 24
# Requests under way at once: where the machine is too slow for the rate, the rate gives way.
MOST_OPEN = 24
NAMES = "Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Klara Leo Mia Noah Olga Paul".split()


class Soak:
    """What the requests share."""

    def __init__(self, server):
        self.server = server
        self.lock = threading.Lock()
        self.chats = {}
        self.answered = 0
        self.failures = []
        self.expected = self.answer()

    def answer(self):
        """The answer that must never change; waits where the queue is full."""
        while True:
            try:
                return self.server.call("/v1/chat/completions", QUESTION)["choices"][0]["message"]["content"]
            except Refused as refused:
                if refused.status != 429:
                    raise
                time.sleep(2)

    def chat(self, draw):
        """The next turn of one of sixteen conversations; a long one starts anew, so that old prefixes are dropped."""
        name = draw.choice(NAMES)
        messages = self.chats.pop(name, None) or [{"role": "system", "content": f"You help {name}, number {draw.random()}."}]
        messages = messages + [{"role": "user", "content": f"Tell me about a {draw.choice(NAMES)} and a fox."}]
        body = {"messages": messages, "max_tokens": 40, "seed": draw.randrange(1 << 30), **QUIET}
        text = ""
        for event in self.server.stream("/v1/chat/completions", body):
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
        if len(messages) < 24:
            self.chats[name] = messages + [{"role": "assistant", "content": text}]

    def think(self, draw):
        body = {**QUESTION, "temperature": 1, "seed": draw.randrange(1 << 30), "thinking_budget": 12}
        assert self.server.call("/v1/chat/completions", body)["usage"]["completion_tokens"] > 0

    def tool(self, draw):
        body = {**QUESTION, **QUIET, "tools": [TOOL], "tool_choice": "required", "max_tokens": 120}
        body["messages"] = [{"role": "user", "content": f"What is the weather in {draw.choice(NAMES)}ville?"}]
        call = self.server.call("/v1/chat/completions", body)["choices"][0]["message"]["tool_calls"][0]
        assert "city" in json.loads(call["function"]["arguments"])

    def schema(self, draw):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {**SCHEMA, "title": str(draw.random())}}}
        choice = self.server.call("/v1/chat/completions", {**QUESTION, **QUIET, "response_format": form})["choices"][0]
        assert choice["finish_reason"] == "length" or "city" in json.loads(choice["message"]["content"])

    def several(self, draw):
        body = {"prompt": f"Once upon a time, {draw.choice(NAMES)}", "max_tokens": 12, "n": 3, "logprobs": 3}
        assert len(self.server.call("/v1/completions", body)["choices"]) == 3

    def claude(self, draw):
        body = {"max_tokens": 30, "messages": [{"role": "user", "content": f"Hello, I am {draw.choice(NAMES)}."}]}
        assert self.server.call("/v1/messages", body)["type"] == "message"

    def response(self, draw):
        body = {"input": f"Hello, I am {draw.choice(NAMES)}.", "max_output_tokens": 30}
        assert self.server.call("/v1/responses", body)["object"] == "response"

    def hang_up(self, draw):
        body = {**QUESTION, "max_tokens": 400, "ignore_eos": True, "stream": draw.random() < 0.7}
        if body["stream"]:
            connection, response = self.server.open("/v1/chat/completions", body)
            response.read(draw.randrange(1, 4000))
        else:
            connection = self.server.send("/v1/chat/completions", body)
            time.sleep(draw.random() * 0.3)
        connection.close()

    def wrong(self, draw):
        field, value = draw.choice([("temperature", -1), ("messages", []), ("nonsense", 1), ("max_tokens", "x")])
        try:
            self.server.call("/v1/chat/completions", {**QUESTION, field: value})
        except Refused as refused:
            assert refused.status == 400, refused
        else:
            raise AssertionError(f"{field}={value} was accepted")

    def one(self, seed):
        draw = random.Random(seed)
        kinds = [self.chat] * 6 + [self.hang_up] * 3 + [self.think, self.tool, self.schema, self.several]
        kind = draw.choice(kinds + [self.claude, self.response, self.wrong])
        try:
            kind(draw)
            with self.lock:
                self.answered += 1
        except Exception as error:  # noqa: BLE001, whatever went wrong is the soak's result
            with self.lock:
                self.failures.append(f"{kind.__name__}: {error!r}")


def run(server, minutes, rate, path):
    """Runs for so many minutes at `rate` requests a second, or fewer where the server is slower."""
    soak = Soak(server)
    start = time.monotonic()
    number, rows_written, threads = 0, 0, []
    # Short runs have rows too.
    period = min(60.0, minutes * 60 / 10)
    with open(path, "w", newline="") as file:
        rows = csv.DictWriter(file, FIELDS)
        rows.writeheader()
        while rows_written * period <= minutes * 60:
            if time.monotonic() - start >= rows_written * period:
                minute = round(rows_written * period / 60, 2)
                rows.writerow(row(soak, minute, number))
                file.flush()
                if soak.answer() != soak.expected:
                    soak.failures.append(f"minute {minute}: the answer changed")
                rows_written += 1
            threads = [thread for thread in threads if thread.is_alive()]
            if len(threads) < MOST_OPEN:
                threads.append(threading.Thread(target=soak.one, args=[number], daemon=True))
                threads[-1].start()
                number += 1
            time.sleep(1 / rate)
    for thread in threads:
        thread.join(60)
    points = curve(path)
    settled = [size for minute, size in points if minute >= minutes / 10]
    if settled and settled[-1] > settled[0] + GROWTH:
        soak.failures.append(f"memory grew from {settled[0]} to {settled[-1]} MiB")
    print(f"{number} requests in {minutes:g} minutes, {soak.answered} as expected, {len(soak.failures)} failures")
    for failure in soak.failures[:20]:
        print("  " + failure)
    return 1 if soak.failures else 0


def row(soak, minute, number):
    m = soak.server.metrics()
    return {
        "minute": minute,
        "rss_mib": round(m["resident_memory_bytes"] / (1 << 20), 1),
        "requests": number,
        "answered": soak.answered,
        "refused_queue": int(m["requests_refused_total"]),
        "cancelled": int(m['requests_finished_total{reason="cancelled"}']),
        "errors": int(m['requests_finished_total{reason="error"}'] + m["device_errors_total"]),
        "cache_mib": round(m["cache_bytes"] / (1 << 20), 1),
        "kv_pages_used": int(m["kv_pages_used"]),
    }


def curve(path):
    """Prints memory over time, about twelve rows of it, and returns all of it."""
    with open(path, newline="") as file:
        points = [(float(row["minute"]), float(row["rss_mib"])) for row in csv.DictReader(file)]
    most = max(size for _, size in points)
    for minute, size in points[:: max(1, len(points) // 12)]:
        print(f"{minute:>6g} min {size:>8.1f} MiB {'#' * int(50 * size / most)}")
    return points
