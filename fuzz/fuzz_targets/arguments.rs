//! `gds_fuzz::arguments` as a target of libFuzzer; without it, a program that replays inputs.
#![cfg_attr(fuzzing, no_main)]

gds_fuzz::target!(arguments);
