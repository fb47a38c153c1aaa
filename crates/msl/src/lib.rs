//! msl
