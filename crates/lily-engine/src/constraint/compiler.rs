//! From a [`ConstraintSpec`] to a mask, within bounds of time and memory.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lily_model::text::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::limits::{check_schema, check_text, escape, too_complex};
use super::mask::{GrammarMask, first_line};
use super::vocabulary::Vocabulary;
use super::{ConstraintError, ConstraintSpec, TokenMask, tool_call};

/// Longest time that one compilation is waited for. Its thread cannot be ended; llguidance's own limits end most not long after.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Compilations that run at once, those that nobody waits for any more included.
const MAX_THREADS: usize = 4;
/// Stack of the compiling thread: schemas recurse.
const STACK: usize = 64 << 20;
/// Tools of a request.
const MAX_TOOLS: usize = 256;
/// Attempts to find the part of a schema that is to blame, within [`MAX_TIME`] all together.
const MAX_ATTEMPTS: usize = 48;

/// What is left for finding the part of a schema that is to blame.
struct Search {
    attempts: usize,
    until: Instant,
}

impl Search {
    fn new() -> Self {
        Search { attempts: MAX_ATTEMPTS, until: Instant::now() + MAX_TIME }
    }

    /// Whether another attempt may be made.
    fn go_on(&mut self) -> bool {
        let may = self.attempts > 0 && Instant::now() < self.until;
        self.attempts = self.attempts.saturating_sub(1);
        may
    }
}

/// Compiles constraints for one vocabulary.
pub(crate) struct Compiler {
    tokenizer: Arc<Tokenizer>,
    eos: Vec<u32>,
    /// Referred to by each thread that compiles.
    threads: Arc<()>,
    /// Made at the first use: the trie of a large vocabulary takes a moment, and most servers never need it.
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
}

impl Compiler {
    pub fn new(tokenizer: Arc<Tokenizer>, eos: &[u32]) -> Self {
        let size = tokenizer.vocab_size();
        let eos = eos.iter().copied().filter(|&id| (id as usize) < size).collect();
        Compiler { tokenizer, eos, threads: Arc::new(()), factory: OnceLock::new() }
    }

    /// Compiles and makes sure that a first token exists.
    pub fn compile(&self, spec: &ConstraintSpec) -> Result<Box<dyn TokenMask>, ConstraintError> {
        let (what, grammar) = self.grammar(spec)?;
        match self.build(&what, grammar) {
            Err(ConstraintError::Invalid { what, reason }) => Err(self.locate(spec, what, reason)),
            other => other,
        }
    }

    fn grammar(&self, spec: &ConstraintSpec) -> Result<(String, TopLevelGrammar), ConstraintError> {
        Ok(match spec {
            ConstraintSpec::JsonObject => ("json_object".into(), from_schema(&json!({"type": "object"}))),
            ConstraintSpec::JsonSchema(schema) => {
                check_schema("json_schema", schema)?;
                ("json_schema".into(), from_schema(schema))
            }
            ConstraintSpec::Lark(text) => {
                check_text("grammar", text)?;
                ("grammar".into(), TopLevelGrammar::from_lark(text.clone()))
            }
            ConstraintSpec::Regex(text) => {
                check_text("regex", text)?;
                ("regex".into(), TopLevelGrammar::from_regex(text))
            }
            ConstraintSpec::ToolCalls { tools, calls } => {
                if tools.is_empty() || tools.len() > MAX_TOOLS {
                    let reason = format!("{} tools (1 to {MAX_TOOLS})", tools.len());
                    return Err(ConstraintError::Invalid { what: "tools".into(), reason });
                }
                for (i, tool) in tools.iter().enumerate() {
                    check_schema(&format!("tools[{i}].parameters"), &tool.parameters)?;
                }
                let text = tool_call::grammar(tools, *calls);
                ("tools".into(), TopLevelGrammar::from_lark(text))
            }
        })
    }

    fn factory(&self) -> Result<Arc<ParserFactory>, ConstraintError> {
        let made = self.factory.get_or_init(|| {
            if self.eos.is_empty() {
                return Err("the checkpoint names no end-of-sequence id, so no answer could end".into());
            }
            let env: TokEnv = Arc::new(Vocabulary::new(self.tokenizer.clone(), &self.eos));
            let mut factory = ParserFactory::new_simple(&env).map_err(|e| first_line(&e.to_string()))?;
            factory.quiet();
            factory.limits_mut().verbose_errors = false;
            Ok(Arc::new(factory))
        });
        made.clone().map_err(|reason| ConstraintError::Invalid { what: "constraint".into(), reason })
    }

