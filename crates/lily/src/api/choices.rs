//! The answers to one request while they are generated: engine events in, pieces of answers out.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use lily_engine::{Event, FinishReason, Generation, TokenEvent, Usage};
use lily_model::text::{Ending, ReasoningStart};

use super::answer::{Answer, Form, Piece};
use super::ask::ParallelCalls;
use super::error::ApiError;

/// Something new in one of the answers.
#[derive(Debug)]
pub enum Update {
    /// It waits behind others.
    Queued {
        /// How many.
        ahead: usize,
    },
    /// The prompt is being read.
    Progress {
        /// Tokens read.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// New text; the token is there when log probabilities were asked for and it belongs to the answer.
    Pieces(Vec<Piece>, Option<TokenEvent>),
    /// It is complete.
    Finished(Finish),
    /// It failed; nothing follows.
    Failed(ApiError),
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Why.
    pub reason: Reason,
    /// Token counts.
    pub usage: Usage,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The model ended it.
    End,
    /// A stop string appeared.
    StopString(String),
    /// A limit.
    Length,
    /// It calls tools.
    ToolCalls,
}

/// What the answers to a request have in common.
#[derive(Debug, Clone)]
pub struct ChoiceRules {
    /// How the answer is read.
    pub form: Form,
    /// How many calls it may have.
    pub parallel_calls: ParallelCalls,
    /// Id of `</think>`.
    pub think_end: Option<u32>,
    /// Path of the field that constrains the answer.
    pub constraint_field: Option<String>,
}

/// One answer.
#[derive(Debug)]
pub struct Choice {
    generation: Option<Generation>,
    answer: Answer,
    rules: ChoiceRules,
    thinking: bool,
    calls: usize,
    /// Kept for answers that are ended before the engine ends them.
    usage: Usage,
    /// Given out by the next poll, after the pieces that came with it.
    finish: Option<Finish>,
}

impl Choice {
    /// The answer that `generation` produces.
    pub(super) fn new(generation: Generation, rules: ChoiceRules) -> Self {
        Choice {
            generation: Some(generation),
            answer: Answer::new(rules.form.clone()),
            thinking: matches!(rules.form, Form::Chat { begin: ReasoningStart::Open, .. }),
            rules,
            calls: 0,
            usage: Usage::default(),
            finish: None,
        }
    }

    fn update(&mut self, event: Option<Event>) -> Update {
        match event {
            Some(Event::Queued { ahead }) => Update::Queued { ahead },
            Some(Event::PrefillProgress { done, total, cached }) => {
                self.usage.prompt = total;
                self.usage.cached = cached;
                Update::Progress { done, total }
            }
            Some(Event::Token(token)) => self.token(token),
            Some(Event::Finished { reason, text, usage, .. }) => self.finished(reason, &text, usage),
            None => {
                self.generation = None;
                Update::Failed(ApiError::unavailable("the engine has stopped"))
            }
        }
    }

    fn token(&mut self, token: TokenEvent) -> Update {
        self.usage.completion += 1;
        let in_answer = !self.thinking;
        if self.thinking {
            self.usage.reasoning += 1;
            self.thinking = Some(token.id) != self.rules.think_end;
        }
        let pieces = self.answer.push(&token.text);
        let pieces = self.count_calls(pieces);
        if self.rules.parallel_calls == ParallelCalls::One && pieces.contains(&Piece::CallEnd) {
            // Dropping the generation frees its place; what it would have said is not wanted.
            self.generation = None;
            self.finish = Some(Finish { reason: Reason::ToolCalls, usage: self.usage });
        }
        let reported = in_answer && token.logprob.is_some();
        Update::Pieces(pieces, reported.then_some(token))
    }

    fn count_calls(&mut self, mut pieces: Vec<Piece>) -> Vec<Piece> {
        self.calls += pieces.iter().filter(|piece| matches!(piece, Piece::CallStart { .. })).count();
        if self.rules.parallel_calls == ParallelCalls::One
            && let Some(end) = pieces.iter().position(|piece| *piece == Piece::CallEnd)
        {
            pieces.truncate(end + 1);
        }
        pieces
    }

