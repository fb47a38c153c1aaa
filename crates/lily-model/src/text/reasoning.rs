//! Splits the model's output into what it thought and what it answers, at `</think>`.
//!
//! Newlines around both are dropped, as OpenAI-compatible servers do and as the template writes them again. The joined
//! pieces do not depend on how the text was cut. Knows nothing of tool calls: a call quoted while thinking is thought.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// What the prompt left open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The prompt ends inside a thinking block.
    Open,
    /// The prompt closed the block: everything is the answer.
    Closed,
    /// The prompt says nothing about thinking: an output that begins with `<think>` opens a block.
    MayOpen,
}

impl ReasoningStart {
    /// What the rendered prompt `text` leaves open, judged by its last turn.
    pub fn of_prompt(text: &str) -> Self {
        let turn = &text[text.rfind("<|im_start|>").unwrap_or(0)..];
        match (turn.rfind(OPEN), turn.rfind(CLOSE)) {
            (None, None) => Self::MayOpen,
            (open, close) if open > close => Self::Open,
            _ => Self::Closed,
        }
    }
}

/// The splitter of one sequence.
#[derive(Debug, Clone)]
pub struct ReasoningSplitter {
    state: State,
    /// A beginning of the tag that the state waits for.
    held: String,
    /// Newlines seen in a thought and not shown: they are dropped if nothing but `</think>` follows.
    newlines: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first character, where `<think>` is not text; then thinking or answering.
    Start {
        open: bool,
    },
    /// Thinking, before its first character.
    ThoughtStart,
    Thought,
    /// Answering, before its first character.
    AnswerStart,
    Answer,
}

impl ReasoningSplitter {
    /// A splitter at the start of an output.
    pub fn new(start: ReasoningStart) -> Self {
        let state = match start {
            ReasoningStart::Open => State::Start { open: true },
            ReasoningStart::Closed => State::AnswerStart,
            ReasoningStart::MayOpen => State::Start { open: false },
        };
        Self { state, held: String::new(), newlines: 0 }
    }

    /// Whether the text so far ends inside the thinking block.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Start { open: true } | State::ThoughtStart | State::Thought)
    }

    /// Takes the next piece of output; appends what was thought to `reasoning` and what is answered to `content`.
    pub fn push(&mut self, text: &str, reasoning: &mut String, content: &mut String) {
        if self.state == State::Answer {
            content.push_str(text);
            return;
        }
        let mut input = std::mem::take(&mut self.held);
        input.push_str(text);
        let mut rest = input.as_str();
        loop {
            match self.state {
                State::Start { open } => {
                    rest = rest.trim_start_matches('\n');
                    if let Some(after) = rest.strip_prefix(OPEN) {
                        self.state = State::ThoughtStart;
                        rest = after;
                    } else if OPEN.starts_with(rest) {
                        self.held.push_str(rest);
                        return;
                    } else {
                        self.state = if open { State::ThoughtStart } else { State::AnswerStart };
                    }
                }
                State::ThoughtStart => {
                    rest = rest.trim_start_matches('\n');
                    if rest.is_empty() {
                        return;
                    }
                    self.state = State::Thought;
                }
                State::Thought => {
                    let Some(close) = rest.find(CLOSE) else {
                        let partial = partial_suffix(rest, CLOSE);
                        let (thought, tag) = rest.split_at(rest.len() - partial);
                        self.think(thought, reasoning);
                        self.held.push_str(tag);
                        return;
                    };
                    self.think(&rest[..close], reasoning);
                    self.newlines = 0;
                    self.state = State::AnswerStart;
                    rest = &rest[close + CLOSE.len()..];
                }
                State::AnswerStart => {
                    rest = rest.trim_start_matches('\n');
                    if rest.is_empty() {
                        return;
                    }
                    self.state = State::Answer;
                }
                State::Answer => {
                    content.push_str(rest);
                    return;
                }
            }
        }
    }

    /// Appends `text` to the thought, keeping back the newlines at its end.
    fn think(&mut self, text: &str, reasoning: &mut String) {
        let shown = text.trim_end_matches('\n');
        if !shown.is_empty() {
            reasoning.extend(std::iter::repeat_n('\n', self.newlines));
            reasoning.push_str(shown);
            self.newlines = 0;
        }
        self.newlines += text.len() - shown.len();
    }

    /// Ends the output: what was held back as the beginning of a tag is text after all.
    pub fn finish(&mut self, reasoning: &mut String, content: &mut String) {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return;
        }
        if self.is_thinking() {
            self.think(&held, reasoning);
        } else {
            content.push_str(&held);
        }
    }
}

