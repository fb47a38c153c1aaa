//! What every dialect's request comes down to, and how it becomes tokens and running generations.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lily_engine::constraint::{ConstraintSpec, TokenMask, ToolCallCount, ToolSpec};
use lily_engine::{EosRule, PrefixCacheUse, Request, SamplingParams, Thinking};
use lily_model::text::{Conversation, Message, ReasoningStart, ToolSchemas};
use serde_json::{Map, Value, json};

use super::answer::Form;
use super::choices::{Choice, ChoiceRules, Choices};
use super::error::ApiError;
use super::state::{Serving, Work};

/// A request, in no dialect.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What the model reads.
    pub prompt: Prompt,
    /// Path of the field that it came from, for errors.
    pub prompt_field: String,
    /// How tokens are chosen; choice i of several uses `seed + i`.
    pub sampling: SamplingParams,
    /// Most tokens to generate.
    pub max_tokens: Option<usize>,
    /// Fewest tokens before an end.
    pub min_tokens: usize,
    /// What an end-of-sequence id does.
    pub eos: EosRule,
    /// Strings that end the answer.
    pub stop: Vec<String>,
    /// Alternatives to report for each token.
    pub logprobs: Option<usize>,
    /// Most tokens of thinking.
    pub thinking_budget: Option<usize>,
    /// Longest time it may take, waiting included.
    pub timeout: Option<Duration>,
    /// Answers wanted.
    pub n: usize,
    /// What the answer must look like, and the field that said so.
    pub format: Option<(ConstraintSpec, String)>,
}

/// What the model reads.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// A conversation, rendered by the checkpoint's template.
    Chat(Chat),
    /// Text whose control strings are control tokens.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// A conversation.
#[derive(Debug, Clone, Default)]
pub struct Chat {
    /// Messages, in the order the template takes.
    pub messages: Vec<Message>,
    /// Tools the model may call.
    pub tools: Vec<Tool>,
    /// Whether it must.
    pub tool_choice: ToolChoice,
    /// How many calls an answer may have.
    pub parallel_calls: ParallelCalls,
    /// Further variables of the template.
    pub kwargs: Map<String, Value>,
}

/// A function the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name.
    pub name: String,
    /// For the model.
    pub description: Option<String>,
    /// JSON schema of the arguments.
    pub parameters: Value,
    /// Path of the schema in the request, for errors.
    pub path: String,
}

impl Tool {
    /// The definition as the template prints it.
    fn definition(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), self.name.clone().into());
        if let Some(text) = &self.description {
            function.insert("description".into(), text.clone().into());
        }
        function.insert("parameters".into(), self.parameters.clone());
        json!({"type": "function", "function": function})
    }
}

/// Whether tools are called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// If the model likes.
    #[default]
    Auto,
    /// Never; the model is not told of them.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// How many calls an answer may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ParallelCalls {
    /// Any number.
    #[default]
    Many,
    /// One: the answer ends with it.
    One,
}

/// A prompt as tokens.
#[derive(Debug)]
pub struct Tokenized {
    /// Ids.
    pub tokens: Vec<u32>,
    /// What is generated after them.
    pub form: Form,
    branch_points: Vec<usize>,
}

impl Chat {
    /// Tools the model is told of.
    fn offered(&self) -> &[Tool] {
        if self.tool_choice == ToolChoice::None { &[] } else { &self.tools }
    }
}

/// Most bytes of prompt text for each token of the context. Ordinary text has 3 to 6; one of very long tokens is refused although
/// it might fit, since tokenizing takes about a hundred times its bytes of memory.
const BYTES_A_TOKEN: usize = 16;
/// Bytes of text that are tokenized however short the context.
const ALWAYS_TOKENIZED: usize = 64 << 10;

impl Prompt {
    /// Renders and tokenizes what came in `field`. Takes a while for long prompts: call it off the async threads.
    pub fn tokenize(&self, field: &str, serving: &Serving) -> Result<Tokenized, ApiError> {
        let encode = |error: lily_model::text::TokenizerError| ApiError::invalid(field, error.to_string());
        let plain = |tokens| Tokenized { tokens, form: Form::Raw, branch_points: Vec::new() };
        let context = serving.engine.limits().max_seq;
        let most = context.saturating_mul(BYTES_A_TOKEN).max(ALWAYS_TOKENIZED);
        let fits = |bytes: usize| {
            if bytes <= most {
                return Ok(());
            }
            let message = format!(
                "`{field}` comes to {bytes} bytes of text (accepted: at most {most} for {context} tokens of context)"
            );
            Err(ApiError { code: Some("context_length_exceeded"), ..ApiError::invalid(field, message) })
        };
        match self {
            Prompt::Tokens(tokens) => Ok(plain(tokens.clone())),
            Prompt::Text(text) => {
                fits(text.len())?;
                Ok(plain(serving.tokenizer.encode_markup(text).map_err(encode)?))
            }
            Prompt::Chat(chat) => {
                let tools: Vec<Value> = chat.offered().iter().map(Tool::definition).collect();
                let rendered = serving.template.render(&Conversation {
                    messages: &chat.messages,
                    tools: &tools,
                    kwargs: &chat.kwargs,
                    add_generation_prompt: true,
                })?;
                fits(rendered.text().len())?;
                let tokens = serving.tokenizer.encode_prompt(&rendered).map_err(encode)?;
                let begin = ReasoningStart::of_prompt(rendered.text());
                let tools = (!tools.is_empty()).then(|| Arc::new(ToolSchemas::new(&tools)));
                let branch_points = serving.branch_points(&tokens);
                Ok(Tokenized { tokens, form: Form::Chat { begin, tools }, branch_points })
            }
        }
    }
}

