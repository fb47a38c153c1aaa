//! The plan as people and programs read it: table, JSON, Graphviz. For the CPU a line is an operation of the plan, for a
//! GPU a dispatch of the table.

use std::fmt::Write;

use lily_gpu::paper::PaperDispatch;
use lily_model::graph::{Model, OpBytes, Phase, Plan, Traffic};
use serde_json::json;

/// Figures of one operation, or of one of its dispatches.
struct OpLine {
    name: &'static str,
    kernel: Option<&'static str>,
    layer: Option<usize>,
    level: usize,
    bytes: OpBytes,
}

/// Figures of a plan.
pub(super) struct Report {
    model: String,
    phase: Phase,
    traffic: Traffic,
    bandwidth: Option<f64>,
    /// Bytes that any device must move.
    floor: f64,
    ops: Vec<OpLine>,
    waits: Vec<Vec<usize>>,
}

fn sum(ops: impl Iterator<Item = OpBytes>) -> OpBytes {
    ops.fold(OpBytes::default(), |a, b| OpBytes {
        weights: a.weights + b.weights,
        state: a.state + b.state,
        activations: a.activations + b.activations,
    })
}

/// Bytes in the unit that keeps three digits.
fn human(bytes: f64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.2} {unit}", bytes / size),
        None => format!("{bytes:.0} B"),
    }
}

impl Report {
    pub(super) fn new(name: &str, model: &Model, plan: &Plan, traffic: Traffic, bandwidth: Option<f64>) -> Self {
        let ops: Vec<OpLine> = plan
            .ops
            .iter()
            .zip(plan.levels())
            .map(|(op, level)| OpLine {
                name: op.name(),
                kernel: None,
                layer: op.layer,
                level,
                bytes: plan.op_bytes(model, op, traffic),
            })
            .collect();
        Report {
            model: name.to_owned(),
            phase: plan.phase,
            traffic,
            bandwidth,
            floor: sum(ops.iter().map(|op| op.bytes)).memory(),
            ops,
            waits: plan.edges(),
        }
    }

    /// The same step as a GPU executes it.
    pub(super) fn with_dispatches(mut self, dispatches: Vec<PaperDispatch>) -> Self {
        self.waits = dispatches.iter().map(|d| d.after.clone()).collect();
        self.ops = dispatches
            .iter()
            .map(|d| OpLine { name: d.op, kernel: Some(d.kernel), layer: d.layer, level: d.level, bytes: d.bytes })
            .collect();
        self
    }

    fn levels(&self) -> usize {
        self.ops.iter().map(|op| op.level).max().unwrap_or(0)
    }

