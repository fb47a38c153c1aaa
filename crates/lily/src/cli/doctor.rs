//! `lily doctor`: is what this device computes right? Every kernel alone against the readable reference, then whole steps
//! against it.

mod steps;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use lily_cpu::{CpuDevice, CpuOptions, Precision};
use lily_gpu::cuda::{Cuda, CudaOptions, Kernels};
use lily_gpu::doctor::{self, Finding};
use lily_gpu::emulated::Check;
use lily_gpu::route::MatrixRoute;
use lily_gpu::{Driver, Emulated, EmulatedOptions, GpuDevice};
use lily_model::checkpoint::Checkpoint;
use lily_model::device::Device;
use lily_model::graph::Phase;
use serde_json::{Value, json};

use super::options::DeviceKind;
use super::progress;
use crate::device;
use crate::source::Source;

/// Compare every kernel of a device with the reference, and say what differs
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lily doctor --device metal\n  lily doctor --model ~/Qwen3.6-35B-A3B-4bit --device metal\n  \
                        lily doctor --device emulated --longest 1024\n\nPrints a line for each operation and case: the \
                        largest error (relative to the element plus the root mean square of its row), the error \
                        allowed, the time. Exit code 1 when anything differs. The emulated device runs both matrix \
                        routes, every access checked."
)]
pub(super) struct DoctorArgs {
    /// Folder of the checkpoint whose shapes and weights are used; without it, the built-in miniature
    #[arg(long, value_name = "DIR", env = "LILY_MODEL")]
    model: Option<PathBuf>,
    /// Device to examine
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto, env = "LILY_DEVICE")]
    device: DeviceKind,
    /// Longest sequence to try
    #[arg(long, value_name = "TOKENS", default_value_t = doctor::LONGEST as u32,
          value_parser = clap::value_parser!(u32).range(1..=doctor::LONGEST as i64))]
    longest: u32,
    /// Print JSON (keys model, ok, findings)
    #[arg(long)]
    json: bool,
}

/// A line of the report.
struct Line {
    device: String,
    phase: &'static str,
    op: &'static str,
    layer: Option<usize>,
    kernels: Vec<&'static str>,
    case: String,
    error: f32,
    tolerance: f32,
    problem: Option<String>,
    time: Duration,
}

impl Line {
    fn of(device: &str, finding: &Finding) -> Self {
        Line {
            device: device.to_owned(),
            phase: match finding.phase {
                Phase::Decode => "decode",
                Phase::Prefill => "prefill",
            },
            op: finding.op,
            layer: finding.layer,
            kernels: finding.kernels.clone(),
            case: finding.case.clone(),
            error: finding.error,
            tolerance: finding.tolerance,
            problem: finding.problem.clone(),
            time: finding.time,
        }
    }

    fn text(&self) -> String {
        let (error, allowed) = (format!("{:.1e}", self.error), format!("{:.1e}", self.tolerance));
        let (ms, kernels) = (self.time.as_secs_f64() * 1e3, self.kernels.join(", "));
        let verdict = if self.problem.is_none() { "ok" } else { "WRONG" };
        let mut text = format!(
            "{verdict:5}  {:7}  {:18}  {error:>7}  {allowed:>7}  {ms:9.2} ms  {}  [{kernels}]\n",
            self.phase, self.op, self.case
        );
        if let Some(problem) = &self.problem {
            text += &format!("       {problem}\n");
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "device": self.device,
            "phase": self.phase,
            "op": self.op,
            "layer": self.layer,
            "kernels": self.kernels,
            "case": self.case,
            // Infinite where something is no number.
            "error": if self.error.is_finite() { json!(self.error) } else { Value::Null },
            "tolerance": self.tolerance,
            "ok": self.problem.is_none(),
            "problem": self.problem,
            "ms": self.time.as_secs_f64() * 1e3,
        })
    }
}

/// Collects lines, and prints them as they come where a table is wanted.
struct Report {
    json: bool,
    lines: Vec<Line>,
}

impl Report {
    fn title(&self, device: &str) -> anyhow::Result<()> {
        if self.json {
            return Ok(());
        }
        let head = format!(
            "{:5}  {:7}  {:18}  {:>7}  {:>7}  {:>12}  case [kernels]",
            "", "phase", "operation", "error", "allowed", "time"
        );
        super::print_result(&format!("{device}\n{head}\n"))
    }

    fn add(&mut self, line: Line) -> anyhow::Result<()> {
        if !self.json {
            super::print_result(&line.text())?;
        }
        self.lines.push(line);
        Ok(())
    }
}

