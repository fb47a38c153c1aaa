//! Embedding, head, argmax.

use lily_cpu::reference::{argmax, embed};
use lily_model::device::{NO_TOKEN, Tokens};
use lily_model::graph::OpKind;

use super::super::case::Fill;
use super::super::trial::{Output, Part, Place, Trial, Values, tolerance};
use super::{Source, WeightForm};

impl Source<'_> {
    pub(super) fn io(&mut self, kind: &OpKind) -> Trial {
        let (hidden, vocab, rows) = (self.config().hidden_size, self.config().vocab_size, self.rows());
        match *kind {
            OpKind::Embed { weight, norm, residual, normed, .. } => {
                let mut trial = Trial::default();
                let tokens = match self.step.tokens {
                    Tokens::Ids(ids) => ids.to_vec(),
                    Tokens::Previous => {
                        let chosen: Vec<u32> = (0..rows).map(|_| self.random.below(vocab) as u32).collect();
                        trial.inputs.push((Place::Chosen, Part::new(0, Values::U32(chosen.clone()))));
                        chosen
                    }
                };
                let weight = self.checkpoint.weight(weight);
                let mut x = vec![0f32; rows * hidden];
                for (&token, x) in tokens.iter().zip(x.chunks_exact_mut(hidden)) {
                    embed(&weight, token as usize, x);
                }
                let norms = self.norms(&x, norm);
                trial.output("residual", residual, hidden, tolerance::SUM, Values::F32(x)).output(
                    "normed",
                    normed,
                    hidden,
                    tolerance::BF16,
                    Values::Bf16(norms),
                )
            }
            OpKind::LmHead { weight, input, logits, .. } => {
                let x = self.activations(rows * hidden);
                let chosen: Vec<f32> = self
                    .logit_rows()
                    .into_iter()
                    .flat_map(|row| &x[row * hidden..(row + 1) * hidden])
                    .copied()
                    .collect();
                let result = self.project(weight, &chosen, hidden, WeightForm::Exact);
                Trial::default().input(input, Values::Bf16(x)).output(
                    "logits",
                    logits,
                    vocab,
                    tolerance::SUM,
                    Values::F32(result),
                )
            }
            OpKind::Argmax { logits, next } => {
                let count = self.logit_rows().len();
                let mut values = self.floats(count * vocab);
                if self.case.fill != Fill::Zeros {
                    // The largest value three times: the lowest id wins.
                    for row in values.chunks_exact_mut(vocab) {
                        for _ in 0..3 {
                            row[self.random.below(vocab)] = 1000.0;
                        }
                    }
                }
                // A NaN among numbers is passed over; rows of nothing else, or with an infinite largest, give no token.
                for row in values.chunks_exact_mut(vocab) {
                    row[self.random.below(vocab)] = f32::NAN;
                }
                let faulty = count / 3;
                for (row, values) in values.chunks_exact_mut(vocab).take(faulty).enumerate() {
                    values.fill(f32::NAN);
                    if row % 2 == 1 {
                        values[self.random.below(vocab)] = f32::INFINITY;
                    }
                }
                let best: Vec<u32> = values.chunks_exact(vocab).map(|row| argmax(row) as u32).collect();
                let mut chosen = best.clone();
                chosen[..faulty].fill(NO_TOKEN);
                let mut trial = Trial::default().input(logits, Values::F32(values));
                trial.outputs.push(Output {
                    name: "chosen",
                    place: Place::Chosen,
                    width: 1,
                    tolerance: tolerance::NONE,
                    parts: vec![Part::new(0, Values::U32(chosen))],
                });
                trial.output("next_tokens", next, 1, tolerance::NONE, Values::U32(best))
            }
            _ => Trial::default(),
        }
    }
}
