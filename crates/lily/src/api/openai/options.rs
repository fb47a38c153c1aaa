//! Fields that OpenAI's endpoints share: sampling, limits, output format, streaming.

use std::time::Duration;

use lily_engine::constraint::ConstraintSpec;
use lily_engine::{EosRule, Request, SamplingParams};
use serde_json::Value;

use crate::api::ask::Ask;
use crate::api::error::ApiError;
use crate::api::fields::Fields;
use crate::api::state::Serving;

/// Fields without an effect on the answer, ignored: bookkeeping of OpenAI's service, and what Lily does anyway.
pub const HARMLESS: [&str; 8] = [
    "model",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// Whether usage ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamUsage {
    /// Not.
    Omit,
    /// In a chunk of its own.
    Include,
}

/// Takes the fields that say how tokens are chosen; the checkpoint's defaults hold for the rest.
pub fn sampling(fields: &mut Fields, serving: &Serving) -> Result<SamplingParams, ApiError> {
    let mut sampling = serving.engine.defaults().sampling.clone();
    let set = |target: &mut f32, value: Option<f32>| {
        if let Some(value) = value {
            *target = value;
        }
    };
    set(&mut sampling.temperature, fields.number("temperature", 0.0..=2.0)?);
    set(&mut sampling.top_p, fields.number("top_p", 0.0..=1.0)?);
    set(&mut sampling.min_p, fields.number("min_p", 0.0..=1.0)?);
    set(&mut sampling.presence_penalty, fields.number("presence_penalty", -2.0..=2.0)?);
    set(&mut sampling.frequency_penalty, fields.number("frequency_penalty", -2.0..=2.0)?);
    set(&mut sampling.repetition_penalty, fields.number("repetition_penalty", 0.01..=10.0)?);
    if let Some(k) = fields.whole("top_k", 0..=1_000_000)? {
        sampling.top_k = k as usize;
    }
    if let Some(seed) = fields.whole("seed", 0..=u64::MAX)? {
        sampling.seed = Some(seed);
    }
    if let Some(bias) = fields.take("logit_bias") {
        sampling.logit_bias = logit_bias(fields, bias, serving)?;
    }
    Ok(sampling)
}

fn logit_bias(fields: &Fields, value: Value, serving: &Serving) -> Result<Vec<(u32, f32)>, ApiError> {
    let map = Fields::of(fields.path("logit_bias"), value)?;
    let path = map.own_path().to_owned();
    let vocab = serving.engine.limits().vocab_size;
    map.into_rest()
        .into_iter()
        .map(|(key, value)| {
            let path = format!("{path}.{key}");
            let id = key.parse::<u32>().ok().filter(|id| (*id as usize) < vocab).ok_or_else(|| {
                ApiError::invalid(&*path, format!("`{path}`: {key:?} is no token id (accepted: 0 to {})", vocab - 1))
            })?;
            match value.as_f64() {
                Some(bias) if (-100.0..=100.0).contains(&bias) => Ok((id, bias as f32)),
                _ => Err(ApiError::value(&path, &value, "a number from -100 to 100")),
            }
        })
        .collect()
}

/// Takes `timeout`: seconds a request may take, waiting included.
pub fn timeout(fields: &mut Fields) -> Result<Option<Duration>, ApiError> {
    let seconds = fields.number("timeout", 0.001..=86_400.0)?;
    Ok(seconds.map(Duration::from_secs_f32))
}

/// Takes the fields that say when the answer ends.
pub fn limits(fields: &mut Fields, ask: &mut Ask) -> Result<(), ApiError> {
    const MOST: u64 = 1 << 31;
    let old = fields.whole("max_tokens", 1..=MOST)?;
    let new = fields.whole("max_completion_tokens", 1..=MOST)?;
    let field = if new.is_some() { "max_completion_tokens" } else { "max_tokens" };
    ask.max_tokens = new.or(old).map(|n| n as usize).or(ask.max_tokens);
    if let Some(least) = fields.whole("min_tokens", 0..=MOST)? {
        ask.min_tokens = least as usize;
        if let Some(most) = ask.max_tokens.filter(|most| *most < ask.min_tokens) {
            return Err(ApiError::value(
                &fields.path("min_tokens"),
                &least.into(),
                &format!("at most {field}, {most}"),
            ));
        }
    }
    if fields.flag("ignore_eos")? == Some(true) {
        ask.eos = EosRule::Ignore;
    }
    if let Some(n) = fields.whole("n", 1..=16)? {
        ask.n = n as usize;
    }
    ask.stop = stop(fields, "stop")?;
    ask.timeout = timeout(fields)?;
    Ok(())
}

