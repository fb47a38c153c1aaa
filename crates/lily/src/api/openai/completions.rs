//! POST /v1/completions: raw text (or token ids) in, text out. Control strings in a prompt are control tokens here, since
//! whoever calls this endpoint writes the markup himself.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::chat::{finish_reason, usage};
use super::logprobs;
use super::options::{self, StreamUsage};
use super::stream::{Head, next};
use crate::api::answer::Piece;
use crate::api::ask::{Ask, Prompt};
use crate::api::body;
use crate::api::choices::{Choices, Finish, Update, total_usage};
use crate::api::connection::Peer;
use crate::api::error::ApiError;
use crate::api::fields::Fields;
use crate::api::identity;
use crate::api::log::Summary;
use crate::api::sse::{self, EventWriter, Gone};
use crate::api::state::{App, Serving};

/// Most prompts of a request.
const MAX_PROMPTS: usize = 64;

/// What a request says besides its prompts.
struct Plan {
    asks: Vec<Ask>,
    /// Text before each choice's own.
    echo: Vec<String>,
    stream: Option<StreamUsage>,
}

/// POST /v1/completions.
pub async fn completions(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, ApiError> {
    let serving = Arc::clone(app.serving()?);
    let (value, turn) = body::json(request, &app).await?;
    let Plan { asks, echo, stream } = parse(value, &serving)?;
    let mut all: Option<Choices> = None;
    let mut prompt_tokens = 0;
    for ask in asks {
        let choices = ask.start(&serving).await?;
        prompt_tokens += choices.prompt_tokens;
        match &mut all {
            None => all = Some(choices),
            Some(all) => all.extend(choices),
        }
    }
    let choices = all.ok_or_else(|| ApiError::missing("prompt", "a text"))?;
    drop(turn);
    let head = Head { id: identity::unique("cmpl-"), created: identity::now(), model: serving.name.clone() };
    let work = Work { head, echo, prompt_tokens };
    match stream {
        Some(wanted) => Ok(sse::respond(peer, move |writer| work.write(writer, choices, wanted))),
        None => work.respond(choices).await,
    }
}

fn parse(value: Value, serving: &Serving) -> Result<Plan, ApiError> {
    let mut fields = Fields::top(value)?;
    let prompts = prompts(fields.take("prompt"))?;
    let sampling = options::sampling(&mut fields, serving)?;
    let mut first = Ask::new(Prompt::Text(String::new()), sampling);
    // OpenAI's default for this endpoint.
    first.max_tokens = Some(16);
    options::limits(&mut fields, &mut first)?;
    first.format = options::format(&mut fields)?;
    first.logprobs = fields.whole("logprobs", 0..=20)?.map(|n| n as usize);
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && first.logprobs.is_some() {
        return Err(ApiError::invalid("echo", "`echo` with `logprobs` is not supported"));
    }
    if let Some(best) = fields.whole("best_of", 1..=16)?
        && best as usize != first.n
    {
        return Err(ApiError::value("best_of", &best.into(), "the same as n"));
    }
    if fields.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unknown("suffix"));
    }
    let stream = options::streaming(&mut fields)?;
    fields.ignore(&options::HARMLESS);
    fields.finish()?;
    let mut plan = Plan { asks: Vec::new(), echo: Vec::new(), stream };
    let (several, places) = (prompts.len() > 1, serving.engine.places());
    if several && prompts.len() * first.n > places {
        let asked = format!("{} prompts, {} answers to each", prompts.len(), first.n);
        let message =
            format!("`prompt` has {asked} (accepted: {places} answers in all, which may run and wait at once)");
        return Err(ApiError::invalid("prompt", message));
    }
    for (index, prompt) in prompts.into_iter().enumerate() {
        let text = match (&prompt, echo) {
            (_, false) => String::new(),
            (Prompt::Text(text), true) => text.clone(),
            (Prompt::Tokens(ids), true) => serving.tokenizer.decode(ids),
            (Prompt::Chat(_), true) => String::new(),
        };
        plan.echo.extend(std::iter::repeat_n(text, first.n));
        let prompt_field = if several { format!("prompt[{index}]") } else { "prompt".into() };
        plan.asks.push(Ask { prompt, prompt_field, ..first.clone() });
    }
    Ok(plan)
}

