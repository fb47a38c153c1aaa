//! The think block of one generation: whether it is open, how long it may become, and the tokens that close it.

use lily_model::text::Tokenizer;

use crate::request::Thinking;

/// Tokens around the end of a think block, as the model itself writes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThinkTokens {
    /// `</think>`.
    pub end: u32,
    /// `\n</think>\n\n`.
    pub close: Vec<u32>,
    /// `\n\n`, between `</think>` and the answer.
    pub gap: Vec<u32>,
}

impl ThinkTokens {
    /// Looks them up; `None` if the tokenizer has no think block.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let end = tokenizer.token_id("</think>").filter(|&id| tokenizer.is_control(id))?;
        let close = tokenizer.encode_markup("\n</think>\n\n").ok()?;
        let gap = tokenizer.encode_text("\n\n").ok()?;
        Some(ThinkTokens { end, close, gap })
    }
}

/// Where a generation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Inside the block, after so many tokens of it.
    Thinking { tokens: usize, budget: Option<usize> },
    /// After `</think>`, before the answer's first character that is no line break.
    Gap,
    /// In the answer.
    Answer,
}

impl Stage {
    pub fn new(thinking: Thinking) -> Self {
        match thinking {
            Thinking::Closed => Stage::Answer,
            Thinking::Open { budget } => Stage::Thinking { tokens: 0, budget },
        }
    }

    pub fn is_thinking(self) -> bool {
        matches!(self, Stage::Thinking { .. })
    }

    /// Whether the block must be closed now.
    pub fn is_spent(self) -> bool {
        matches!(self, Stage::Thinking { tokens, budget: Some(budget) } if tokens >= budget)
    }

    /// The stage after a token with these bytes; `end` is `</think>`.
    pub fn after(self, id: u32, bytes: &[u8], end: Option<u32>) -> Self {
        match self {
            Stage::Thinking { .. } if Some(id) == end => Stage::Gap,
            Stage::Thinking { tokens, budget } => Stage::Thinking { tokens: tokens + 1, budget },
            Stage::Gap if bytes.iter().all(|&b| b == b'\n') => Stage::Gap,
            Stage::Gap | Stage::Answer => Stage::Answer,
        }
    }
}
