//! The API as a client sees it: a server in this process, on the built-in miniature, spoken to over plain sockets, so that
//! what is sent can also be wrong.
#![cfg(feature = "embedded")]

mod abuse;
mod auth;
mod cache;
mod chat;
mod client;
mod limits;
mod refusals;
mod server;