/// Runs the command.
pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let source = Source::from_option(args.model.as_deref())?;
    let checkpoint = Arc::new(progress::loading(|| source.open())?);
    let mut report = Report { json: args.json, lines: Vec::new() };
    let longest = args.longest as usize;
    match device::resolved(args.device, Precision::Fast) {
        DeviceKind::Auto | DeviceKind::Cpu => {
            let capacity = steps::capacity(doctor::capacity(&checkpoint.model().config));
            let options = CpuOptions { threads: 0, precision: Precision::Fast, capacity };
            let mut device = CpuDevice::new(Arc::clone(&checkpoint), options)?;
            let name = device.info().to_string();
            report.title(&name)?;
            whole_steps(&mut device, &name, &checkpoint, &mut report)?;
        }
        DeviceKind::Emulated => {
            for route in MatrixRoute::ALL {
                let driver = Emulated::new(EmulatedOptions { route, check: Check::On, ..EmulatedOptions::default() });
                examine(driver, &checkpoint, longest, &mut report)?;
            }
        }
        DeviceKind::Metal => examine_metal(&checkpoint, longest, &mut report)?,
        DeviceKind::Cuda => {
            for kernels in [Kernels::Native, Kernels::Translated] {
                let options =
                    CudaOptions { kernels, progress: Some(progress::upload_progress()), ..CudaOptions::default() };
                examine(Cuda::new(options)?, &checkpoint, longest, &mut report)?;
            }
        }
    }
    let wrong = report.lines.iter().filter(|line| line.problem.is_some()).count();
    let ok = wrong == 0;
    if args.json {
        let findings: Vec<Value> = report.lines.iter().map(Line::json).collect();
        super::print_result(&format!("{:#}\n", json!({ "model": source.name(), "ok": ok, "findings": findings })))?;
    } else {
        let verdict = match wrong {
            0 => "nothing differs".to_owned(),
            n => format!("{n} WRONG"),
        };
        super::print_result(&format!("{}: {} cases, {verdict}\n", source.name(), report.lines.len()))?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Examines the Mac's GPU on the route that it takes, then on the one that every Mac can take.
#[cfg(target_os = "macos")]
fn examine_metal(checkpoint: &Arc<Checkpoint>, longest: usize, report: &mut Report) -> anyhow::Result<()> {
    use lily_gpu::metal::{Metal, MetalOptions};

    let driver = Metal::new(MetalOptions::default())?;
    let route = driver.info().route;
    examine(driver, checkpoint, longest, report)?;
    if route != MatrixRoute::Simdgroup {
        let options = MetalOptions { route: Some(MatrixRoute::Simdgroup), ..MetalOptions::default() };
        examine(Metal::new(options)?, checkpoint, longest, report)?;
    }
    Ok(())
}

/// Metal is macOS's.
#[cfg(not(target_os = "macos"))]
fn examine_metal(_checkpoint: &Arc<Checkpoint>, _longest: usize, _report: &mut Report) -> anyhow::Result<()> {
    Err(device::no_metal())
}

/// Examines the kernels that a driver runs, then whole steps.
fn examine<D: Driver>(
    driver: D,
    checkpoint: &Arc<Checkpoint>,
    longest: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let capacity = doctor::capacity(&checkpoint.model().config);
    let mut device = GpuDevice::new(driver, Arc::clone(checkpoint), capacity)?;
    let name = device.info().to_string();
    report.title(&name)?;
    let mut printed = Ok(());
    doctor::examine(&mut device, longest, &mut |finding| {
        if printed.is_ok() {
            printed = report.add(Line::of(&name, finding));
        }
    });
    printed?;
    whole_steps(&mut device, &name, checkpoint, report)
}

fn whole_steps(
    device: &mut dyn Device,
    name: &str,
    checkpoint: &Arc<Checkpoint>,
    report: &mut Report,
) -> anyhow::Result<()> {
    for step in steps::compare(device, checkpoint)? {
        let too_far = step.kl > steps::ALLOWED;
        report.add(Line {
            device: name.to_owned(),
            phase: step.phase,
            op: "whole step (KL)",
            layer: None,
            kernels: Vec::new(),
            case: step.case,
            error: step.kl,
            tolerance: steps::ALLOWED,
            problem: too_far.then(|| "the logits are far from those of the f32 reference".to_owned()),
            time: step.time,
        })?;
    }
    Ok(())
}
