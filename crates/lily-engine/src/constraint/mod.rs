//! Constrained decoding: which tokens may come next.

mod compiler;
mod limits;
mod mask;
mod tool_call;
mod vocabulary;

use std::fmt;

pub(crate) use compiler::Compiler;

/// A set of token ids, one bit each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenSet {
    words: Vec<u32>,
}

impl TokenSet {
    /// The set whose bit `id % 32` of word `id / 32` says whether `id` is in it.
    pub fn from_words(words: Vec<u32>) -> Self {
        TokenSet { words }
    }

    /// Whether `id` is in the set; ids past its end are not.
    pub fn contains(&self, id: u32) -> bool {
        self.words.get(id as usize / 32).is_some_and(|w| w >> (id % 32) & 1 == 1)
    }

    /// Puts `id` into the set.
    pub fn insert(&mut self, id: u32) {
        let word = id as usize / 32;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (id % 32);
    }

    /// Whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    /// Words of 32 ids, lowest bit first.
    pub fn words(&self) -> &[u32] {
        &self.words
    }
}

/// Restricts what a model may generate, token by token.
pub trait TokenMask: Send + fmt::Debug {
    /// The ids that may come next. End-of-sequence ids are in it exactly when the text may end here.
    fn allowed(&mut self) -> Result<TokenSet, ConstraintError>;

    /// Takes note of a token that was generated.
    fn advance(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// An independent copy in the same state, for another answer to the same request.
    fn fork(&self) -> Box<dyn TokenMask>;
}

/// What the answer must look like.
#[derive(Debug, Clone, PartialEq)]
pub enum ConstraintSpec {
    /// Any JSON object.
    JsonObject,
    /// JSON that the schema accepts.
    JsonSchema(serde_json::Value),
    /// Text that a grammar in llguidance's Lark dialect accepts.
    Lark(String),
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// One or more tool calls in Qwen's XML format, and nothing else.
    ToolCalls {
        /// The tools that may be called.
        tools: Vec<ToolSpec>,
        /// How many calls.
        calls: ToolCallCount,
    },
}

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments (an object schema).
    pub parameters: serde_json::Value,
}

/// How many tool calls an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCallCount {
    /// Exactly one.
    One,
    /// One or more.
    Many,
}

/// Why a constraint cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The schema or grammar is not one, cannot be satisfied, or uses what is not supported; the message says where.
    #[error("{what} cannot be used: {reason}")]
    Invalid {
        /// `json_schema`, `grammar`, `regex`, `tools[2].parameters`.
        what: String,
        /// Where and why.
        reason: String,
    },
    /// Compiling it takes more time or memory than allowed.
    #[error("{what} is too complex: {reason}")]
    TooComplex {
        /// As above.
        what: String,
        /// Which limit.
        reason: String,
    },
    /// Others that take long are still being compiled.
    #[error("{limit} other constraints are still being compiled; try again")]
    Busy {
        /// Most at once.
        limit: usize,
    },
    /// No token may follow, or the mask could not be computed within its limits.
    #[error("the constraint failed during generation: {0}")]
    Step(String),
}
