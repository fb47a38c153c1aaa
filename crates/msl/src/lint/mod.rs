//! What Apple's compiler or GPU would refuse and C++ compilers accept: rules that need no types.
//!
//! Works on the preprocessed tokens of a [`Unit`]. Rules err on the side of silence: a finding is meant to be acted on.

mod calls;
mod globals;
mod kernels;
mod pointers;
mod words;

use crate::lex::Token;
use crate::reflect::Unit;

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Source part.
    pub file: String,
    /// 1-based line.
    pub line: u32,
    /// Short name of the rule.
    pub rule: &'static str,
    /// What is wrong and what would be accepted.
    pub message: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {} [{}]", self.file, self.line, self.message, self.rule)
    }
}

/// Collects findings with the names of the parts at hand.
struct Findings<'a> {
    unit: &'a Unit,
    list: Vec<Finding>,
}

impl Findings<'_> {
    fn add(&mut self, token: &Token, rule: &'static str, message: impl Into<String>) {
        let file = self.unit.names.get(token.file as usize).cloned().unwrap_or_default();
        self.list.push(Finding { file, line: token.line, rule, message: message.into() });
    }
}

/// All findings of all rules, in source order.
pub fn lint(unit: &Unit) -> Vec<Finding> {
    let mut findings = Findings { unit, list: Vec::new() };
    words::check(&mut findings);
    pointers::check(&mut findings);
    calls::check(&mut findings);
    globals::check(&mut findings);
    kernels::check(&mut findings);
    let mut list = findings.list;
    list.sort_by(|a, b| (&a.file, a.line, a.rule).cmp(&(&b.file, b.line, b.rule)));
    list.dedup();
    list
}
