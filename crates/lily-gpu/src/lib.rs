//! lily-gpu
