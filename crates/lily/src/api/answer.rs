//! From the generated text to what a client reads: thinking, answer, tool calls, as they stream in. Puts the splitters of
//! [`lily_model::text`] together.

use std::sync::Arc;

use lily_model::text::{Ending, ReasoningSplitter, ReasoningStart, ToolCallParser, ToolEvent, ToolSchemas};

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Thinking.
    Reasoning(String),
    /// Answer.
    Content(String),
    /// A tool call begins; calls are numbered from 0.
    CallStart {
        /// The tool's name.
        name: String,
    },
    /// A piece of the JSON text of the last call's arguments.
    Arguments(String),
    /// The last call is complete.
    CallEnd,
}

/// What the generated text is.
#[derive(Debug, Clone)]
pub enum Form {
    /// Text, all of it.
    Raw,
    /// An assistant's turn.
    Chat {
        /// Whether it begins with thinking.
        begin: ReasoningStart,
        /// Tools that may be called; without any, text that looks like a call is text.
        tools: Option<Arc<ToolSchemas>>,
    },
}

/// Splits one answer.
#[derive(Debug)]
pub struct Answer {
    reasoning: Option<ReasoningSplitter>,
    calls: Option<ToolCallParser>,
}

impl Answer {
    /// A splitter at the start of the generated text.
    pub fn new(form: Form) -> Self {
        match form {
            Form::Raw => Answer { reasoning: None, calls: None },
            Form::Chat { begin, tools } => {
                Answer { reasoning: Some(ReasoningSplitter::new(begin)), calls: tools.map(ToolCallParser::new) }
            }
        }
    }

    /// Takes generated text and gives what is certain.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let (mut thought, mut content) = (String::new(), String::new());
        match &mut self.reasoning {
            Some(splitter) => splitter.push(text, &mut thought, &mut content),
            None => content.push_str(text),
        }
        self.pieces(thought, &content, None)
    }

    /// Ends the text and gives what was held back.
    pub fn finish(&mut self, ending: Ending) -> Vec<Piece> {
        let (mut thought, mut content) = (String::new(), String::new());
        if let Some(splitter) = &mut self.reasoning {
            splitter.finish(&mut thought, &mut content);
        }
        self.pieces(thought, &content, Some(ending))
    }

    fn pieces(&mut self, thought: String, content: &str, ending: Option<Ending>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if !thought.is_empty() {
            pieces.push(Piece::Reasoning(thought));
        }
        let mut events = Vec::new();
        match &mut self.calls {
            None if content.is_empty() => {}
            None => pieces.push(Piece::Content(content.to_owned())),
            Some(parser) => {
                parser.push(content, &mut events);
                if let Some(ending) = ending {
                    parser.finish(ending, &mut events);
                }
            }
        }
        pieces.extend(events.into_iter().filter_map(|event| match event {
            ToolEvent::Content(text) => Some(Piece::Content(text)),
            ToolEvent::CallStart { name, .. } => Some(Piece::CallStart { name }),
            ToolEvent::Arguments { json, .. } => Some(Piece::Arguments(json)),
            ToolEvent::CallEnd { .. } => Some(Piece::CallEnd),
            ToolEvent::CallCut { .. } => None,
        }));
        pieces
    }
}
