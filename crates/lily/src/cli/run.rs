//! `lily run`: one prompt, the answer on stdout as it is generated. Thinking (on a terminal) and statistics go to stderr.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use lily_model::text::Message;

use super::input;
use super::options::ModelOptions;
use super::progress;
use crate::api::answer::Piece;
use crate::api::ask::{Ask, Chat, Prompt};
use crate::api::choices::{Choices, Finish, Reason, Update};
use crate::api::{ApiSettings, Serving};
use crate::model::{LoadedModel, Sharing};
use crate::source::Source;

/// Answer one prompt
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  lily run -p \"Tell me a story about a fox\"\n  echo \"What is the capital of \
                        France?\" | lily run --no-think --temperature 0\n  lily run --model \
                        ~/Qwen3.6-35B-A3B-4bit -p \"Explain RoPE\" --max-tokens 800\n\nThe answer goes to stdout; \
                        thinking (if stderr is a terminal) and statistics to stderr."
)]
pub(super) struct RunArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// The prompt; without it, or with `-`, stdin is read
    #[arg(short, long, value_name = "PROMPT")]
    prompt: Option<String>,
    /// System message
    #[arg(long, value_name = "S", conflicts_with = "raw")]
    system: Option<String>,
    /// Most tokens to generate, thinking included
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// 0 = always the most likely token [default: the checkpoint's]
    #[arg(long, value_name = "T", value_parser = temperature)]
    temperature: Option<f32>,
    /// The same seed gives the same answer [default: a new one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Answer without thinking first
    #[arg(long, conflicts_with = "raw")]
    no_think: bool,
    /// Continue the prompt as plain text: no chat template, no splitting of the answer
    #[arg(long)]
    raw: bool,
}

/// Largest prompt from stdin: more than any context holds.
const MOST_PROMPT_BYTES: u64 = 32 << 20;

fn temperature(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if (0.0..=2.0).contains(&number) => Ok(number),
        _ => Err("accepted: a number from 0 to 2".into()),
    }
}

impl RunArgs {
    fn prompt_text(&self) -> anyhow::Result<String> {
        let text = match self.prompt.as_deref() {
            Some(text) if text != "-" => text.to_owned(),
            _ => {
                let stdin = io::stdin();
                if stdin.is_terminal() {
                    eprintln!("(type a prompt, then Ctrl-D)");
                }
                let text = input::read(stdin.lock(), MOST_PROMPT_BYTES).context("stdin")?;
                if self.raw { text } else { text.trim_end_matches(['\n', '\r']).to_owned() }
            }
        };
        if text.is_empty() {
            bail!("the prompt is empty: give one with -p, or on stdin");
        }
        Ok(text)
    }

    fn ask(&self, text: String, serving: &Serving) -> Ask {
        let prompt = if self.raw {
            Prompt::Text(text)
        } else {
            let system = self.system.as_deref().map(|system| Message::new("system", system));
            let mut chat =
                Chat { messages: system.into_iter().chain([Message::new("user", text)]).collect(), ..Chat::default() };
            if self.no_think {
                chat.kwargs.insert("enable_thinking".into(), false.into());
            }
            Prompt::Chat(chat)
        };
        let mut sampling = serving.engine.defaults().sampling.clone();
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        sampling.seed = self.seed;
        let mut ask = Ask::new(prompt, sampling);
        ask.max_tokens = Some(self.max_tokens as usize);
        ask
    }
}

/// Runs the command.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let text = args.prompt_text()?;
    let source = Source::from_option(args.model.model.as_deref())?;
    let start = Instant::now();
    let model = progress::loading(|| LoadedModel::load(&source, &args.model, &Sharing::single()))?;
    let loaded = start.elapsed();
    let serving = Arc::new(Serving::new(model, ApiSettings::default()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let ask = args.ask(text, &serving);
        let choices = ask.start(&serving).await.map_err(|error| anyhow::anyhow!(error.message))?;
        let generation = generate(choices);
        let (finish, times) = tokio::select! {
            done = generation => done?,
            _ = tokio::signal::ctrl_c() => {
                // What was generated so far is on stdout already.
                super::print_result("\n")?;
                return Ok(ExitCode::from(130));
            }
        };
        let speed = |tokens: usize, seconds: f64| tokens as f64 / seconds.max(1e-9);
        let u = finish.usage;
        let decode = times.end.duration_since(times.first).as_secs_f64();
        let read = times.first.duration_since(times.begin).as_secs_f64();
        eprintln!(
            "{}, {}: loaded in {:.2} s; prompt {} tokens, first token after {:.2} s ({:.1} tokens/s); answer {} tokens \
             ({} of them thinking), {:.1} tokens/s; {}",
            serving.name,
            serving.engine.device_info(),
            loaded.as_secs_f64(),
            u.prompt,
            read,
            speed(u.prompt, read),
            u.completion,
            u.reasoning,
            speed(u.completion.saturating_sub(1), decode),
            match &finish.reason {
                Reason::End | Reason::ToolCalls => "ended by the model",
                Reason::StopString(_) => "ended by a stop string",
                Reason::Length => "ended by the limit",
            }
        );
        Ok(ExitCode::SUCCESS)
    })
}

/// When a generation was where.
struct Times {
    begin: Instant,
    first: Instant,
    end: Instant,
}

/// Prints the answer as it comes.
async fn generate(mut choices: Choices) -> anyhow::Result<(Finish, Times)> {
    let begin = Instant::now();
    let mut first = None;
    let bar = progress::tokens(choices.prompt_tokens);
    let show_thinking = io::stderr().is_terminal();
    let mut thought = false;
    let mut finish = None;
    while let Some((_, update)) = choices.next().await {
        match update {
            Update::Queued { .. } => {}
            Update::Progress { done, .. } => bar.set_position(done as u64),
            Update::Pieces(pieces, _) => {
                first.get_or_insert_with(Instant::now);
                bar.finish_and_clear();
                for piece in pieces {
                    match piece {
                        Piece::Content(text) => {
                            if std::mem::take(&mut thought) {
                                eprintln!();
                            }
                            super::print_result(&text)?;
                        }
                        Piece::Reasoning(text) if show_thinking => {
                            thought = true;
                            // Each piece ends its own dimness: the answer may break off anywhere.
                            eprint!("\x1b[2m{text}\x1b[0m");
                        }
                        // Without tools in the prompt there is no call to print.
                        Piece::Reasoning(_) | Piece::CallStart { .. } | Piece::Arguments(_) | Piece::CallEnd => {}
                    }
                }
            }
            Update::Finished(end) => finish = Some(end),
            Update::Failed(error) => bail!(error.message),
        }
    }
    if thought {
        eprintln!();
    }
    super::print_result("\n")?;
    let finish = finish.context("the answer has no end")?;
    let end = Instant::now();
    Ok((finish, Times { begin, first: first.unwrap_or(end), end }))
}
