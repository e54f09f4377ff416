//! Modules as data: verification, reading, writing, importing, tidying, lowering and audits, compared with XLA.

#[path = "../support/first.rs"]
mod first;

mod amp;
mod as_tpu;
mod audit;
mod audit_alone;
mod audit_judged;
mod audit_theory;
mod bits_pjrt;
mod carried;
mod folding;
mod foreign_modules;
mod import;
#[path = "../support/random.rs"]
mod modules;
mod products;
mod random_modules;
#[path = "../run/mod.rs"]
mod run;
mod seeds;
mod stablehlo;
mod stablehlo_collectives;
mod tidy;
mod torch;
mod verify;
mod xla_today;
