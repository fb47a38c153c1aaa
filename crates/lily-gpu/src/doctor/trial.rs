//! A trial: what is put into an operation's buffers, and what must be in them afterwards.

use half::bf16;
use lily_model::graph::BufferId;

/// Elements of a buffer, in the buffer's own type. Floats that are stored in 16 bits are already rounded to them.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Values {
    F32(Vec<f32>),
    Bf16(Vec<f32>),
    U32(Vec<u32>),
}

impl Values {
    /// As the device stores them.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Values::F32(values) => bytemuck::cast_slice(values).to_vec(),
            Values::Bf16(values) => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
            Values::U32(values) => bytemuck::cast_slice(values).to_vec(),
        }
    }

    /// Bytes of one element.
    pub fn element_bytes(&self) -> usize {
        match self {
            Values::F32(_) | Values::U32(_) => 4,
            Values::Bf16(_) => 2,
        }
    }

    fn len(&self) -> usize {
        match self {
            Values::F32(values) | Values::Bf16(values) => values.len(),
            Values::U32(values) => values.len(),
        }
    }
}

/// A range of memory that a trial fills or looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A buffer of the plan.
    Buffer(BufferId),
    /// The tokens that a step leaves for the next.
    Chosen,
}

/// Elements from `at` on.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub at: usize,
    pub values: Values,
    /// Added to what an error is measured against; for differences of numbers that may be near 0 by chance.
    pub unit: f32,
}

impl Part {
    pub fn new(at: usize, values: Values) -> Self {
        Part { at, values, unit: 0.0 }
    }
}

/// What must be in a buffer afterwards. Everything outside the parts must be as it was before.
#[derive(Debug)]
pub(super) struct Output {
    pub name: &'static str,
    pub place: Place,
    /// Elements that belong together: an error is measured against their root mean square.
    pub width: usize,
    pub tolerance: f32,
    /// Ordered, none overlapping. Floats as they are before the device rounds them.
    pub parts: Vec<Part>,
}

/// Allowed errors, relative to the element plus the root mean square of its row.
pub(super) mod tolerance {
    /// Copies and integers.
    pub const NONE: f32 = 0.0;
    /// f32 sums in another order.
    pub const SUM: f32 = 1e-5;
    /// One step of an f32 recurrence: what is added is a difference of sums that may almost cancel.
    pub const STEP: f32 = 1e-4;
    /// f32 recurrences over many rows.
    pub const RECURRENCE: f32 = 2e-4;
    /// A result rounded to bf16: half a unit of its last place, and the error of the sum before.
    pub const BF16: f32 = 0.003_95;
    /// Sums of products whose factors were rounded to bf16, a few of them to the neighbouring value.
    pub const ROUNDED_FACTORS: f32 = 2e-3;
}

/// Inputs and expected outputs of an operation.
#[derive(Debug, Default)]
pub(super) struct Trial {
    /// Experts of each row that the sort before the operation puts in order.
    pub experts: Option<Vec<u32>>,
    pub inputs: Vec<(Place, Part)>,
    pub outputs: Vec<Output>,
}

impl Trial {
    pub fn input(mut self, buffer: BufferId, values: Values) -> Self {
        self.inputs.push((Place::Buffer(buffer), Part::new(0, values)));
        self
    }

    pub fn inputs(mut self, buffer: BufferId, parts: Vec<Part>) -> Self {
        self.inputs.extend(parts.into_iter().map(|part| (Place::Buffer(buffer), part)));
        self
    }

    /// A buffer that is written from its first element on, in rows of `width`.
    pub fn output(self, name: &'static str, buffer: BufferId, width: usize, tolerance: f32, values: Values) -> Self {
        self.output_parts(name, buffer, width, tolerance, vec![Part::new(0, values)])
    }

    pub fn output_parts(
        mut self,
        name: &'static str,
        buffer: BufferId,
        width: usize,
        tolerance: f32,
        parts: Vec<Part>,
    ) -> Self {
        self.outputs.push(Output { name, place: Place::Buffer(buffer), width, tolerance, parts });
        self
    }
}

/// How far an output is from what it must be.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Distance {
    /// Largest error, relative as `tolerance` says; infinite where something is no number.
    pub error: f32,
    /// Where it is, or what else is wrong.
    pub worst: String,
}

