//! Tool calls in an answer: what is a call, what its arguments are, and that the cuts do not matter.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::super::{Conversation, Ending, Message, ToolCallParser, ToolEvent, ToolSchemas};
use super::templates;

fn schemas() -> Arc<ToolSchemas> {
    let properties = json!({
        "zip": {"type": "string"}, "n": {"type": "integer"}, "maybe": {"type": ["string", "null"]},
        "obj": {"type": "object"}, "any": {}, "flag": {"type": "boolean"},
    });
    let parameters = json!({"type": "object", "properties": properties});
    Arc::new(ToolSchemas::new(&[json!({"type": "function", "function": {"name": "f", "parameters": parameters}})]))
}

/// The events of `text`, cut into pieces of `cut` characters, with neighbours of the same kind joined.
fn parse(text: &str, cut: usize, ending: Ending) -> Vec<ToolEvent> {
    let mut parser = ToolCallParser::new(schemas());
    let mut events = Vec::new();
    let characters: Vec<char> = text.chars().collect();
    for piece in characters.chunks(cut) {
        // Events of one piece must not be merged with those of the piece before by the parser itself.
        let mut new = Vec::new();
        parser.push(&piece.iter().collect::<String>(), &mut new);
        events.extend(new);
    }
    parser.finish(ending, &mut events);
    let mut joined: Vec<ToolEvent> = Vec::new();
    for event in events {
        match (joined.last_mut(), event) {
            (Some(ToolEvent::Content(text)), ToolEvent::Content(more)) => text.push_str(&more),
            (Some(ToolEvent::Arguments { json, .. }), ToolEvent::Arguments { json: more, .. }) => json.push_str(&more),
            (_, event) => joined.push(event),
        }
    }
    joined
}

/// The same as readable text: content as it is, calls as `⟦name JSON⟧`, cut ones without the end.
fn read(text: &str, ending: Ending) -> String {
    let whole = parse(text, usize::MAX, ending);
    for cut in [1, 2, 3, 7] {
        assert_eq!(parse(text, cut, ending), whole, "cut by {cut}: {text:?}");
    }
    let print = |event: &ToolEvent| match event {
        ToolEvent::Content(text) => text.clone(),
        ToolEvent::CallStart { name, .. } => format!("⟦{name} "),
        ToolEvent::Arguments { json, .. } => json.clone(),
        ToolEvent::CallEnd { .. } => "⟧".to_owned(),
        ToolEvent::CallCut { .. } => "…".to_owned(),
    };
    whole.iter().map(print).collect()
}

fn call(parameters: &[(&str, &str)]) -> String {
    let parameters = parameters.iter().map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"));
    format!("<tool_call>\n<function=f>\n{}</function>\n</tool_call>", parameters.collect::<String>())
}

