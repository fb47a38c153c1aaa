//! How long Qwen3.6's tokenizer takes to load, to encode a text file as a user's message, and to encode it again as the
//! history of a later turn. `cargo run --release -p lily-model --example text_speed -- FILE`

use std::time::Instant;

use lily_model::text::{Tokenizer, qwen36_tokenizer_json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: text_speed FILE")?;
    let text = std::fs::read_to_string(path)?;
    let json = qwen36_tokenizer_json()?;
    let started = Instant::now();
    let tokenizer = Tokenizer::from_bytes(&json)?;
    println!("load {:.2} s", started.elapsed().as_secs_f64());
    let message = format!("<|im_start|>user\n{text}<|im_end|>\n");
    for turn in ["first", "later"] {
        let started = Instant::now();
        let ids = tokenizer.encode_markup(&message)?;
        let milliseconds = started.elapsed().as_secs_f64() * 1e3;
        println!("{turn} turn: {} bytes, {} ids in {milliseconds:.2} ms", message.len(), ids.len());
    }
    Ok(())
}
