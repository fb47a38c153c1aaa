//! A model ready to answer: checkpoint, device, engine, tokenizer and template put together.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use lily_cpu::Precision;
use lily_engine::{Engine, EngineConfig, EngineParts, GenerationDefaults, SamplingParams};
use lily_model::checkpoint::Checkpoint;
use lily_model::graph::Plan;
use lily_model::text::{ChatTemplate, Tokenizer};

use crate::cli::ModelOptions;
use crate::device::{self, Demand};
use crate::source::Source;

/// How requests share the model.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// Requests that run at once.
    pub parallel: usize,
    /// Requests that may wait beyond those.
    pub max_waiting: usize,
    /// Bytes for keys and values of running requests.
    pub kv_bytes: Option<u64>,
    /// Bytes for the prefix cache.
    pub cache_bytes: u64,
    /// Where the prefix cache is kept across restarts.
    pub cache_dir: Option<PathBuf>,
    /// Bytes that may take.
    pub cache_dir_bytes: u64,
    /// How long a running request may wait for the reading of another's prompt.
    pub max_stall: Duration,
}

impl Sharing {
    /// One request, nothing kept.
    pub fn single() -> Self {
        let engine = EngineConfig::default();
        Sharing {
            parallel: 1,
            max_waiting: 0,
            kv_bytes: None,
            cache_bytes: 0,
            cache_dir: None,
            cache_dir_bytes: 0,
            max_stall: engine.max_stall,
        }
    }
}

/// A model ready to answer.
pub struct LoadedModel {
    /// Its name.
    pub name: String,
    /// Runs requests.
    pub engine: Arc<Engine>,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversations to text.
    pub template: ChatTemplate,
}

impl LoadedModel {
    /// Opens a checkpoint and makes everything that is needed to answer. Takes seconds for a large one.
    pub fn load(source: &Source, options: &ModelOptions, sharing: &Sharing) -> anyhow::Result<Self> {
        let checkpoint = Arc::new(source.open()?);
        let text = |name: &str| checkpoint.text_file(name);
        let tokenizer = text("tokenizer.json").context("the checkpoint has no tokenizer.json")?;
        let tokenizer = Arc::new(Tokenizer::from_bytes(tokenizer).context("tokenizer.json")?);
        let template = ChatTemplate::new(template_text(&checkpoint)?, tokenizer.control_leads())?;
        let max_seq = device::max_seq(&checkpoint, options)?;
        let page = device::page_bytes(&checkpoint);
        if let Some(bytes) = sharing.kv_bytes.filter(|bytes| *bytes < page) {
            bail!("--kv-memory is {bytes} bytes (accepted: at least {page}, a page of {} tokens)", Plan::PAGE_TOKENS);
        }
        let demand = Demand {
            parallel: sharing.parallel,
            prefill_rows: device::prefill_rows(options.device, Precision::Fast),
            kv_bytes: sharing.kv_bytes,
            cache_bytes: sharing.cache_bytes,
        };
        let capacity = device::capacity(&checkpoint, max_seq, demand);
        let device = device::open(Arc::clone(&checkpoint), options, Precision::Fast, capacity)?;
        let config = &checkpoint.model().config;
        let parts = EngineParts {
            device,
            tokenizer: Arc::clone(&tokenizer),
            defaults: defaults(&checkpoint),
            vocab_size: config.vocab_size,
            slot_bytes: config.recurrent_state_bytes() as u64,
            page_bytes: page,
            fingerprint: format!("{:032x}", checkpoint.fingerprint()),
        };
        let engine = Engine::new(
            parts,
            EngineConfig {
                parallel: sharing.parallel,
                max_waiting: sharing.max_waiting,
                cache_bytes: sharing.cache_bytes,
                cache_dir: sharing.cache_dir.clone(),
                cache_dir_bytes: sharing.cache_dir_bytes,
                max_stall: sharing.max_stall,
            },
        )?;
        Ok(LoadedModel { name: source.name(), engine: Arc::new(engine), tokenizer, template })
    }
}

/// End ids and sampling of generation_config.json, which the checkpoint has checked.
fn defaults(checkpoint: &Checkpoint) -> GenerationDefaults {
    let g = checkpoint.generation_config();
    GenerationDefaults {
        eos_token_ids: g.eos_token_ids.clone(),
        sampling: SamplingParams {
            temperature: g.temperature,
            top_k: g.top_k,
            top_p: g.top_p,
            min_p: g.min_p,
            repetition_penalty: g.repetition_penalty,
            presence_penalty: g.presence_penalty,
            frequency_penalty: g.frequency_penalty,
            ..SamplingParams::default()
        },
    }
}

/// chat_template.jinja, or the template inside tokenizer_config.json (a text, or the entry `default` of a list).
fn template_text(checkpoint: &Checkpoint) -> anyhow::Result<String> {
    if let Some(bytes) = checkpoint.text_file("chat_template.jinja") {
        return String::from_utf8(bytes.to_vec()).context("chat_template.jinja is not UTF-8");
    }
    let missing = "the checkpoint has neither chat_template.jinja nor a chat_template in tokenizer_config.json";
    let bytes = checkpoint.text_file("tokenizer_config.json").context(missing)?;
    let config: serde_json::Value = serde_json::from_slice(bytes).context("tokenizer_config.json")?;
    let named = |list: &Vec<serde_json::Value>| {
        list.iter().find(|t| t["name"] == "default").and_then(|t| t["template"].as_str()).map(str::to_owned)
    };
    let found = match &config["chat_template"] {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Array(list) => named(list),
        _ => None,
    };
    match found {
        Some(text) => Ok(text),
        None => bail!(missing),
    }
}
