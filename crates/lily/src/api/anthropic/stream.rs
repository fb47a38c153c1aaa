//! A message as Anthropic's stream of events: blocks of thinking, text and tool use, each opened, filled and closed.

use serde_json::{Value, json};

use super::{Head, error_value, stop_reason, usage};
use crate::api::answer::Piece;
use crate::api::choices::{Choices, Update};
use crate::api::identity;
use crate::api::log::Summary;
use crate::api::sse::{EventWriter, Gone};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

/// Which block is open, and how many there have been.
struct Blocks {
    writer: EventWriter,
    open: Option<Block>,
    count: usize,
}

impl Blocks {
    async fn event(&self, name: &str, mut value: Value) -> Result<(), Gone> {
        value["type"] = name.into();
        self.writer.event(name, &value).await
    }

    async fn close(&mut self) -> Result<(), Gone> {
        if let Some(block) = self.open.take() {
            let index = self.count - 1;
            if block == Block::Thinking {
                let delta = json!({"type": "signature_delta", "signature": ""});
                self.event("content_block_delta", json!({"index": index, "delta": delta})).await?;
            }
            self.event("content_block_stop", json!({"index": index})).await?;
        }
        Ok(())
    }

    async fn start(&mut self, block: Block, value: Value) -> Result<(), Gone> {
        self.close().await?;
        self.open = Some(block);
        self.count += 1;
        self.event("content_block_start", json!({"index": self.count - 1, "content_block": value})).await
    }

    async fn delta(&self, delta: Value) -> Result<(), Gone> {
        self.event("content_block_delta", json!({"index": self.count.saturating_sub(1), "delta": delta})).await
    }

    async fn piece(&mut self, piece: Piece) -> Result<(), Gone> {
        match piece {
            Piece::Reasoning(text) => {
                if self.open != Some(Block::Thinking) {
                    let value = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.start(Block::Thinking, value).await?;
                }
                self.delta(json!({"type": "thinking_delta", "thinking": text})).await
            }
            Piece::Content(text) => {
                if self.open != Some(Block::Text) {
                    self.start(Block::Text, json!({"type": "text", "text": ""})).await?;
                }
                self.delta(json!({"type": "text_delta", "text": text})).await
            }
            Piece::CallStart { name } => {
                let id = identity::unique("toolu_");
                let value = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.start(Block::ToolUse, value).await
            }
            Piece::Arguments(text) => self.delta(json!({"type": "input_json_delta", "partial_json": text})).await,
            Piece::CallEnd => self.close().await,
        }
    }
}

/// Writes the stream.
pub(super) async fn write(writer: EventWriter, head: Head, mut choices: Choices) -> Result<(), Gone> {
    let mut blocks = Blocks { writer, open: None, count: 0 };
    let message = json!({
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": {"input_tokens": choices.prompt_tokens, "output_tokens": 0},
    });
    blocks.event("message_start", json!({"message": message})).await?;
    loop {
        let update = tokio::select! {
            biased;
            () = blocks.writer.closed() => return Err(Gone),
            update = choices.next() => update,
            () = blocks.writer.silence() => {
                blocks.event("ping", json!({})).await?;
                continue;
            }
        };
        match update.map(|(_, update)| update) {
            None => return Ok(()),
            Some(Update::Queued { .. } | Update::Progress { .. }) => blocks.event("ping", json!({})).await?,
            Some(Update::Pieces(pieces, _)) => {
                for piece in pieces {
                    blocks.piece(piece).await?;
                }
            }
            Some(Update::Finished(finish)) => {
                blocks.close().await?;
                let (reason, sequence) = stop_reason(&finish.reason);
                let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
                blocks.event("message_delta", json!({"delta": delta, "usage": usage(&finish)})).await?;
                blocks.event("message_stop", json!({})).await?;
                blocks.writer.ended(Summary::of(std::iter::once(&finish)));
            }
            Some(Update::Failed(error)) => {
                blocks.writer.failed(&error);
                return blocks.writer.event("error", &error_value(&error)).await;
            }
        }
    }
}
