//! Tests of the way in: template, marks and tokenizer together, on the miniature's and on Qwen3.6's files.

mod golden;
mod injection;
mod parity;
mod tool_calls;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{ChatTemplate, Tokenizer, qwen36_tokenizer_json};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn mini() -> &'static Tokenizer {
    static LOADED: OnceLock<Tokenizer> = OnceLock::new();
    LOADED.get_or_init(|| Tokenizer::from_file(&repository().join("assets/mini/tokenizer.json")).unwrap())
}

fn qwen36() -> &'static Tokenizer {
    static LOADED: OnceLock<Tokenizer> = OnceLock::new();
    LOADED.get_or_init(|| Tokenizer::from_bytes(&qwen36_tokenizer_json().unwrap()).unwrap())
}

/// The miniature's template, and the published one where this machine has it.
fn templates() -> &'static [ChatTemplate] {
    static LOADED: OnceLock<Vec<ChatTemplate>> = OnceLock::new();
    LOADED.get_or_init(|| {
        let published = repository().join("../shared/qwen36");
        let published = published.join("chat_template.jinja").exists().then_some(published);
        let directories = std::iter::once(repository().join("assets/mini")).chain(published);
        directories.map(|dir| ChatTemplate::load(&dir, qwen36().control_leads()).unwrap()).collect()
    })
}
