//! Ids against those of the Python package `tokenizers` (`expected_ids.json`, written with version 0.23).

use serde::Deserialize;

use super::super::Tokenizer;
use super::{mini, qwen36};

#[derive(Deserialize)]
struct Expected {
    text: String,
    qwen36: Vec<u32>,
    mini: Vec<u32>,
}

#[test]
fn ids_equal_those_of_the_reference_tokenizer() {
    let expected: Vec<Expected> = serde_json::from_str(include_str!("expected_ids.json")).unwrap();
    assert!(expected.len() > 30);
    for case in &expected {
        assert_eq!(qwen36().encode_markup(&case.text).unwrap(), case.qwen36, "{:?}", case.text);
        assert_eq!(mini().encode_markup(&case.text).unwrap(), case.mini, "{:?}", case.text);
    }
}

#[test]
fn every_id_has_the_bytes_it_stands_for() {
    let check = |tokenizer: &Tokenizer, size: usize| {
        assert_eq!(tokenizer.vocab_size(), size);
        assert!((0..size as u32).all(|id| tokenizer.token_bytes(id).is_some()));
        assert_eq!(tokenizer.token_bytes(size as u32), None);
        for text in ["Tell me a story.\n\n  fox 🦊 日本", "<think>x</think><|im_end|>"] {
            assert_eq!(tokenizer.decode(&tokenizer.encode_markup(text).unwrap()), text);
            assert_eq!(tokenizer.decode(&tokenizer.encode_text(text).unwrap()), text);
        }
    };
    check(mini(), 8192);
    check(qwen36(), 248_077);
    assert_eq!(qwen36().token_bytes(248_319), None);
    assert_eq!(qwen36().token_id("<|im_end|>"), Some(248_046));
    assert!(qwen36().is_special(248_046) && qwen36().is_control(248_068) && !qwen36().is_special(248_068));
    assert!(!qwen36().is_control(1000) && !qwen36().is_control(u32::MAX));
}

#[test]
fn what_is_no_byte_level_bpe_is_refused() {
    let refuse = |json: &str| Tokenizer::from_bytes(json.as_bytes()).unwrap_err().to_string();
    assert!(refuse("{").contains("does not parse"));
    let text = std::fs::read_to_string(super::repository().join("assets/mini/tokenizer.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["added_tokens"][0]["lstrip"] = true.into();
    assert!(refuse(&json.to_string()).contains("<|endoftext|>"));
    json["added_tokens"][0]["lstrip"] = false.into();
    let json = json;
    let changed = |path: &str, value: serde_json::Value| {
        let mut json = json.clone();
        *json.pointer_mut(path).unwrap() = value;
        refuse(&json.to_string())
    };
    assert!(changed("/pre_tokenizer", serde_json::Value::Null).contains("pre_tokenizer"));
    assert!(changed("/model/type", "Unigram".into()).contains("model.type"));
    assert!(changed("/model/continuing_subword_prefix", "é".into()).contains("continuing_subword_prefix"));
    assert!(changed("/model/vocab/a", u32::MAX.into()).contains("4294967295"));
    assert!(changed("/model/vocab/a", (-1).into()).contains("does not parse"));
    assert!(changed("/model/merges/0", serde_json::json!(["nowhere", "a"])).contains("nowhere"));
    assert!(changed("/model/merges/0", serde_json::json!(["a", "b", "c"])).contains("two tokens"));
    assert!(changed("/model/vocab", serde_json::json!({})).contains("byte 0"));
    // An added token that the merges can also make could be typed by a user.
    let mut typed = json["added_tokens"][0].clone();
    typed["content"] = "the".into();
    typed["id"] = json["model"]["vocab"]["the"].clone();
    assert!(changed("/added_tokens/0", typed).contains("model.merges"));
}