    fn build(&self, what: &str, grammar: TopLevelGrammar) -> Result<Box<dyn TokenMask>, ConstraintError> {
        let factory = self.factory()?;
        let running = Arc::clone(&self.threads);
        if Arc::strong_count(&running) > MAX_THREADS + 1 {
            return Err(ConstraintError::Busy { limit: MAX_THREADS });
        }
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("lily-constraint".into()).stack_size(STACK);
        let spawned = thread.spawn(move || {
            let mut matcher = Matcher::new(factory.create_parser(grammar));
            let first = match matcher.get_error() {
                Some(error) => Err(error),
                None => matcher.compute_mask_or_eos().map_err(|e| e.to_string()),
            };
            // Nobody listens any more once the time is over.
            let _ = sender.send(first.map(|mask| (matcher, mask.is_zero())));
            drop(running);
        });
        spawned.map_err(|e| too_complex(what, format!("no thread for it: {e}")))?;
        let invalid = |reason: String| ConstraintError::Invalid { what: what.into(), reason };
        match receiver.recv_timeout(MAX_TIME) {
            Ok(Ok((matcher, false))) => Ok(Box::new(GrammarMask::new(matcher))),
            Ok(Ok((_, true))) => Err(invalid("nothing satisfies it".into())),
            Ok(Err(error)) => Err(classify(what, &error)),
            Err(RecvTimeoutError::Timeout) => Err(too_complex(what, format!("compiling takes over {MAX_TIME:?}"))),
            Err(RecvTimeoutError::Disconnected) => Err(invalid("the grammar compiler failed on it".into())),
        }
    }

    /// The same error with the place of the smallest part that fails on its own.
    fn locate(&self, spec: &ConstraintSpec, what: String, reason: String) -> ConstraintError {
        let mut search = Search::new();
        match spec {
            ConstraintSpec::JsonSchema(schema) => {
                let (path, reason) = self.narrow(schema, schema, String::new(), reason, &mut search);
                let place = if path.is_empty() { "at its top level".to_string() } else { format!("at {path}") };
                ConstraintError::Invalid { what, reason: format!("{place}: {reason}") }
            }
            ConstraintSpec::ToolCalls { tools, .. } => {
                for (i, tool) in tools.iter().enumerate() {
                    if let Some(reason) = self.schema_error(&tool.parameters, &tool.parameters) {
                        let (path, reason) =
                            self.narrow(&tool.parameters, &tool.parameters, String::new(), reason, &mut search);
                        let what = format!("tools[{i}].parameters");
                        return ConstraintError::Invalid { what, reason: format!("at {path}: {reason}") };
                    }
                }
                ConstraintError::Invalid { what, reason }
            }
            _ => ConstraintError::Invalid { what, reason },
        }
    }

    /// Walks down to the deepest subschema that fails by itself.
    fn narrow(
        &self,
        root: &Value,
        schema: &Value,
        path: String,
        reason: String,
        search: &mut Search,
    ) -> (String, String) {
        for (step, inner) in subschemas(schema) {
            if !search.go_on() {
                break;
            }
            if let Some(reason) = self.schema_error(inner, root) {
                return self.narrow(root, inner, format!("{path}/{step}"), reason, search);
            }
        }
        (path, reason)
    }

    fn schema_error(&self, schema: &Value, root: &Value) -> Option<String> {
        let mut whole = schema.clone();
        if let Some(object) = whole.as_object_mut() {
            for key in ["$defs", "definitions"] {
                if let Some(definitions) = root.get(key) {
                    object.entry(key).or_insert_with(|| definitions.clone());
                }
            }
        }
        match self.build("json_schema", from_schema(&whole)) {
            Err(ConstraintError::Invalid { reason, .. }) => Some(reason),
            _ => None,
        }
    }
}

/// Schemas directly inside a schema, with the path to each.
fn subschemas(schema: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    let Some(object) = schema.as_object() else { return found };
    for (key, value) in object {
        match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(map)) => {
                found.extend(map.iter().map(|(name, inner)| (format!("{key}/{}", escape(name)), inner)));
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(list)) => {
                found.extend(list.iter().enumerate().map(|(i, inner)| (format!("{key}/{i}"), inner)));
            }
            ("items" | "additionalProperties" | "not", inner) if inner.is_object() => {
                found.push((key.clone(), inner));
            }
            _ => {}
        }
    }
    found
}

/// Bounds white space between JSON tokens, so that a model cannot pad for ever.
fn from_schema(schema: &Value) -> TopLevelGrammar {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        object.entry("x-guidance").or_insert_with(|| json!({"whitespace_pattern": "[ \\n\\t]{1,20}"}));
    }
    TopLevelGrammar::from_json_schema(schema)
}

/// llguidance tells its limits apart from its complaints only in words.
fn classify(what: &str, message: &str) -> ConstraintError {
    let reason = first_line(message);
    let lower = message.to_lowercase();
    let limits = ["fuel", "too large", "too many", "too complex", "limit", "exceed"];
    if limits.iter().any(|word| lower.contains(word)) {
        too_complex(what, reason)
    } else {
        ConstraintError::Invalid { what: what.into(), reason }
    }
}
