"""Requests with one or two values replaced, removed or added at random: each is answered or refused by name, none is an
error of the server, and none takes long."""

import copy
import random

import httpx
import pytest

TOOL = {
    "name": "f",
    "description": "d",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": ["boolean", "null"]}, "b": {"type": "array", "items": {"$ref": "#/$defs/x"}}},
        "required": ["a"],
        "$defs": {"x": {"enum": ["u", 1, None]}},
    },
    "strict": True,
}
CHAT_TOOL = {"type": "function", "function": TOOL}
REQUESTS = [
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "r",
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
                },
                {"role": "tool", "tool_call_id": "1", "content": "x"},
                {"role": "user", "content": "go"},
            ],
            "tools": [CHAT_TOOL],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "stop": ["x"],
            "n": 1,
            "seed": 4,
            "logit_bias": {"5": 1},
            "logprobs": True,
            "top_logprobs": 2,
            "chat_template_kwargs": {"enable_thinking": False},
            "thinking_budget": 3,
            "reasoning_effort": "low",
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "go"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": TOOL["parameters"]}},
        },
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "go"}], "tools": [CHAT_TOOL], "tool_choice": "required"},
    ),
    ("/v1/completions", {"prompt": ["a", [1, 2]], "echo": True, "n": 2, "best_of": 2, "grammar": 'start: "a"'}),
    (
        "/v1/messages",
        {
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "a"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        {"type": "tool_use", "id": "i", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "r"}], "is_error": True}
                    ],
                },
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 5},
            "stop_sequences": ["q"],
        },
    ),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}], "summary": []},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "o"},
            ],
            "instructions": "i",
            "tools": [{"type": "function", **TOOL}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "text"}},
            "reasoning": {"effort": "low"},
        },
    ),
    ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "tools": [CHAT_TOOL]}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]
LIMITS = {"/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens"}
VALUES = [
    *[None, True, 0, -1, 1, 2**63, 1e300, 1.5, "", "x", "\0", "auto", "object", "\uffff" * 50],
    *[[], {}, [[]], [{}], [None], ["x"] * 20, {"a": {}}, {"$ref": "#"}, {"type": "object"}, {"type": "string", "pattern": "("}],
]
NAMES = ["zz", "type", "content", "stream", "strict", "timeout"]


def places(value, path=()):
    """The paths of all values inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def mutate(body, draw):
    path = draw.choice(list(places(body)))
    parent = body
    for key in path[:-1]:
        parent = parent[key]
    how = draw.random()
    if how < 0.7:
        parent[path[-1]] = copy.deepcopy(draw.choice(VALUES))
    elif how < 0.85:
        del parent[path[-1]]
    elif isinstance(parent, dict):
        parent[draw.choice(NAMES)] = copy.deepcopy(draw.choice(VALUES))


@pytest.mark.parametrize("path, body", REQUESTS)
def test_a_mutated_request_is_answered_or_refused(server, path, body):
    draw = random.Random(path + str(sorted(body)))
    seen = set()
    with httpx.Client(base_url=server.url, timeout=30) as client:
        for _ in range(40):
            mutant = copy.deepcopy(body)
            for _ in range(draw.choice([1, 1, 2])):
                if mutant:
                    mutate(mutant, draw)
            if path.startswith("/v1"):
                mutant[LIMITS.get(path, "max_tokens")] = 2
                mutant.setdefault("stream", draw.random() < 0.3)
            response = client.post(path, json=mutant)
            assert response.status_code in (200, 400), (mutant, response.text)
            if response.status_code == 200:
                assert '"error":{' not in response.text, (mutant, response.text)
            else:
                assert response.json()["error"]["message"], mutant
            seen.add(response.status_code)
    assert seen == {200, 400}, "some mutants are harmless and some are not"
