//! How evenly routers spread tokens over experts, from the experts they chose.

use std::fmt;

/// How often each expert of each layer was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingCounts {
    layers: Vec<Vec<u64>>,
}

/// How even one layer's routing was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerRouting {
    /// Choices counted (tokens times experts a token).
    pub choices: u64,
    /// Entropy of the experts' shares, in nats.
    pub entropy: f64,
    /// `exp(entropy)`: as many equally used experts would have the same entropy.
    pub effective_experts: f64,
    /// What `effective_experts` would be, on average, for a perfectly uniform router and as many choices.
    pub effective_if_uniform: f64,
    /// Largest share of an expert, as a multiple of an even share.
    pub max_load: f64,
    /// Experts never chosen.
    pub unused: usize,
}

impl RoutingCounts {
    /// No choices yet.
    pub fn new(layers: usize, experts: usize) -> Self {
        RoutingCounts { layers: vec![vec![0; experts]; layers] }
    }

    /// Counts the experts a layer chose, for any number of tokens.
    ///
    /// # Panics
    /// If the layer or an expert does not exist.
    pub fn record(&mut self, layer: usize, experts: &[u32]) {
        for &expert in experts {
            self.layers[layer][expert as usize] += 1;
        }
    }

    /// How even each layer's routing was.
    pub fn layers(&self) -> Vec<LayerRouting> {
        self.layers.iter().map(|counts| LayerRouting::of(counts)).collect()
    }

    /// The layer that used the fewest experts, and how even it was; `None` without layers.
    pub fn worst(&self) -> Option<(usize, LayerRouting)> {
        self.layers().into_iter().enumerate().min_by(|a, b| a.1.evenness().total_cmp(&b.1.evenness()))
    }
}

impl LayerRouting {
    /// From how often each expert was chosen.
    pub fn of(counts: &[u64]) -> Self {
        let choices: u64 = counts.iter().sum();
        let total = choices.max(1) as f64;
        let shares = counts.iter().map(|&n| n as f64 / total);
        let entropy = shares.filter(|&p| p > 0.0).map(|p| -p * p.ln()).sum::<f64>();
        let experts = counts.len() as f64;
        LayerRouting {
            choices,
            entropy,
            effective_experts: entropy.exp(),
            // Miller and Madow 1955: a sample's entropy falls short by (classes - 1) / (2 n).
            effective_if_uniform: experts * (-(experts - 1.0) / (2.0 * total)).exp(),
            max_load: counts.iter().max().map_or(0.0, |&n| n as f64 / total * experts),
            unused: counts.iter().filter(|&&n| n == 0).count(),
        }
    }

    /// Effective experts as a share of what a uniform router would show; near 1 is near uniform.
    pub fn evenness(&self) -> f64 {
        self.effective_experts / self.effective_if_uniform
    }
}

impl fmt::Display for RoutingCounts {
    /// One line a layer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (layer, r) in self.layers().iter().enumerate() {
            writeln!(
                f,
                "layer {layer:3}: {:6.1} effective experts of {} ({:5.1} % of a uniform router's), busiest {:.2} times \
                 an even share, {} unused",
                r.effective_experts,
                self.layers[layer].len(),
                100.0 * r.evenness(),
                r.max_load,
                r.unused
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_use_is_all_experts_and_a_collapse_is_the_few_that_remain() {
        let even = LayerRouting::of(&[100; 16]);
        assert!((even.effective_experts - 16.0).abs() < 1e-9 && even.max_load == 1.0 && even.evenness() > 0.99);
        let mut counts = RoutingCounts::new(2, 16);
        for _ in 0..100 {
            counts.record(0, &[0, 1, 2, 3]);
        }
        (0..1600).for_each(|i| counts.record(1, &[i % 16]));
        let (layer, worst) = counts.worst().unwrap();
        assert_eq!((layer, worst.unused, worst.choices), (0, 12, 400));
        assert!((worst.effective_experts - 4.0).abs() < 1e-9 && worst.max_load == 4.0);
        assert_eq!(counts.to_string().lines().count(), 2);
    }
}
