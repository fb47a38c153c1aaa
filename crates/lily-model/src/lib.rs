//! lily-model