impl Ask {
    /// A plain request for a prompt.
    pub fn new(prompt: Prompt, sampling: SamplingParams) -> Self {
        let prompt_field = if matches!(prompt, Prompt::Chat(_)) { "messages" } else { "prompt" };
        Ask {
            prompt,
            prompt_field: prompt_field.into(),
            sampling,
            max_tokens: None,
            min_tokens: 0,
            eos: EosRule::Stop,
            stop: Vec::new(),
            logprobs: None,
            thinking_budget: None,
            timeout: None,
            n: 1,
            format: None,
        }
    }

    /// The constraint that tools and format come to, with the field to blame for it.
    fn constraint(&self) -> Result<Option<(ConstraintSpec, String)>, ApiError> {
        let Prompt::Chat(chat) = &self.prompt else { return Ok(self.format.clone()) };
        let (tools, count) = match &chat.tool_choice {
            ToolChoice::None => return Ok(self.format.clone()),
            ToolChoice::Auto if self.format.is_some() && !chat.tools.is_empty() => {
                let message = "`response_format`, `grammar` and `regex` allow no tool call, so with tools they need \
                               `tool_choice` \"none\" (an answer in that format) or \"required\" (a call)";
                return Err(ApiError::invalid("tool_choice", message));
            }
            ToolChoice::Auto => return Ok(self.format.clone()),
            ToolChoice::Required => (chat.tools.iter().collect::<Vec<_>>(), chat.parallel_calls),
            ToolChoice::Named(name) => {
                (chat.tools.iter().filter(|tool| tool.name == *name).collect(), ParallelCalls::One)
            }
        };
        if tools.is_empty() {
            return Err(ApiError::invalid("tool_choice", "`tool_choice` asks for a tool that `tools` does not have"));
        }
        let spec = ConstraintSpec::ToolCalls {
            tools: tools
                .iter()
                .map(|tool| ToolSpec { name: tool.name.clone(), parameters: tool.parameters.clone() })
                .collect(),
            calls: match count {
                ParallelCalls::Many => ToolCallCount::Many,
                ParallelCalls::One => ToolCallCount::One,
            },
        };
        Ok(Some((spec, "tools".into())))
    }

    /// Tokenizes, compiles the constraint and submits.
    pub async fn start(self, serving: &Arc<Serving>) -> Result<Choices, ApiError> {
        // Waiting for a turn counts as well.
        let deadline = serving.deadline(self.timeout);
        let places = serving.engine.places();
        if self.n > places {
            let message = format!("`n` is {} (accepted: 1 to {places}, which may run and wait at once)", self.n);
            return Err(ApiError::invalid("n", message));
        }
        let constraint = self.constraint()?;
        let mask = match &constraint {
            None => None,
            Some((spec, field)) => {
                let (spec, engine) = (spec.clone(), Arc::clone(&serving.engine));
                let compile = move || engine.compile_constraint(&spec);
                let compiled = serving.blocking(Work::Constraint, deadline, compile).await?;
                Some(compiled.map_err(|error| ApiError::uncompiled(field, &error))?)
            }
        };
        let inner = Arc::clone(serving);
        let tokenize = move || (self.prompt.tokenize(&self.prompt_field, &inner), self);
        let (prompt, ask) = serving.blocking(Work::Prompt, deadline, tokenize).await?;
        ask.submit(serving, deadline, &prompt?, mask, constraint.map(|(_, field)| field))
    }

    /// Submits as many requests as answers are wanted.
    fn submit(
        self,
        serving: &Serving,
        deadline: Option<Instant>,
        prompt: &Tokenized,
        mask: Option<Box<dyn TokenMask>>,
        constraint_field: Option<String>,
    ) -> Result<Choices, ApiError> {
        let rules = ChoiceRules {
            form: prompt.form.clone(),
            parallel_calls: match &self.prompt {
                Prompt::Chat(chat) => chat.parallel_calls,
                Prompt::Text(_) | Prompt::Tokens(_) => ParallelCalls::Many,
            },
            think_end: serving.think_end,
            constraint_field,
        };
        let mut choices = Vec::with_capacity(self.n);
        for index in 0..self.n {
            let mut sampling = self.sampling.clone();
            sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(index as u64));
            let mut request = Request::new(prompt.tokens.clone(), sampling);
            request.max_tokens = self.max_tokens;
            request.min_tokens = self.min_tokens;
            request.eos = self.eos;
            request.stop = self.stop.clone();
            request.logprobs = self.logprobs;
            request.thinking = match prompt.form {
                Form::Chat { begin: ReasoningStart::Open, .. } => Thinking::Open { budget: self.thinking_budget },
                Form::Chat { .. } | Form::Raw => Thinking::Closed,
            };
            request.branch_points = prompt.branch_points.clone();
            request.prefix_cache = PrefixCacheUse::ReadWrite;
            request.deadline = deadline;
            request.constraint = mask.as_ref().map(|mask| mask.fork());
            let submitted = serving.engine.submit(request);
            let generation = submitted.map_err(|error| ApiError::submit(error, &self.prompt_field))?;
            choices.push(Choice::new(generation, rules.clone()));
        }
        Ok(Choices::new(choices, prompt.tokens.len()))
    }
}
