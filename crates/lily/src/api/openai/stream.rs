//! A chat completion as a stream of chunks: the role first, then thinking, text and tool calls as they come, the reason
//! for the end, the usage if asked for, `[DONE]`.

use serde_json::{Map, Value, json};

use super::chat::{finish_reason, usage};
use super::logprobs;
use super::options::StreamUsage;
use crate::api::answer::Piece;
use crate::api::choices::{Choices, Finish, Update, total_usage};
use crate::api::identity;
use crate::api::log::Summary;
use crate::api::sse::{EventWriter, Gone};

/// What every chunk repeats.
#[derive(Debug, Clone)]
pub struct Head {
    /// Id of the completion.
    pub id: String,
    /// Unix time.
    pub created: u64,
    /// Name of the model.
    pub model: String,
}

impl Head {
    fn chunk(&self, choices: Value, last: Option<Value>) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if let Some(usage) = last {
            chunk["usage"] = usage;
        }
        chunk
    }

    fn delta(&self, index: usize, delta: &Value, logprobs: Value, finish: Option<&'static str>) -> Value {
        let choice = json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish});
        self.chunk(json!([choice]), None)
    }
}

/// The next update, with comments to the client while there is none. `None` when all is done.
pub(crate) async fn next(writer: &EventWriter, choices: &mut Choices) -> Result<Option<(usize, Update)>, Gone> {
    loop {
        tokio::select! {
            biased;
            () = writer.closed() => return Err(Gone),
            update = choices.next() => {
                match update {
                    Some((_, Update::Queued { ahead })) => writer.comment(&format!("queued behind {ahead}")).await?,
                    Some((_, Update::Progress { done, total })) => {
                        writer.comment(&format!("prompt {done}/{total}")).await?;
                    }
                    other => return Ok(other),
                }
            }
            () = writer.silence() => writer.comment("keep-alive").await?,
        }
    }
}

/// Writes the stream.
pub(super) async fn write(
    writer: EventWriter,
    head: Head,
    mut choices: Choices,
    wanted: StreamUsage,
) -> Result<(), Gone> {
    for index in 0..choices.len() {
        writer.data(&head.delta(index, &json!({"role": "assistant", "content": ""}), Value::Null, None)).await?;
    }
    let mut calls = vec![0usize; choices.len()];
    let mut finishes: Vec<Finish> = Vec::new();
    while let Some((index, update)) = next(&writer, &mut choices).await? {
        match update {
            Update::Queued { .. } | Update::Progress { .. } => {}
            Update::Pieces(pieces, token) => {
                let mut logprobs = logprobs::chat(token.as_slice());
                for piece in pieces {
                    let Some(delta) = delta(piece, &mut calls[index]) else { continue };
                    writer.data(&head.delta(index, &delta, logprobs.take(), None)).await?;
                }
                if !logprobs.is_null() {
                    // The token's text is still held back; its probability is not.
                    writer.data(&head.delta(index, &json!({}), logprobs, None)).await?;
                }
            }
            Update::Finished(finish) => {
                let reason = Some(finish_reason(&finish.reason));
                writer.data(&head.delta(index, &json!({}), Value::Null, reason)).await?;
                finishes.push(finish);
            }
            Update::Failed(error) => {
                writer.failed(&error);
                writer.data(&error.body()).await?;
                return writer.done().await;
            }
        }
    }
    if wanted == StreamUsage::Include {
        let total = usage(&total_usage(finishes.iter()));
        writer.data(&head.chunk(json!([]), Some(total))).await?;
    }
    writer.ended(Summary::of(finishes.iter()));
    writer.done().await
}

/// The delta of a piece; `calls` counts the calls that have begun.
fn delta(piece: Piece, calls: &mut usize) -> Option<Value> {
    let mut delta = Map::new();
    match piece {
        Piece::Reasoning(text) => {
            delta.insert("reasoning_content".into(), text.clone().into());
            delta.insert("reasoning".into(), text.into());
        }
        Piece::Content(text) => {
            delta.insert("content".into(), text.into());
        }
        Piece::CallStart { name } => {
            let call = json!({"index": *calls, "id": identity::unique("call_"), "type": "function",
                              "function": {"name": name, "arguments": ""}});
            *calls += 1;
            delta.insert("tool_calls".into(), json!([call]));
        }
        Piece::Arguments(text) => {
            let index = calls.saturating_sub(1);
            delta.insert("tool_calls".into(), json!([{"index": index, "function": {"arguments": text}}]));
        }
        Piece::CallEnd => return None,
    }
    Some(delta.into())
}
