//! The 15 rendered conversations of assets/qwen36/template_golden.json.

use serde_json::{Map, Value as Json, json};

use super::super::{ChatTemplate, ControlLeads, Conversation, Message, Prompt, TemplateError};
use super::{repository, templates};

struct Case {
    name: String,
    messages: Vec<Message>,
    tools: Vec<Json>,
    kwargs: Map<String, Json>,
    add_generation_prompt: bool,
    expected: Json,
}

impl Case {
    fn of(name: String, case: &Json) -> Self {
        let mut kwargs = case["input"].as_object().unwrap().clone();
        let mut take = |key: &str| kwargs.remove(key);
        let messages = serde_json::from_value(take("messages").unwrap()).unwrap();
        let tools = take("tools").map(|t| t.as_array().unwrap().clone()).unwrap_or_default();
        let add_generation_prompt = take("add_generation_prompt") == Some(Json::Bool(true));
        Self { name, messages, tools, kwargs, add_generation_prompt, expected: case.clone() }
    }

    fn conversation(&self) -> Conversation<'_> {
        Conversation {
            messages: &self.messages,
            tools: &self.tools,
            kwargs: &self.kwargs,
            add_generation_prompt: self.add_generation_prompt,
        }
    }
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(repository().join("assets/qwen36/template_golden.json")).unwrap();
    let cases: Map<String, Json> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 15);
    cases.iter().map(|(name, case)| Case::of(name.clone(), case)).collect()
}

#[test]
fn rendered_conversations_equal_the_golden_ones_byte_for_byte() {
    for (which, template) in templates().iter().enumerate() {
        for case in cases() {
            let rendered = template.render(&case.conversation());
            let problem = rendered.as_ref().err();
            match (case.name.as_str(), problem) {
                ("err_empty", Some(TemplateError::NoMessages)) => {}
                ("err_no_user" | "err_only_tool_response_user", Some(TemplateError::NoUserMessage)) => {}
                ("err_late_system", Some(TemplateError::LateSystemMessage { index: 1 })) => {}
                ("err_developer", Some(TemplateError::UnknownRole { index: 0, role })) => {
                    assert_eq!(role, "developer")
                }
                // Python's TypeError: templates want a mapping. Here JSON text is parsed before it gets there.
                ("err_string_arguments", None) => {
                    assert!(rendered.unwrap().text().contains("<parameter=a>\n1\n</parameter>"));
                }
                // The miniature reads text only and says so; the published template prints image tokens.
                ("content_parts", Some(TemplateError::NotText { index: 0 })) if which == 0 => {}
                (name, _) => {
                    let expected = case.expected["output"].as_str();
                    let text = rendered.as_ref().map(Prompt::text);
                    assert_eq!(text.ok(), expected, "{name}, template {which}: {problem:?}");
                }
            }
        }
    }
}

/// `rendered.json`: conversations made at random (control strings in every field, odd white space, floats, content
/// parts), as Python's Jinja2 renders them with transformers' settings.
#[test]
fn random_conversations_equal_what_python_prints() {
    let cases: Vec<Json> = serde_json::from_str(include_str!("rendered.json")).unwrap();
    assert!(cases.len() >= 50);
    for (number, case) in cases.iter().enumerate() {
        let case = Case::of(number.to_string(), case);
        for (which, template) in templates().iter().enumerate() {
            let rendered = template.render(&case.conversation());
            let text = rendered.as_ref().map(Prompt::text);
            assert_eq!(
                text.ok(),
                case.expected["output"].as_str(),
                "case {number}, template {which}: {:?}",
                text.err()
            );
        }
    }
}

#[test]
fn arguments_that_are_no_json_object_are_refused_by_place() {
    for (arguments, ok) in [
        (json!("{\"a\": 1}"), true),
        (json!(""), true),
        (json!(null), true),
        (json!({"a": 1}), true),
        (json!("[1]"), false),
        (json!("{\"a\": "), false),
        (json!(3), false),
        (json!("\"text\""), false),
    ] {
        let messages: Vec<Message> = serde_json::from_value(json!([
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"type": "function", "function": {"name": "f", "arguments": arguments}},
            ]},
            {"role": "tool", "tool_call_id": "x", "content": "r"},
        ]))
        .unwrap();
        for template in templates() {
            let kwargs = Map::new();
            let conversation =
                Conversation { messages: &messages, tools: &[], kwargs: &kwargs, add_generation_prompt: true };
            match template.render(&conversation) {
                Ok(_) => assert!(ok, "{arguments}"),
                Err(TemplateError::Arguments { message: 1, call: 1, .. }) => assert!(!ok, "{arguments}"),
                Err(other) => panic!("{arguments}: {other}"),
            }
        }
    }
}

#[test]
fn nested_and_huge_conversations_neither_overflow_nor_hang() {
    let mut deep = json!(1);
    for _ in 0..100_000 {
        deep = Json::Array(vec![deep]);
    }
    let messages = vec![Message::new("user", "</think><tool_response>".repeat(20_000)); 10];
    let kwargs = Map::new();
    for template in templates() {
        let tools = std::slice::from_ref(&deep);
        let error =
            template.render(&Conversation { messages: &messages, tools, kwargs: &kwargs, add_generation_prompt: true });
        assert!(matches!(error, Err(TemplateError::TooDeep { field }) if field == "tools[0]"));
        let rendered = template.render(&Conversation {
            messages: &messages,
            tools: &[],
            kwargs: &kwargs,
            add_generation_prompt: true,
        });
        assert!(rendered.unwrap().text().len() > 10 * 460_000);
    }
    // serde_json's own drop would recurse.
    let mut level = deep;
    while let Json::Array(mut items) = level {
        level = items.pop().unwrap();
    }
}

#[test]
fn templates_that_nest_loop_or_grow_without_end_fail_as_errors() {
    let leads = ControlLeads::of([]);
    let nested = ChatTemplate::new(format!("{{{{ {}1 }}}}", "not ".repeat(16_000)), &leads);
    assert!(nested.is_ok());
    for operator in ["not ", "-", "(", "["] {
        let source = format!("{{{{ {}1 }}}}", operator.repeat(100_000 / operator.len()));
        assert!(matches!(ChatTemplate::new(source, &leads), Err(TemplateError::Syntax(_))), "{operator}");
    }
    let deepest = format!("{{{{ {}1 }}}}", "-".repeat(60_000));
    // Whether it compiles or not, it comes back.
    let _ = ChatTemplate::new(deepest, &leads);
    let endless = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
    let endless = ChatTemplate::new(endless, &leads).unwrap();
    let messages = [Message::new("user", "x")];
    let kwargs = Map::new();
    let rendered =
        endless.render(&Conversation { messages: &messages, tools: &[], kwargs: &kwargs, add_generation_prompt: true });
    assert!(matches!(rendered, Err(TemplateError::Failed(_))), "{rendered:?}");
}
