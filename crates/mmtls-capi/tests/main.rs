//! The C library as it is installed: C and C++ programs, their misuse, the header, the tutorial.

mod common;
mod header;
mod live;
mod misuse;
mod programs;
mod tutorial;
