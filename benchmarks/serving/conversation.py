"""Ten turns of an agent that calls tools: how many prompt tokens of each turn came from the cache and how many were
computed. Every turn sends the whole history, as agents do."""

import json
import time

SYSTEM = "You are a careful assistant who works in a code repository. Use the tools when they help. " * 12
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": PATH}}
    for name, text in [
        ("read_file", "Returns the text of a file."),
        ("list_folder", "Returns the names in a folder."),
        ("run_tests", "Runs the tests of a folder and returns what failed."),
    ]
]
TASKS = [
    "Which files are in src?",
    "Read src/main.rs.",
    "What does it do?",
    "Run the tests in src.",
    "Read src/error.rs as well.",
    "Why does the test fail?",
    "Read the test.",
    "Run the tests again.",
    "Is there a README?",
    "Sum up what you did.",
]
RESULT = "fn main() { let name = std::env::args().nth(1); println!(\"{name:?}\"); } // and so on\n"


def run(server, thinking="kept"):
    """Prints a line a turn. `thinking`: kept in the history, stripped from it, or off."""
    messages = [{"role": "system", "content": SYSTEM}]
    total = {"prompt": 0, "cached": 0}
    print(f"ten-turn agent conversation with tools, thinking {thinking}")
    print(f"{'turn':>4} {'requests':>8} {'prompt':>7} {'cached':>7} {'computed':>8} {'new':>5} {'first token':>11}")
    before = 0
    for turn, task in enumerate(TASKS, 1):
        messages.append({"role": "user", "content": task})
        # The agent's loop: a turn that calls a tool gets its result and goes on. Every other turn must call one, so that
        # the figures do not hang on what the model likes.
        for call in ([True, False] if turn % 2 else [False]):
            answer, usage, first = ask(server, messages, call, thinking)
            messages.append(answer)
            for made in answer.get("tool_calls", []):
                messages.append({"role": "tool", "tool_call_id": made["id"], "content": RESULT * 4})
            prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
            what = "call" if call else "answer"
            print(
                f"{turn:>4} {what:>8} {prompt:>7} {cached:>7} {prompt - cached:>8} {prompt - before:>5} {first * 1e3:>8.0f} ms"
            )
            before = prompt + usage["completion_tokens"]
            total["prompt"] += prompt
            total["cached"] += cached
    share = total["cached"] / total["prompt"]
    print(f" all: {total['prompt']} prompt tokens, {total['prompt'] - total['cached']} computed, {share:.1%} cached")


def ask(server, messages, call, thinking):
    """One request; gives the assistant's message, the usage and the time to the first event with content."""
    body = {
        "messages": messages,
        "tools": TOOLS,
        "tool_choice": "required" if call else "auto",
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 160,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": thinking != "off", "preserve_thinking": thinking == "kept"},
        "thinking_budget": 48,
    }
    message = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    start, first, usage = time.monotonic(), None, {}
    for event in server.stream("/v1/chat/completions", body):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            delta = choice["delta"]
            if first is None and set(delta) - {"role"} and delta.get("content") != "":
                first = time.monotonic() - start
            for name in ["content", "reasoning_content"]:
                message[name] += delta.get(name) or ""
            for piece in delta.get("tool_calls", []):
                if piece.get("id"):
                    message["tool_calls"].append(
                        {"id": piece["id"], "type": "function", "function": {"name": piece["function"]["name"], "arguments": ""}}
                    )
                else:
                    message["tool_calls"][-1]["function"]["arguments"] += piece["function"]["arguments"]
    # A call cut off by the limit is no JSON, and the next request would be refused.
    message["tool_calls"] = [made for made in message["tool_calls"] if is_object(made["function"]["arguments"])]
    for name in ["tool_calls", "reasoning_content"]:
        if not message[name] or (name == "reasoning_content" and thinking != "kept"):
            del message[name]
    return message, usage, first or 0.0


def is_object(text):
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