/// Takes stop strings: one, or a list.
pub fn stop(fields: &mut Fields, name: &str) -> Result<Vec<String>, ApiError> {
    let path = fields.path(name);
    let accepted = "a text, or a list of at most 16 texts, none empty";
    let strings = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(list)) => list
            .into_iter()
            .enumerate()
            .map(|(index, value)| match value {
                Value::String(text) => Ok(text),
                other => Err(ApiError::value(&format!("{path}[{index}]"), &other, "a text that is not empty")),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(ApiError::value(&path, &other, accepted)),
    };
    if strings.len() > Request::MAX_STOP_STRINGS {
        return Err(ApiError::invalid(
            &*path,
            format!("`{path}` has {} entries (accepted: {accepted})", strings.len()),
        ));
    }
    if strings.iter().any(String::is_empty) {
        return Err(ApiError::invalid(&*path, format!("`{path}` has an empty text (accepted: {accepted})")));
    }
    Ok(strings)
}

/// Takes `stream` and `stream_options`: `None` for one JSON response.
pub fn streaming(fields: &mut Fields) -> Result<Option<StreamUsage>, ApiError> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let mut usage = StreamUsage::Omit;
    if let Some(mut options) = fields.object("stream_options")? {
        if options.flag("include_usage")? == Some(true) {
            usage = StreamUsage::Include;
        }
        options.ignore(&["include_obfuscation", "continuous_usage_stats"]);
        options.finish()?;
        if !stream {
            return Err(ApiError::invalid("stream_options", "`stream_options` is accepted only with `stream`: true"));
        }
    }
    Ok(stream.then_some(usage))
}

/// Takes `response_format`, `grammar` and `regex`: at most one may restrict the answer.
pub fn format(fields: &mut Fields) -> Result<Option<(ConstraintSpec, String)>, ApiError> {
    let mut found: Vec<(ConstraintSpec, String)> = Vec::new();
    if let Some(mut format) = fields.object("response_format")? {
        match format.word("type", &["text", "json_object", "json_schema"])? {
            Some("text") => {}
            Some("json_object") => found.push((ConstraintSpec::JsonObject, format.own_path().to_owned())),
            Some(_) => {
                let mut inner = format
                    .object("json_schema")?
                    .ok_or_else(|| ApiError::missing("response_format.json_schema", "an object with `schema`"))?;
                found.push(json_schema(&mut inner)?);
                inner.finish()?;
            }
            None => return Err(ApiError::missing("response_format.type", "text, json_object, json_schema")),
        }
        format.finish()?;
    }
    if let Some(grammar) = fields.text("grammar")? {
        found.push((ConstraintSpec::Lark(grammar), "grammar".into()));
    }
    if let Some(regex) = fields.text("regex")? {
        found.push((ConstraintSpec::Regex(regex), "regex".into()));
    }
    match found.len() {
        0 => Ok(None),
        1 => Ok(found.pop()),
        _ => {
            let message = format!("`{}` and `{}` exclude each other", found[0].1, found[1].1);
            Err(ApiError::invalid(found[1].1.clone(), message))
        }
    }
}

/// Takes `schema` and its companions from the object that holds a JSON schema.
pub fn json_schema(fields: &mut Fields) -> Result<(ConstraintSpec, String), ApiError> {
    fields.text("name")?;
    fields.text("description")?;
    // The schema is always enforced, so strict or not makes no difference.
    fields.flag("strict")?;
    let path = fields.path("schema");
    match fields.take("schema") {
        Some(schema @ Value::Object(_)) => Ok((ConstraintSpec::JsonSchema(schema), path)),
        Some(other) => Err(ApiError::value(&path, &other, "a JSON schema")),
        None => Err(ApiError::missing(&path, "a JSON schema")),
    }
}