#[test]
fn calls_become_names_and_typed_arguments() {
    let text = call(&[("zip", "02134"), ("n", "42"), ("maybe", "null"), ("obj", "{\"a\": [1]}"), ("flag", "True")]);
    let expected = r#"⟦f {"zip":"02134","n":42,"maybe":null,"obj":{"a": [1]},"flag":true}⟧"#;
    assert_eq!(read(&text, Ending::Stopped), expected);
    assert_eq!(
        read(&call(&[("n", "many"), ("maybe", "nullable")]), Ending::Stopped),
        r#"⟦f {"n":"many","maybe":"nullable"}⟧"#
    );
    assert_eq!(read(&call(&[]), Ending::Stopped), "⟦f {}⟧");
    assert_eq!(read(&call(&[("unknown", "7")]), Ending::Stopped), r#"⟦f {"unknown":"7"}⟧"#);
}

#[test]
fn several_calls_and_the_text_around_them() {
    let text = format!("Let me look.\n\n{}\n{}\n", call(&[("n", "1")]), call(&[("n", "2")]));
    assert_eq!(read(&text, Ending::Stopped), r#"Let me look.⟦f {"n":1}⟧⟦f {"n":2}⟧"#);
    let text = format!("a\n{}\n\nb\n", call(&[]));
    assert_eq!(read(&text, Ending::Stopped), "a⟦f {}⟧\n\nb");
    let two = "<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>";
    assert_eq!(read(two, Ending::Stopped), "⟦f {}⟧⟦g {}⟧");
}

#[test]
fn a_call_needs_no_wrapper_at_the_start_of_a_line() {
    let bare = "<function=f>\n<parameter=n>\n1\n</parameter>\n</function>";
    assert_eq!(read(&format!("So:\n{bare}\n</tool_call>"), Ending::Stopped), r#"So:⟦f {"n":1}⟧"#);
    assert_eq!(read(bare, Ending::Stopped), r#"⟦f {"n":1}⟧"#);
    // Within a line, or for a name that is no tool, it is text.
    for text in [format!("So: {bare}"), bare.replace("=f>", "=other>"), format!("`{bare}`")] {
        assert_eq!(read(&text, Ending::Stopped), text);
    }
}

#[test]
fn text_about_calls_is_text() {
    for text in [
        "Use <tool_call> to call.",
        "<tool_call>",
        "<tool_call>\n<func",
        "<tool_call>\n{}\n</tool_call>",
        "a < b </function>",
        "<tool_call>\n<function=>\n",
        "<tool_call>\n<function=a\nb>",
        " spaces \n",
        "<tool_call>\n<function=f",
    ] {
        assert_eq!(read(text, Ending::Stopped), text);
        assert_eq!(read(text, Ending::Cut), text);
    }
    let far = format!("<tool_call>{}<function=f>", " ".repeat(300));
    assert_eq!(read(&far, Ending::Stopped), far);
}

#[test]
fn white_space_inside_a_value_is_kept_but_for_one_newline_each_side() {
    for value in ["", " ", "\n", "\n\n", "  a  ", "\na\n", "a\n\n", "\t\r\n", "line\n  indented\n"] {
        let expected = format!("⟦f {}⟧", json!({"zip": value}));
        assert_eq!(read(&call(&[("zip", value)]), Ending::Stopped), expected);
        assert_eq!(read(&call(&[("maybe", value)]), Ending::Stopped), expected.replace("zip", "maybe"));
        assert_eq!(read(&call(&[("any", value)]), Ending::Stopped), expected.replace("zip", "any"));
    }
    let tight = "<tool_call><function=f><parameter=zip>a</parameter><parameter=n>1</parameter></function></tool_call>";
    assert_eq!(read(tight, Ending::Stopped), r#"⟦f {"zip":"a","n":1}⟧"#);
}

#[test]
fn a_value_may_quote_tags() {
    let value = "<parameters>\n  <parameter name=\"a\">1</parameter>\n  <parameter name=\"b\">2</parameter>\n</parameters>\n</function> <tool_call>";
    assert_eq!(
        read(&call(&[("zip", value), ("n", "1")]), Ending::Stopped),
        format!("⟦f {}⟧", json!({"zip": value, "n": 1}))
    );
}

#[test]
fn missing_tags_are_forgiven_where_the_meaning_is_clear() {
    let open = "<tool_call>\n<function=f>\n<parameter=zip>\na";
    assert_eq!(read(&format!("{open}\n</function>\n</tool_call>"), Ending::Stopped), r#"⟦f {"zip":"a"}⟧"#);
    assert_eq!(read(&format!("{open}\n</parameter>\n</tool_call>x"), Ending::Stopped), r#"⟦f {"zip":"a"}⟧x"#);
    assert_eq!(read(&format!("{open}\n</parameter>\n"), Ending::Stopped), r#"⟦f {"zip":"a"}⟧"#);
    assert_eq!(read(&format!("{open}\n</parameter>\n{open}"), Ending::Stopped), r#"⟦f {"zip":"a"}⟧⟦f {"zip":"a"}⟧"#);
    // Stray words between parameters are not lost.
    let stray = "<tool_call>\n<function=f>\nwell <b>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(read(stray, Ending::Stopped), r#"⟦f well <b>{"n":1}⟧"#);
}

#[test]
fn a_call_that_a_limit_cuts_stays_incomplete() {
    let open = "<tool_call>\n<function=f>\n";
    assert_eq!(read(open, Ending::Cut), "⟦f …");
    assert_eq!(read(open, Ending::Stopped), "⟦f {}⟧");
    assert_eq!(read(&format!("{open}<parameter=zip>\nab\n"), Ending::Cut), "⟦f {\"zip\":\"ab\\n…");
    assert_eq!(read(&format!("{open}<parameter=zip>\nab\n"), Ending::Stopped), r#"⟦f {"zip":"ab"}⟧"#);
    assert_eq!(read(&format!("{open}<parameter=n>\n12"), Ending::Cut), "⟦f {\"n\":12…");
    assert_eq!(read(&format!("{open}<parameter=obj>\n{{\"a"), Ending::Cut), "⟦f {\"obj\":{\"a…");
    assert_eq!(read(&format!("{open}<parameter=maybe>\nnul"), Ending::Cut), "⟦f {\"maybe\":\"nul…");
}

#[test]
fn a_string_streams_while_it_arrives() {
    let mut parser = ToolCallParser::new(schemas());
    let mut events = Vec::new();
    parser.push("<tool_call>\n<function=f>\n<parameter=maybe>\nfirst line\nsecond", &mut events);
    assert_eq!(
        events,
        [
            ToolEvent::CallStart { index: 0, name: "f".into() },
            ToolEvent::Arguments { index: 0, json: "{\"maybe\":\"first line\\nsecond".into() },
        ]
    );
}

#[test]
fn what_is_held_back_is_bounded_and_so_time_is_linear() {
    let pieces = [
        "\n",
        "<",
        "<tool_call>",
        "<tool_call>\n<function=f>\n<parameter=zip>\n</parameter>",
        " ",
        "a",
        "</parameter> ",
    ];
    let prefixes =
        ["", "<tool_call>", "<function=", "<tool_call>\n<function=f>\n", "<tool_call>\n<function=f>\n<parameter=zip>"];
    for piece in pieces {
        for prefix in prefixes {
            let mut parser = ToolCallParser::new(schemas());
            let mut events = Vec::new();
            parser.push(prefix, &mut events);
            for _ in 0..2_000 {
                parser.push(piece, &mut events);
                events.clear();
                assert!(parser.held.len() < 600, "{prefix:?} {piece:?}: {}", parser.held.len());
            }
        }
    }
}

fn fragments() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<function=g>",
        "</function>",
        "<parameter=zip>",
        "<parameter=any>",
        "<parameter=maybe>",
        "</parameter>",
        "<tool_call>\n<function=f>\n",
        "\n",
        " ",
        "<",
        "</",
        "null",
        "12",
        "{",
        "}",
        "é",
        "\"",
        "\\",
        "text",
    ]);
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

/// Whether a value holds what would end it early in every reading.
fn ends_itself(value: &str) -> bool {
    let compact: String = value.split_whitespace().collect();
    let tags = ["<parameter=", "</function>", "</tool_call>", "<tool_call>"];
    tags.iter().any(|tag| compact.contains(&format!("</parameter>{tag}")))
        || compact.contains("</function></tool_call>")
}

#[test]
fn white_space_behind_a_call_is_dropped_whichever_piece_brings_it() {
    let text = "<function=f></tool_call>\nnull";
    let whole = parse(text, usize::MAX, Ending::Stopped);
    assert_eq!(whole.last(), Some(&ToolEvent::Content("null".into())));
    assert_eq!(parse(text, 1, Ending::Stopped), whole);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_joined_events_do_not_depend_on_the_cuts(text in fragments(), cut in 1usize..9, stopped in any::<bool>()) {
        let ending = if stopped { Ending::Stopped } else { Ending::Cut };
        let whole = parse(&text, usize::MAX, ending);
        prop_assert_eq!(parse(&text, cut, ending), whole.clone());
        // A complete call's arguments are an object; text without a call is unchanged.
        let mut ended = whole.iter().filter(|e| matches!(e, ToolEvent::CallEnd { .. })).count();
        for index in 0..ended {
            let pieces = whole.iter().filter_map(|e| match e {
                ToolEvent::Arguments { index: i, json } if *i == index => Some(json.as_str()),
                _ => None,
            });
            let json: String = pieces.collect();
            prop_assert!(serde_json::from_str::<Map<String, Json>>(&json).is_ok(), "{}", json);
        }
        ended += whole.iter().filter(|e| matches!(e, ToolEvent::CallCut { .. })).count();
        if ended == 0 {
            let expected = if text.is_empty() { vec![] } else { vec![ToolEvent::Content(text)] };
            prop_assert_eq!(whole, expected);
        }
    }

    #[test]
    fn what_the_template_prints_is_read_back(values in prop::collection::vec(fragments(), 1..4), n in any::<i64>()) {
        prop_assume!(!values.iter().any(|value| ends_itself(value)));
        let calls: Vec<Json> = values.iter().map(|v| json!({"zip": v, "n": n, "obj": {"k": [v, null, true]}})).collect();
        let history: Vec<Json> = calls.iter().map(|c| json!({"function": {"name": "f", "arguments": c.to_string()}})).collect();
        let assistant = Message { tool_calls: serde_json::from_value(json!(history)).unwrap(), ..Message::new("assistant", "Hm.") };
        let messages = [Message::new("user", "q"), assistant];
        for template in templates() {
            let kwargs = Map::new();
            let conversation = Conversation { messages: &messages, tools: &[], kwargs: &kwargs, add_generation_prompt: false };
            let text = template.render(&conversation).unwrap().text().to_owned();
            let answer = text.split("</think>\n\n").nth(1).unwrap().strip_suffix("<|im_end|>\n").unwrap().to_owned();
            let events = parse(&answer, 3, Ending::Stopped);
            let read: Vec<Json> = events.iter().filter_map(|e| match e {
                ToolEvent::Arguments { json, .. } => Some(serde_json::from_str(json).unwrap()),
                _ => None,
            }).collect();
            prop_assert_eq!(&read, &calls);
            prop_assert_eq!(&events[0], &ToolEvent::Content("Hm.".to_owned()));
        }
    }
}
