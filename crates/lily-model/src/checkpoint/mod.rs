//! A checkpoint on disk or in memory: safetensors shards, used in place.

mod view;

pub use view::{DenseView, FloatView, QuantizedView, WeightView};