/// Compares the bytes of an output before and after with what they must be.
///
/// # Errors
/// What was written that should not have been.
pub(super) fn compare(output: &Output, before: &[u8], after: &[u8]) -> Result<Distance, String> {
    let mut distance = Distance { error: 0.0, worst: String::new() };
    let mut end = 0;
    for part in &output.parts {
        let size = part.values.element_bytes();
        let (first, last) = (part.at * size, (part.at + part.values.len()) * size);
        unchanged(output, before, after, end..first, size)?;
        end = last;
        let bytes = &after[first..last];
        match &part.values {
            Values::U32(want) => {
                let got: Vec<u32> =
                    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                if let Some(i) = (0..want.len()).find(|&i| got[i] != want[i]) {
                    let text = format!("{}[{}] is {}, not {}", output.name, part.at + i, got[i], want[i]);
                    distance = Distance { error: f32::INFINITY, worst: text };
                }
            }
            Values::F32(want) => {
                let got =
                    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<_>>();
                measure(output, part, want, &got, &mut distance);
            }
            Values::Bf16(want) => {
                let got = bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect::<Vec<_>>();
                measure(output, part, want, &got, &mut distance);
            }
        }
    }
    let size = output.parts.first().map_or(1, |part| part.values.element_bytes());
    unchanged(output, before, after, end..before.len(), size)?;
    Ok(distance)
}

fn unchanged(
    output: &Output,
    before: &[u8],
    after: &[u8],
    range: std::ops::Range<usize>,
    size: usize,
) -> Result<(), String> {
    match range.clone().find(|&i| before[i] != after[i]) {
        None => Ok(()),
        Some(byte) => Err(format!("{}[{}] was written and belongs to no row of the step", output.name, byte / size)),
    }
}

fn measure(output: &Output, part: &Part, want: &[f32], got: &[f32], distance: &mut Distance) {
    // The smallest normal number keeps rows of zeros from dividing by zero.
    let unit = f64::from(part.unit) + f64::from(f32::MIN_POSITIVE);
    for (row, (want, got)) in want.chunks(output.width).zip(got.chunks(output.width)).enumerate() {
        let squares: f64 = want.iter().map(|&w| f64::from(w) * f64::from(w)).sum();
        let rms = (squares / want.len() as f64).sqrt();
        for (column, (&w, &g)) in want.iter().zip(got).enumerate() {
            let difference = f64::from((g - w).abs());
            let error = (difference / (f64::from(w.abs()) + rms + unit)) as f32;
            let error = if error.is_nan() { f32::INFINITY } else { error };
            if error > distance.error {
                let index = part.at + row * output.width + column;
                *distance = Distance { error, worst: format!("{}[{index}] is {g}, not {w}", output.name) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(parts: Vec<Part>) -> Output {
        Output { name: "out", place: Place::Chosen, width: 2, tolerance: tolerance::SUM, parts }
    }

    #[test]
    fn an_error_is_relative_to_the_element_and_its_row() {
        let want = output(vec![Part::new(0, Values::F32(vec![1.0, 1.0, 0.0, 0.0]))]);
        let before = [0u8; 16];
        let got = Values::F32(vec![1.0, 1.5, 0.0, 0.0]).bytes();
        let distance = compare(&want, &before, &got).expect("nothing else was written");
        assert_eq!(distance.error, 0.25);
        let nan = Values::F32(vec![1.0, 1.0, f32::NAN, 0.0]).bytes();
        assert_eq!(compare(&want, &before, &nan).expect("nothing else was written").error, f32::INFINITY);
    }

    #[test]
    fn a_write_outside_the_parts_is_found() {
        let want = output(vec![Part::new(1, Values::U32(vec![7]))]);
        let before = Values::U32(vec![1, 2, 3]).bytes();
        assert_eq!(compare(&want, &before, &Values::U32(vec![1, 7, 3]).bytes()).map(|d| d.error), Ok(0.0));
        assert!(compare(&want, &before, &Values::U32(vec![1, 7, 4]).bytes()).is_err_and(|e| e.starts_with("out[2]")));
        assert!(compare(&want, &before, &Values::U32(vec![0, 7, 3]).bytes()).is_err_and(|e| e.starts_with("out[0]")));
        assert_eq!(compare(&want, &before, &Values::U32(vec![1, 8, 3]).bytes()).map(|d| d.error), Ok(f32::INFINITY));
    }
}
