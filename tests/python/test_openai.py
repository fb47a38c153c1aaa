"""The official `openai` package against the real server."""

import json

import openai
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def test_a_chat_completion_has_thinking_and_answer(client, model):
    done = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=200)
    message = done.choices[0].message
    assert "Paris" in message.content
    assert message.reasoning_content and "think>" not in message.content
    assert done.choices[0].finish_reason == "stop"
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done.usage.completion_tokens_details.reasoning_tokens > 0


def test_a_stream_joins_to_the_same_answer(client, model):
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, extra_body=QUIET)
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=QUIET,
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_stream_can_be_left_early(client, model):
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Tell me a story."}], stream=True, max_tokens=2000
    )
    for chunk in stream:
        if chunk.choices[0].delta.content or getattr(chunk.choices[0].delta, "reasoning_content", None):
            break
    stream.close()
    done = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, extra_body=QUIET)
    assert "Paris" in done.choices[0].message.content


def test_a_required_tool_is_called_and_the_turn_goes_on(client, model):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    done = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=[WEATHER],
        tool_choice="required",
        temperature=0,
        max_tokens=200,
        extra_body=QUIET,
    )
    assert done.choices[0].finish_reason == "tool_calls"
    call = done.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    messages += [
        done.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"},
    ]
    after = client.chat.completions.create(
        model=model, messages=messages, tools=[WEATHER], temperature=0, max_tokens=100, extra_body=QUIET
    )
    assert after.choices[0].message.content


def test_streamed_tool_calls_give_the_name_first_and_join_to_json(client, model):
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        temperature=0,
        max_tokens=200,
        stream=True,
        extra_body=QUIET,
    )
    deltas = [
        call
        for chunk in stream
        for choice in chunk.choices
        for call in choice.delta.tool_calls or []
    ]
    assert deltas[0].function.name == "get_weather" and deltas[0].id
    assert all(delta.function.name is None and delta.index == 0 for delta in deltas[1:])
    assert "city" in json.loads("".join(delta.function.arguments or "" for delta in deltas))


def test_the_answer_keeps_a_json_schema(client, model):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
        "additionalProperties": False,
    }
    done = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=400,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
    )
    value = json.loads(done.choices[0].message.content)
    assert set(value) == {"city", "big"} and isinstance(value["big"], bool)


def test_completions_and_their_stream(client, model):
    args = dict(model=model, prompt="Once upon a time", temperature=0, max_tokens=12, logprobs=2)
    done = client.completions.create(**args)
    assert len(done.choices[0].logprobs.tokens) == 12
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(**args, stream=True))
    assert text == done.choices[0].text


def test_responses_and_their_stream(client, model):
    args = dict(
        model=model,
        input="What is the capital of France?",
        instructions="Answer in one sentence.",
        temperature=0,
        max_output_tokens=200,
    )
    done = client.responses.create(**args)
    assert done.status == "completed" and done.output_text
    kinds = [item.type for item in done.output]
    assert kinds[-1] == "message"
    with client.responses.stream(**args) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == done.output_text
    assert [event.sequence_number for event in events] == sorted(event.sequence_number for event in events)
    assert events[0].type == "response.created" and events[-1].type == "response.completed"


def test_responses_call_tools(client, model):
    tool = {"type": "function", **WEATHER["function"]}
    first = client.responses.create(
        model=model,
        input="What is the weather in Rome?",
        tools=[tool],
        tool_choice="required",
        temperature=0,
        max_output_tokens=200,
        reasoning={"effort": "none"},
    )
    call = next(item for item in first.output if item.type == "function_call")
    assert call.name == "get_weather" and "city" in json.loads(call.arguments)
    after = client.responses.create(
        model=model,
        input=[
            {"role": "user", "content": "What is the weather in Rome?"},
            *[item.model_dump(exclude_none=True) for item in first.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
        ],
        tools=[tool],
        temperature=0,
        max_output_tokens=60,
    )
    assert after.output


@pytest.mark.parametrize(
    "field, value",
    [("temperature", -1), ("max_tokens", -1), ("messages", []), ("top_p", 7), ("n", 0)],
)
def test_a_wrong_field_raises_bad_request_and_names_it(client, model, field, value):
    args = {"model": model, "messages": QUESTION, field: value}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**args)
    assert caught.value.param == field
