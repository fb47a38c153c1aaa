//! Sampling parameters and the ranges they must keep.

/// How the next token is chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 = greedy (the largest logit, ties to the lowest id); else logits are divided by it. 0 to 100.
    pub temperature: f32,
    /// Only the so many most likely tokens; 0 = all.
    pub top_k: usize,
    /// Only the most likely tokens that together reach this probability, at least one. 0 to 1; 1 = all.
    pub top_p: f32,
    /// Only tokens at least this times as likely as the most likely. 0 to 1; 0 = all.
    pub min_p: f32,
    /// Subtracted from the logits of tokens already generated. -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens already generated, once for each time. -2 to 2.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt and answer. Above 0, at most 10; 1 = off.
    pub repetition_penalty: f32,
    /// Added to the logits of these ids. Each bias -100 to 100; -100 forbids the token.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed, prompt and parameters give the same tokens, whatever else runs. `None` = a new one each time.
    pub seed: Option<u64>,
}

/// A sampling parameter out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field} is {value} (accepted: {accepted})")]
pub struct SamplingError {
    /// Parameter.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// What would have been accepted.
    pub accepted: &'static str,
}

impl Default for SamplingParams {
    /// Plain sampling from the model's distribution.
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Most entries of `logit_bias`.
    pub const MAX_LOGIT_BIAS: usize = 1024;

    /// The largest logit, nothing else.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..Self::default() }
    }

    /// Checks every parameter's range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let within = |field, value: f32, accepted, ok: bool| {
            if ok { Ok(()) } else { Err(SamplingError { field, value: value.to_string(), accepted }) }
        };
        let t = self.temperature;
        within("temperature", t, "a number from 0 to 100", (0.0..=100.0).contains(&t))?;
        within("top_p", self.top_p, "a number from 0 to 1", (0.0..=1.0).contains(&self.top_p))?;
        within("min_p", self.min_p, "a number from 0 to 1", (0.0..=1.0).contains(&self.min_p))?;
        let two = "a number from -2 to 2";
        within("presence_penalty", self.presence_penalty, two, (-2.0..=2.0).contains(&self.presence_penalty))?;
        within("frequency_penalty", self.frequency_penalty, two, (-2.0..=2.0).contains(&self.frequency_penalty))?;
        let r = self.repetition_penalty;
        within("repetition_penalty", r, "a number above 0, at most 10", r > 0.0 && r <= 10.0)?;
        if self.logit_bias.len() > Self::MAX_LOGIT_BIAS {
            let value = format!("{} entries", self.logit_bias.len());
            return Err(SamplingError { field: "logit_bias", value, accepted: "at most 1024 entries" });
        }
        for &(id, bias) in &self.logit_bias {
            if !(-100.0..=100.0).contains(&bias) {
                let value = format!("{bias} for token {id}");
                return Err(SamplingError { field: "logit_bias", value, accepted: "biases from -100 to 100" });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_parameter_out_of_range_is_named_and_not_a_number_is_refused() {
        let base = SamplingParams::default();
        let cases = [
            (SamplingParams { temperature: -0.1, ..base.clone() }, "temperature"),
            (SamplingParams { temperature: f32::NAN, ..base.clone() }, "temperature"),
            (SamplingParams { temperature: f32::INFINITY, ..base.clone() }, "temperature"),
            (SamplingParams { top_p: 1.1, ..base.clone() }, "top_p"),
            (SamplingParams { min_p: -1.0, ..base.clone() }, "min_p"),
            (SamplingParams { presence_penalty: 2.5, ..base.clone() }, "presence_penalty"),
            (SamplingParams { frequency_penalty: f32::NAN, ..base.clone() }, "frequency_penalty"),
            (SamplingParams { repetition_penalty: 0.0, ..base.clone() }, "repetition_penalty"),
            (SamplingParams { logit_bias: vec![(3, 101.0)], ..base.clone() }, "logit_bias"),
            (SamplingParams { logit_bias: vec![(3, 1.0); 1025], ..base.clone() }, "logit_bias"),
        ];
        for (params, field) in cases {
            assert_eq!(params.validate().unwrap_err().field, field);
        }
        assert_eq!(base.validate(), Ok(()));
    }
}
