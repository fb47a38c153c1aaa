//! A response as OpenAI's stream of typed events: items of thinking, text and calls, each added, filled and done.

use serde_json::{Value, json};

use super::{Head, Item, status, text_part};
use crate::api::answer::Piece;
use crate::api::choices::{Choices, Finish, Update};
use crate::api::identity;
use crate::api::log::Summary;
use crate::api::openai::next;
use crate::api::sse::{EventWriter, Gone};

/// The stream's state: events are numbered, one item is open at a time.
struct Items {
    writer: EventWriter,
    sequence: u64,
    open: Option<(Item, String)>,
    done: Vec<Value>,
}

impl Items {
    async fn event(&mut self, name: &str, mut value: Value) -> Result<(), Gone> {
        value["type"] = name.into();
        value["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        self.writer.event(name, &value).await
    }

    /// Place of the open item.
    fn index(&self) -> usize {
        self.done.len()
    }

    async fn open(&mut self, item: Item) -> Result<(), Gone> {
        self.close("completed").await?;
        let id = item.id();
        let value = item.value(&id, "in_progress");
        let index = self.index();
        self.event("response.output_item.added", json!({"output_index": index, "item": value})).await?;
        let part = match item {
            Item::Message(_) => Some(text_part("")),
            Item::Reasoning(_) => Some(json!({"type": "reasoning_text", "text": ""})),
            Item::Call { .. } => None,
        };
        if let Some(part) = part {
            let value = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
            self.event("response.content_part.added", value).await?;
        }
        self.open = Some((item, id));
        Ok(())
    }

    async fn close(&mut self, status: &str) -> Result<(), Gone> {
        let Some((item, id)) = self.open.take() else { return Ok(()) };
        let index = self.index();
        let place = |extra: Value| {
            let mut value = json!({"item_id": id, "output_index": index});
            if let (Some(map), Value::Object(extra)) = (value.as_object_mut(), extra) {
                map.extend(extra);
            }
            value
        };
        match &item {
            Item::Message(text) => {
                let value = place(json!({"content_index": 0, "text": text, "logprobs": []}));
                self.event("response.output_text.done", value).await?;
                let value = place(json!({"content_index": 0, "part": text_part(text)}));
                self.event("response.content_part.done", value).await?;
            }
            Item::Reasoning(text) => {
                self.event("response.reasoning_text.done", place(json!({"content_index": 0, "text": text}))).await?;
                let part = json!({"type": "reasoning_text", "text": text});
                self.event("response.content_part.done", place(json!({"content_index": 0, "part": part}))).await?;
            }
            Item::Call { name, arguments, .. } => {
                let value = place(json!({"name": name, "arguments": arguments}));
                self.event("response.function_call_arguments.done", value).await?;
            }
        }
        let value = item.value(&id, status);
        self.event("response.output_item.done", json!({"output_index": index, "item": value})).await?;
        self.done.push(value);
        Ok(())
    }

    async fn piece(&mut self, piece: Piece) -> Result<(), Gone> {
        match piece {
            Piece::Reasoning(text) => {
                if !matches!(self.open, Some((Item::Reasoning(_), _))) {
                    self.open(Item::Reasoning(String::new())).await?;
                }
                self.add("response.reasoning_text.delta", &text).await
            }
            Piece::Content(text) => {
                if !matches!(self.open, Some((Item::Message(_), _))) {
                    self.open(Item::Message(String::new())).await?;
                }
                self.add("response.output_text.delta", &text).await
            }
            Piece::CallStart { name } => {
                let call_id = identity::unique("call_");
                self.open(Item::Call { call_id, name, arguments: String::new() }).await
            }
            Piece::Arguments(text) => self.add("response.function_call_arguments.delta", &text).await,
            Piece::CallEnd => self.close("completed").await,
        }
    }

    /// Adds text to the open item.
    async fn add(&mut self, event: &str, text: &str) -> Result<(), Gone> {
        let index = self.index();
        let Some((item, id)) = &mut self.open else { return Ok(()) };
        let mut value = json!({"item_id": id, "output_index": index, "delta": text});
        match item {
            Item::Message(all) => {
                all.push_str(text);
                value["content_index"] = 0.into();
                value["logprobs"] = json!([]);
            }
            Item::Reasoning(all) => {
                all.push_str(text);
                value["content_index"] = 0.into();
            }
            Item::Call { arguments, .. } => arguments.push_str(text),
        }
        self.event(event, value).await
    }

    async fn finish(&mut self, head: &Head, finish: &Finish) -> Result<(), Gone> {
        self.close(status(&finish.reason)).await?;
        if self.done.is_empty() {
            self.open(Item::Message(String::new())).await?;
            self.close(status(&finish.reason)).await?;
        }
        let response = head.finished(std::mem::take(&mut self.done), finish);
        let name = match status(&finish.reason) {
            "incomplete" => "response.incomplete",
            _ => "response.completed",
        };
        self.event(name, json!({"response": response})).await
    }
}

/// Writes the stream.
pub(super) async fn write(writer: EventWriter, head: Head, mut choices: Choices) -> Result<(), Gone> {
    let mut items = Items { writer, sequence: 0, open: None, done: Vec::new() };
    for name in ["response.created", "response.in_progress"] {
        let response = head.response("in_progress", json!([]));
        items.event(name, json!({"response": response})).await?;
    }
    while let Some((_, update)) = next(&items.writer, &mut choices).await? {
        match update {
            Update::Queued { .. } | Update::Progress { .. } => {}
            Update::Pieces(pieces, _) => {
                for piece in pieces {
                    items.piece(piece).await?;
                }
            }
            Update::Finished(finish) => {
                items.finish(&head, &finish).await?;
                items.writer.ended(Summary::of(std::iter::once(&finish)));
            }
            Update::Failed(error) => {
                items.writer.failed(&error);
                let mut response = head.response("failed", json!([]));
                response["error"] = json!({"code": error.code, "message": error.message});
                return items.event("response.failed", json!({"response": response})).await;
            }
        }
    }
    Ok(())
}