    fn finished(&mut self, reason: FinishReason, text: &str, usage: Usage) -> Update {
        self.generation = None;
        let mut pieces = self.answer.push(text);
        let ending = if reason == FinishReason::Eos { Ending::Stopped } else { Ending::Cut };
        pieces.extend(self.answer.finish(ending));
        let pieces = self.count_calls(pieces);
        let reason = match reason {
            FinishReason::Eos if self.calls > 0 => Reason::ToolCalls,
            FinishReason::Eos => Reason::End,
            FinishReason::StopString(text) => Reason::StopString(text),
            FinishReason::Length => Reason::Length,
            FinishReason::Cancelled => {
                return Update::Failed(ApiError::unavailable("the server is shutting down"));
            }
            FinishReason::Deadline => return Update::Failed(ApiError::deadline()),
            FinishReason::Constraint(message) => {
                let field = self.rules.constraint_field.as_deref().unwrap_or("logit_bias");
                return Update::Failed(ApiError::constraint(field, &message));
            }
            FinishReason::Error(message) => return Update::Failed(ApiError::internal(message)),
        };
        self.finish = Some(Finish { reason, usage });
        Update::Pieces(pieces, None)
    }
}

/// The answers to one request. Dropping it cancels what still runs.
#[derive(Debug)]
pub struct Choices {
    choices: Vec<Choice>,
    /// Where the next look begins, so that no answer starves another.
    turn: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
}

impl Choices {
    pub(super) fn new(choices: Vec<Choice>, prompt_tokens: usize) -> Self {
        Choices { choices, turn: 0, prompt_tokens }
    }

    /// Answers there are.
    pub fn len(&self) -> usize {
        self.choices.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// Joins the answers of another request, numbered after these.
    pub fn extend(&mut self, other: Choices) {
        self.choices.extend(other.choices);
        self.prompt_tokens += other.prompt_tokens;
    }

    /// The next update and the answer it belongs to; `None` when all are complete. Safe to cancel.
    pub async fn next(&mut self) -> Option<(usize, Update)> {
        poll_fn(|cx| {
            let count = self.choices.len();
            let mut open = false;
            for step in 0..count {
                let index = (self.turn + step) % count;
                let choice = &mut self.choices[index];
                if let Some(finish) = choice.finish.take() {
                    return Poll::Ready(Some((index, Update::Finished(finish))));
                }
                let Some(generation) = &mut choice.generation else { continue };
                open = true;
                let polled = pin!(generation.recv()).poll(cx);
                if let Poll::Ready(event) = polled {
                    self.turn = index + 1;
                    return Poll::Ready(Some((index, choice.update(event))));
                }
            }
            if open { Poll::Pending } else { Poll::Ready(None) }
        })
        .await
    }
}

/// A whole answer.
#[derive(Debug, Default)]
pub struct Whole {
    /// Thinking.
    pub reasoning: String,
    /// Answer.
    pub content: String,
    /// Names and argument texts of tool calls.
    pub calls: Vec<(String, String)>,
    /// Tokens of the answer, if log probabilities were asked for.
    pub tokens: Vec<TokenEvent>,
    /// How it ended.
    pub finish: Option<Finish>,
}

impl Whole {
    /// Adds a piece.
    pub fn add(&mut self, piece: Piece) {
        match piece {
            Piece::Reasoning(text) => self.reasoning.push_str(&text),
            Piece::Content(text) => self.content.push_str(&text),
            Piece::CallStart { name } => self.calls.push((name, String::new())),
            Piece::Arguments(text) => {
                if let Some((_, arguments)) = self.calls.last_mut() {
                    arguments.push_str(&text);
                }
            }
            Piece::CallEnd => {}
        }
    }
}

impl Choices {
    /// Waits for every answer. An error of one is the error of all.
    pub async fn collect(mut self) -> Result<Vec<(Whole, Finish)>, ApiError> {
        let mut wholes: Vec<Whole> = self.choices.iter().map(|_| Whole::default()).collect();
        while let Some((index, update)) = self.next().await {
            match update {
                Update::Queued { .. } | Update::Progress { .. } => {}
                Update::Pieces(pieces, token) => {
                    pieces.into_iter().for_each(|piece| wholes[index].add(piece));
                    wholes[index].tokens.extend(token);
                }
                Update::Finished(finish) => wholes[index].finish = Some(finish),
                Update::Failed(error) => return Err(error),
            }
        }
        wholes
            .into_iter()
            .map(|mut whole| match whole.finish.take() {
                Some(finish) => Ok((whole, finish)),
                None => Err(ApiError::internal("an answer has no end")),
            })
            .collect()
    }
}

/// Sum of the token counts of several answers to one prompt: the prompt counts once.
pub fn total_usage<'a>(finishes: impl Iterator<Item = &'a Finish>) -> Usage {
    finishes.fold(Usage::default(), |sum, finish| Usage {
        prompt: sum.prompt.max(finish.usage.prompt),
        cached: sum.cached.max(finish.usage.cached),
        completion: sum.completion + finish.usage.completion,
        reasoning: sum.reasoning + finish.usage.reasoning,
    })
}
