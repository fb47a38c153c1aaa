"""The official `anthropic` package against the real server."""

import json

import anthropic
import pydantic
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# The package no longer has an argument for it; the API does.
GREEDY = {"temperature": 0}
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def test_a_message(claude, model):
    done = claude.messages.create(model=model, max_tokens=200, messages=QUESTION, extra_body=GREEDY)
    assert [block.type for block in done.content] == ["text"]
    assert "Paris" in done.content[0].text
    assert done.stop_reason == "end_turn" and done.usage.output_tokens > 0


def test_thinking_is_a_block_of_its_own(claude, model):
    done = claude.messages.create(
        model=model,
        max_tokens=2000,
        messages=QUESTION,
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    assert [block.type for block in done.content] == ["thinking", "text"]
    assert done.content[0].thinking


def test_a_stream_joins_to_the_same_message(claude, model):
    args = dict(model=model, max_tokens=200, messages=QUESTION, extra_body=GREEDY, system="Be brief.")
    done = claude.messages.create(**args)
    with claude.messages.stream(**args) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == done.content[0].text == final.content[0].text
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == done.usage.output_tokens


def test_a_tool_is_used_and_its_result_read(claude, model):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    args = dict(model=model, max_tokens=200, tools=[WEATHER], extra_body=GREEDY)
    with claude.messages.stream(messages=messages, tool_choice={"type": "any"}, **args) as stream:
        done = stream.get_final_message()
    use = next(block for block in done.content if block.type == "tool_use")
    assert done.stop_reason == "tool_use" and use.name == "get_weather" and "city" in use.input
    messages += [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in done.content]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": use.id, "content": json.dumps({"sky": "clear"})}],
        },
    ]
    after = claude.messages.create(messages=messages, **args)
    assert after.content


def test_tokens_are_counted_as_they_are_read(claude, model):
    count = claude.messages.count_tokens(model=model, messages=QUESTION)
    done = claude.messages.create(model=model, max_tokens=1, messages=QUESTION)
    usage = done.usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert done.stop_reason == "max_tokens"


def test_a_wrong_field_raises_bad_request(claude, model):
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(model=model, max_tokens=10, messages=[])
    assert "messages" in str(caught.value)


def test_an_answer_keeps_its_schema(claude, model):
    class City(pydantic.BaseModel):
        name: str
        letters: int

    done = claude.messages.parse(
        model=model, max_tokens=200, messages=QUESTION, output_format=City, extra_body=GREEDY
    )
    assert isinstance(done.parsed_output, City)
