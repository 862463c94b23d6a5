//! A broker for each test, and what is left in it.
#![allow(unused_imports)]

pub use baton_testkit::*;