    fn phase_name(&self) -> &'static str {
        match self.phase {
            Phase::Decode => "decode",
            Phase::Prefill => "prefill",
        }
    }

    /// Bytes of all lines.
    fn total(&self) -> OpBytes {
        sum(self.ops.iter().map(|op| op.bytes))
    }

    /// Most tokens/s at a bandwidth in GB/s.
    fn ceiling(&self, bandwidth: f64) -> f64 {
        self.traffic.rows as f64 * bandwidth * 1e9 / self.floor
    }

    pub(super) fn table(&self) -> String {
        let mut names: Vec<&'static str> = Vec::new();
        for op in &self.ops {
            if !names.contains(&op.name) {
                names.push(op.name);
            }
        }
        let total = self.total();
        let mut out = String::new();
        let t = self.traffic;
        let _ = writeln!(
            out,
            "{}: {} of {} row{}, {} tokens in the cache\n",
            self.model,
            self.phase_name(),
            t.rows,
            if t.rows == 1 { "" } else { "s" },
            t.context
        );
        let _ = writeln!(
            out,
            "{:<20} {:>5} {:>12} {:>12} {:>12} {:>7}",
            "operation", "ops", "weights", "state", "activations", "share"
        );
        for name in names {
            let count = self.ops.iter().filter(|op| op.name == name).count();
            let bytes = sum(self.ops.iter().filter(|op| op.name == name).map(|op| op.bytes));
            let _ = writeln!(
                out,
                "{name:<20} {count:>5} {:>12} {:>12} {:>12} {:>6.1}%",
                human(bytes.weights),
                human(bytes.state),
                human(bytes.activations),
                100.0 * bytes.memory() / total.memory()
            );
        }
        let _ = writeln!(
            out,
            "{:<20} {:>5} {:>12} {:>12} {:>12} {:>6.1}%\n",
            "all",
            self.ops.len(),
            human(total.weights),
            human(total.state),
            human(total.activations),
            100.0
        );
        let _ = writeln!(out, "dispatches   {}", self.ops.len());
        let _ = writeln!(out, "stages       {} (a barrier between each two)", self.levels());
        let _ = writeln!(out, "must move    {} (weights and state, each byte once)", human(self.floor));
        if self.ops.iter().any(|op| op.kernel.is_some()) {
            let over = 100.0 * (total.total() / self.floor - 1.0);
            let _ = writeln!(out, "moves        {} ({over:+.1}%, intermediates included)", human(total.total()));
        }
        match self.bandwidth {
            Some(bandwidth) => {
                let _ = writeln!(out, "at most      {:.1} tokens/s at {bandwidth} GB/s", self.ceiling(bandwidth));
            }
            None => {
                let _ = writeln!(
                    out,
                    "at most      {:.1} tokens/s for each 100 GB/s of memory bandwidth (--bandwidth for yours)",
                    self.ceiling(100.0)
                );
            }
        }
        out
    }

    pub(super) fn json(&self) -> String {
        let total = self.total();
        let ops: Vec<_> = self
            .ops
            .iter()
            .enumerate()
            .map(|(index, op)| {
                json!({
                    "op": op.name,
                    "kernel": op.kernel,
                    "layer": op.layer,
                    "level": op.level,
                    "after": self.waits[index],
                    "bytes": op.bytes.memory() as u64,
                    "weight_bytes": op.bytes.weights as u64,
                    "state_bytes": op.bytes.state as u64,
                    "activation_bytes": op.bytes.activations as u64,
                })
            })
            .collect();
        let value = json!({
            "model": self.model,
            "phase": self.phase_name(),
            "rows": self.traffic.rows,
            "context": self.traffic.context,
            "dispatches": self.ops.len(),
            "levels": self.levels(),
            "floor_bytes": self.floor as u64,
            "bytes": total.memory() as u64,
            "moved_bytes": total.total() as u64,
            "weight_bytes": total.weights as u64,
            "state_bytes": total.state as u64,
            "activation_bytes": total.activations as u64,
            "bandwidth_gb_per_s": self.bandwidth,
            "max_tokens_per_s": self.bandwidth.map(|b| self.ceiling(b)),
            "ops": ops,
        });
        format!("{value:#}\n")
    }

    pub(super) fn dot(&self) -> String {
        let mut out = String::from("digraph plan {\n  rankdir=LR;\n  node [shape=box, fontname=\"monospace\"];\n");
        for (index, op) in self.ops.iter().enumerate() {
            let place = op.layer.map_or_else(String::new, |layer| format!("layer {layer}\\n"));
            let _ = writeln!(
                out,
                "  n{index} [label=\"{place}{}\\n{}\"];",
                op.kernel.unwrap_or(op.name),
                human(op.bytes.memory())
            );
        }
        for stage in 1..=self.levels() {
            let members = self.ops.iter().enumerate().filter(|(_, op)| op.level == stage);
            let members: String = members.map(|(index, _)| format!("n{index}; ")).collect();
            let _ = writeln!(out, "  {{ rank=same; /* stage {stage} */ {members}}}");
        }
        for (index, waits) in self.waits.iter().enumerate() {
            for before in waits {
                let _ = writeln!(out, "  n{before} -> n{index};");
            }
        }
        out.push_str("}\n");
        out
    }
}