fn prompts(value: Option<Value>) -> Result<Vec<Prompt>, ApiError> {
    let accepted = "a text, a list of token ids, or a list of at most 64 of either";
    let value = value.ok_or_else(|| ApiError::missing("prompt", accepted))?;
    let is_ids = |list: &[Value]| list.first().is_some_and(Value::is_number);
    let prompts = match value {
        Value::Array(list) if !is_ids(&list) => list
            .into_iter()
            .enumerate()
            .map(|(index, value)| prompt(format!("prompt[{index}]"), value))
            .collect::<Result<Vec<_>, _>>()?,
        one => vec![prompt("prompt".into(), one)?],
    };
    if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
        let message = format!("`prompt` has {} entries (accepted: {accepted})", prompts.len());
        return Err(ApiError::invalid("prompt", message));
    }
    Ok(prompts)
}

fn prompt(path: String, value: Value) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) if text.is_empty() => {
            Err(ApiError::invalid(&*path, format!("`{path}` is empty (accepted: at least one token)")))
        }
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) if !ids.is_empty() => ids
            .iter()
            .enumerate()
            .map(|(index, id)| {
                let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
                number.ok_or_else(|| ApiError::value(&format!("{path}[{index}]"), id, "a token id"))
            })
            .collect::<Result<_, _>>()
            .map(Prompt::Tokens),
        other => Err(ApiError::value(&path, &other, "a text or a list of token ids")),
    }
}

/// A request under way.
struct Work {
    head: Head,
    echo: Vec<String>,
    prompt_tokens: usize,
}

impl Work {
    fn value(&self, choices: Value) -> Value {
        json!({
            "id": self.head.id,
            "object": "text_completion",
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        })
    }

    fn usage<'a>(&self, finishes: impl Iterator<Item = &'a Finish>) -> Value {
        let mut total = total_usage(finishes);
        total.prompt = self.prompt_tokens;
        usage(&total)
    }

    async fn respond(self, choices: Choices) -> Result<Response, ApiError> {
        let wholes = choices.collect().await?;
        let list: Vec<Value> = wholes
            .iter()
            .enumerate()
            .map(|(index, (whole, finish))| {
                json!({
                    "index": index,
                    "text": format!("{}{}", self.echo[index], whole.content),
                    "logprobs": logprobs::completion(&whole.tokens, &mut 0),
                    "finish_reason": finish_reason(&finish.reason),
                })
            })
            .collect();
        let mut value = self.value(list.into());
        value["usage"] = self.usage(wholes.iter().map(|(_, finish)| finish));
        let summary = Summary::of(wholes.iter().map(|(_, finish)| finish));
        Ok((Extension(summary), Json(value)).into_response())
    }

    async fn write(self, writer: EventWriter, mut choices: Choices, wanted: StreamUsage) -> Result<(), Gone> {
        let chunk = |index: usize, text: &str, logprobs: Value, finish: Option<&str>| {
            let choice = json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish});
            self.value(json!([choice]))
        };
        for (index, text) in self.echo.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            writer.data(&chunk(index, text, Value::Null, None)).await?;
        }
        let mut offsets = vec![0; choices.len()];
        let mut finishes: Vec<Finish> = Vec::new();
        while let Some((index, update)) = next(&writer, &mut choices).await? {
            match update {
                Update::Queued { .. } | Update::Progress { .. } => {}
                Update::Pieces(pieces, token) => {
                    let text: String = pieces
                        .into_iter()
                        .filter_map(|piece| if let Piece::Content(text) = piece { Some(text) } else { None })
                        .collect();
                    let logprobs = logprobs::completion(token.as_slice(), &mut offsets[index]);
                    if !text.is_empty() || !logprobs.is_null() {
                        writer.data(&chunk(index, &text, logprobs, None)).await?;
                    }
                }
                Update::Finished(finish) => {
                    let reason = Some(finish_reason(&finish.reason));
                    writer.data(&chunk(index, "", Value::Null, reason)).await?;
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
            let mut value = self.value(json!([]));
            value["usage"] = self.usage(finishes.iter());
            writer.data(&value).await?;
        }
        writer.ended(Summary::of(finishes.iter()));
        writer.done().await
    }
}
