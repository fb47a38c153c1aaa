//! Progress on stderr, on a terminal only: scripts and logs see nothing of it.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

fn visible(bar: ProgressBar) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// A spinner while `work` loads a model.
pub(super) fn loading<T>(work: impl FnOnce() -> T) -> T {
    let spinner = visible(ProgressBar::new_spinner());
    spinner.set_message("loading the model");
    spinner.enable_steady_tick(Duration::from_millis(100));
    let result = work();
    spinner.finish_and_clear();
    result
}

/// A bar over the tokens of a prompt.
pub(super) fn tokens(total: usize) -> ProgressBar {
    let bar = visible(ProgressBar::new(total as u64));
    bar.set_style(style("reading {bar:30} {pos}/{len} tokens, {per_sec}, {eta} left"));
    bar
}

/// A bar over bytes written.
pub(super) fn bytes(total: u64) -> ProgressBar {
    let bar = visible(ProgressBar::new(total));
    bar.set_style(style("writing {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left"));
    bar
}

/// A bar over steps of a measurement.
pub(super) fn steps(total: usize) -> ProgressBar {
    let bar = visible(ProgressBar::new(total as u64));
    bar.set_style(style("measuring {bar:30} {pos}/{len} runs, {eta} left"));
    bar
}

/// A bar over the bytes of weights that go to a GPU.
pub fn upload_progress() -> Box<dyn Fn(u64, u64) + Send + Sync> {
    let bar = visible(ProgressBar::new(0));
    bar.set_style(style("uploading {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left"));
    Box::new(move |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    })
}
