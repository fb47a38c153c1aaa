//! A compiled grammar as a [`TokenMask`].

use std::fmt;
use std::time::{Duration, Instant};

use llguidance::Matcher;

use super::{ConstraintError, TokenMask, TokenSet};

/// A grammar and how far the answer has followed it.
pub(super) struct GrammarMask {
    matcher: Matcher,
    /// What masks have taken so far.
    spent: Duration,
}

/// Longest time for the masks of an answer all together: usual ones take well under a millisecond.
const MAX_TIME: Duration = Duration::from_secs(10);

impl GrammarMask {
    pub fn new(matcher: Matcher) -> Self {
        GrammarMask { matcher, spent: Duration::ZERO }
    }
}

impl TokenMask for GrammarMask {
    fn allowed(&mut self) -> Result<TokenSet, ConstraintError> {
        let start = Instant::now();
        let mask = self.matcher.compute_mask_or_eos().map_err(|e| step_error(&e))?;
        self.spent += start.elapsed();
        if self.spent > MAX_TIME {
            return Err(ConstraintError::Step(format!("following it took more than {MAX_TIME:?}")));
        }
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
        Box::new(GrammarMask { matcher: self.matcher.deep_clone(), spent: self.spent })
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

/// What happened, in a line. llguidance appends its whole state to messages; the first line says what went wrong, and one that
/// begins with `error:` why a regular expression does not parse.
pub(super) fn first_line(message: &str) -> String {
    if message.contains("NoExtensionBias") {
        return "no text satisfies it, or none that does has an end".into();
    }
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("no reason given");
    let cause = lines.find_map(|line| line.strip_prefix("error:")).unwrap_or_default();
    format!("{first}{cause}").chars().take(400).collect()
}
