//! The engine against hostile networks, endpoints and attackers, all in memory.

mod attacks;
mod behind_cleartext;
mod bypass;
mod clear;
mod cleartext;
mod consent;
mod cost;
mod early;
mod epochs;
mod evasion;
mod fragments;
mod handler_reset;
mod harness;
mod hellos;
mod hostile_tcp;
mod mid_stream;
mod opening;
mod order;
mod passive;
mod private_tag;
mod resumption;
mod shares;
mod starttls;
mod tunnels;
mod wrong_keys;
mod zero_random;