/// The length of the longest suffix of `text` that begins `tag` without completing it.
pub(crate) fn partial_suffix(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|&n| text.ends_with(&tag[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split<'a>(start: ReasoningStart, pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(start);
        let (mut reasoning, mut content) = (String::new(), String::new());
        for piece in pieces {
            splitter.push(piece, &mut reasoning, &mut content);
        }
        splitter.finish(&mut reasoning, &mut content);
        (reasoning, content)
    }

    fn pair(reasoning: &str, content: &str) -> (String, String) {
        (reasoning.to_owned(), content.to_owned())
    }

    #[test]
    fn thought_and_answer_are_split_and_newlines_around_them_dropped() {
        use ReasoningStart::{Closed, MayOpen, Open};
        assert_eq!(split(Open, ["\nI see\n\nso\n\n</think>\n\nHi\n</think>"]), pair("I see\n\nso", "Hi\n</think>"));
        assert_eq!(split(Open, ["</think>\n\nHi"]), pair("", "Hi"));
        assert_eq!(split(Open, ["<think>\nagain</think>x"]), pair("again", "x"));
        assert_eq!(split(Open, ["cut off </thi"]), pair("cut off </thi", ""));
        assert_eq!(split(Open, ["cut off\n\n"]), pair("cut off", ""));
        assert_eq!(split(Closed, ["\n\n<think>is a tag</think>"]), pair("", "<think>is a tag</think>"));
        assert_eq!(split(MayOpen, ["<think>a</think>\nb"]), pair("a", "b"));
        assert_eq!(split(MayOpen, ["a <think>b</think>"]), pair("", "a <think>b</think>"));
        assert_eq!(split(MayOpen, ["<thi"]), pair("", "<thi"));
    }

    #[test]
    fn a_thought_streams_as_it_comes() {
        let mut splitter = ReasoningSplitter::new(ReasoningStart::Open);
        let (mut reasoning, mut content) = (String::new(), String::new());
        splitter.push("I think\n", &mut reasoning, &mut content);
        assert_eq!(reasoning, "I think");
        splitter.push("so <", &mut reasoning, &mut content);
        assert_eq!(reasoning, "I think\nso ");
        assert!(splitter.is_thinking());
        splitter.push("/think>", &mut reasoning, &mut content);
        assert!(!splitter.is_thinking());
    }

    #[test]
    fn the_prompt_says_what_is_open() {
        let of = ReasoningStart::of_prompt;
        assert_eq!(of("<|im_start|>user\n</think><|im_end|>\n<|im_start|>assistant\n<think>\n"), ReasoningStart::Open);
        assert_eq!(of("<|im_start|>assistant\n<think>\n\n</think>\n\n"), ReasoningStart::Closed);
        assert_eq!(of("<think><|im_start|>assistant\n"), ReasoningStart::MayOpen);
        assert_eq!(of("Once upon a time"), ReasoningStart::MayOpen);
    }

    proptest! {
        #[test]
        fn the_joined_pieces_do_not_depend_on_the_cuts(
            text in "(<think>|</think>|</|\n|a| |é|>){0,14}", cut in 1usize..5,
            start in prop::sample::select(vec![ReasoningStart::Open, ReasoningStart::Closed, ReasoningStart::MayOpen]),
        ) {
            let characters: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = characters.chunks(cut).map(|c| c.iter().collect()).collect();
            prop_assert_eq!(split(start, pieces.iter().map(String::as_str)), split(start, [text.as_str()]));
        }
    }
}
