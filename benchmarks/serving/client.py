"""One request to a running `lily serve`, with the moments at which its events came. Standard library only."""

import http.client
import json
import time
import urllib.parse


class Refused(Exception):
    """The server answered with an error; `status` is its code."""

    def __init__(self, status, body):
        super().__init__(f"{status}: {body}")
        self.status = status


class Server:
    """Address and key of a server."""

    def __init__(self, url, key=None):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port or 80
        self.headers = {"content-type": "application/json"}
        if key:
            self.headers["authorization"] = f"Bearer {key}"

    def send(self, path, body=None, timeout=600):
        """Sends a request and returns the connection."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        method, text = ("GET", None) if body is None else ("POST", json.dumps(body))
        connection.request(method, path, text, self.headers)
        return connection

    def open(self, path, body=None, timeout=600):
        """Sends a request and returns the connection and the response, its body unread."""
        connection = self.send(path, body, timeout)
        return connection, connection.getresponse()

    def call(self, path, body=None):
        """The JSON (or text) of a response."""
        connection, response = self.open(path, body)
        text = response.read().decode()
        connection.close()
        if response.status != 200:
            raise Refused(response.status, text[:300])
        kind = response.getheader("content-type") or ""
        return json.loads(text) if "json" in kind else text

    def stream(self, path, body):
        """Yields the JSON values of a stream of events as they come."""
        connection, response = self.open(path, {**body, "stream": True})
        try:
            if response.status != 200:
                raise Refused(response.status, response.read().decode()[:300])
            for line in response:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    yield json.loads(line[6:])
        finally:
            connection.close()

    def metrics(self):
        """Samples of /metrics without the histograms' buckets, names without `lily_`."""
        samples = {}
        for line in self.call("/metrics").splitlines():
            if line.startswith("lily_") and "_bucket" not in line:
                name, value = line.rsplit(" ", 1)
                samples[name.removeprefix("lily_")] = float(value)
        return samples


def moments(server, body, enough=None):
    """Reads a streamed completion. Gives the moments at which text came (a token that ends within a character brings none),
    and the usage; hangs up once the event `enough` is set."""
    times, usage = [], {}
    body = {**body, "stream_options": {"include_usage": True}}
    for event in server.stream("/v1/completions", body):
        usage = event.get("usage") or usage
        if any(choice["text"] for choice in event["choices"]):
            times.append(time.monotonic())
        if enough is not None and enough.is_set():
            break
    return times, usage


def percentile(values, share):
    """The value below which `share` of the values lie; None without any."""
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else None
