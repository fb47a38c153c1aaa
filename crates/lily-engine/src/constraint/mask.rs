//! A compiled grammar as a [`TokenMask`].

use std::fmt;

use llguidance::Matcher;

use super::{ConstraintError, TokenMask, TokenSet};

/// A grammar and how far the answer has followed it.
pub(super) struct GrammarMask {
    matcher: Matcher,
}

impl GrammarMask {
    pub fn new(matcher: Matcher) -> Self {
        GrammarMask { matcher }
    }
}

impl TokenMask for GrammarMask {
    fn allowed(&mut self) -> Result<TokenSet, ConstraintError> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|e| step_error(&e))?;
        let set = TokenSet::from_words(mask.as_slice().to_vec());
        if set.is_empty() {
            return Err(ConstraintError::Step("no token may follow".into()));
        }
        Ok(set)
    }

    fn advance(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.matcher.consume_token(token).map_err(|e| step_error(&e))
    }

    fn fork(&self) -> Box<dyn TokenMask> {
        Box::new(GrammarMask { matcher: self.matcher.deep_clone() })
    }
}

impl fmt::Debug for GrammarMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarMask").field("stopped", &self.matcher.is_stopped()).finish()
    }
}

fn step_error(error: &impl fmt::Display) -> ConstraintError {
    ConstraintError::Step(first_line(&error.to_string()))
}

/// llguidance appends its whole state to messages; the first line says what happened.
pub(super) fn first_line(message: &str) -> String {
    let line = message.lines().find(|l| !l.trim().is_empty()).unwrap_or("no reason given");
    line.chars().take(400).collect()
}
